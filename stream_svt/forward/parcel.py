"""What is posted, before any HTTP client sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from stream_svt.forward.event import Received


@dataclass(frozen=True, slots=True)
class Parcel:
    """A request without its address. ``headers`` may hold a signature, and stays out of ``repr``."""

    headers: Mapping[str, str] = field(repr=False)
    body: bytes


class Wrapping(Protocol):
    """Makes the requests of one kind of receiver."""

    def wants(self, event: Received) -> bool:
        """Tell whether the receiver is to hear of an event."""

    def wrap(self, event: Received, now: datetime) -> Parcel:
        """Return the request for an event that is wanted, as of now: each attempt is wrapped anew."""
