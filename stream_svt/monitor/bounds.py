"""How much one step, one commit and one transaction hold, so that none of them holds up anything else for long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a step, of the commit that follows it, and of what a transaction publishes.

    A transaction holds what a commit holds and what it publishes of the one before: with these defaults fewer than
    5,000 records and 8 MB.

    Attributes:
        runs: Most runs that one commit opens.
        records: State records from which on a commit is full.
        size: Bytes of its records and events from which on a commit is full, about.
        rejects: Refused records from which on a commit is full.
        cost: Queries times monitors of one step: some 50 ms. A query that is looked at by itself counts many
            times.
        published: Most events and rejects that one transaction publishes.
        published_size: Most bytes of events that one transaction publishes; a single event may have more.
    """

    runs: int = 1_000
    records: int = 2_500
    size: int = 4_000_000
    rejects: int = 1_000
    cost: int = 1_000_000
    published: int = 2_000
    published_size: int = 3_000_000


BOUNDS = Bounds()
