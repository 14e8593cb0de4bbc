"""Sparse Vector alerts on Kafka streams under differential privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stream_svt.errors import BrokerError, ConfigError, StreamSvtError
from stream_svt.monitor.released import Account, Alert, EventType, Lifecycle, NoiseLaw, Position
from stream_svt.service import __version__
from stream_svt.subscribe import Event, Subscription, subscribe

if TYPE_CHECKING:
    from stream_svt.embed import EmbeddedWorker as Worker

__all__ = [
    "Account",
    "Alert",
    "BrokerError",
    "ConfigError",
    "Event",
    "EventType",
    "Lifecycle",
    "NoiseLaw",
    "Position",
    "StreamSvtError",
    "Subscription",
    "Worker",
    "__version__",
    "subscribe",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever the name stands for
    """Import the worker with its engine where it is used: subscribers need neither."""
    if name == "Worker":
        from stream_svt.embed import EmbeddedWorker

        return EmbeddedWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
