"""The owner of a partition of the event log, without brokers, and the pauses between its attempts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from stream_svt.counting import backoff
from stream_svt.counting import service as module
from stream_svt.counting.event_log import HOMES
from stream_svt.counting.service import Owner
from stream_svt.settings.application import load_spec
from tests.support.sources import WEB
from tests.support.worker import until

SOURCE = load_spec(WEB).sources[0]


class Log:
    """An event log that is never broken."""

    def __init__(self) -> None:
        self.broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.written = 0

    async def fence(self) -> None:
        pass

    close = fence


class Loop:
    """A loop that takes a while to end, as one with a client to close does."""

    counter = None

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    async def run(self, _: object) -> None:
        self.notes.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            self.notes.append("ended")


async def nothing(*_: Any) -> None:
    pass


async def test_a_source_that_comes_back_at_once_begins_only_after_its_former_loop_has_ended(monkeypatch):
    monkeypatch.setattr(module, "WATCH_INTERVAL", 0.01)
    notes: list[str] = []
    applied = SimpleNamespace(sources=(SOURCE,), read_since=nothing)
    service: Any = SimpleNamespace(
        applied=applied, event_log=lambda _: Log(), loop_of=lambda _: Loop(notes), is_member=nothing
    )
    owner = Owner(HOMES.of(SOURCE.name.encode()), service)
    await until(lambda: notes)
    applied.sources = ()
    await asyncio.sleep(0.05)
    applied.sources = (SOURCE,)
    await until(lambda: notes.count("begins") == 2)
    assert notes == ["begins", "ended", "begins"]
    assert [*owner.loops] == [SOURCE.name]
    await owner.stop()
    assert notes == ["begins", "ended", "begins", "ended"]


def test_pauses_grow_and_are_short_again_after_an_attempt_that_lasted(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(backoff, "time", clock)
    now, found = 0.0, []
    pauses = backoff.Backoff(1, 5, 30)
    for lasted in (0, 1, 59, 60, 61, 0):
        now += lasted
        found.append(pauses.next())
        now += found[-1]
    assert found == [1, 5, 30, 30, 1, 5]
