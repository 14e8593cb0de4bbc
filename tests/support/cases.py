"""Sources of the random cases in which neighbouring streams are compared, and what their engines release."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import ReleasedEvent

MAX_CASES = 150
"""Number of cases within which a mutant must be detected."""


def sources(seed: str, cases: int) -> Iterator[random.Random]:
    return (random.Random(f"{seed} {number}") for number in range(cases))


def counted_events(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[ReleasedEvent], str | None]
) -> Counter[str | None]:
    """Count the events that engines make durable from now on, by kind."""
    seen, take = Counter[str | None](), Engine.take_commit

    def counted(self):
        commit = take(self)
        seen.update(map(kind, commit.events))
        return commit

    monkeypatch.setattr(Engine, "take_commit", counted)
    return seen
