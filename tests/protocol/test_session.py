"""A session: a takeover, what a shard says of itself, and a rebalance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stream_svt.monitor import operations
from stream_svt.monitor.accounts import Bounds
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.loading import load
from stream_svt.monitor.projection import Projection
from stream_svt.monitor.released import EventType
from stream_svt.protocol import session as session_module
from stream_svt.protocol.ports import Clock, Stopped
from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.service.kafka import Fenced
from stream_svt.service.workload import AppliedWorkload
from stream_svt.settings.datasets import Gone
from tests.simulation.log import finish, lived
from tests.simulation.model import COMMON, PLAIN, Feed, Model, declared
from tests.simulation.script import Script
from tests.simulation.world import Process, World


def test_everything_that_was_charged_is_published_before_a_takeover_charges_anything() -> None:
    model = Model(declared(f"{{name: hot, {COMMON}}}"))
    model.send(5, "a")
    model.serve()
    account = model.journal()
    records = finish(account.open())
    workload = AppliedWorkload(model.spec, 1)
    assert list(workload.gather(0, Gone()))
    engine = workload.engine(0, account.meta.noise_key)
    load(engine, records, account.meta.progress)
    for number in range(6):
        operations.apply(engine, Command(f"c{number}", (Action.PAUSE, Action.RESUME)[number % 2], "d0"))
    commit = engine.take_commit()
    assert len(commit.events) == 12
    finish(account.commit(commit))
    model.broker.mark("app-0", everything=True)

    session = model.session(journal=model.journal(bounds=Bounds(published=2)))
    finish(lived(session))
    model.broker.mark("app-0", everything=True)
    events = model.events
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert len(events) > 12, "the takeover charges something"
    assert sum(event["type"] == EventType.COMMAND_REPLY for event in events) == 6


def test_the_outbox_shown_fills_with_charges_and_is_empty_once_all_is_published() -> None:
    shown: list[int] = []

    class Watched(World):
        def _answer(self, process: Process) -> None:
            shown.append(process.status.outbox)

    assert Watched(Script(5, 0, 40, ())).run() == []
    assert max(shown) > 0
    assert shown[-1] == 0


@pytest.mark.parametrize(
    ("where", "sliced"),
    [(session_module, "loading"), (Projection, "sum_up"), (session_module, "changing_spec")],
)
def test_a_long_work_in_slices_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, where: object, sliced: str
) -> None:
    whole = getattr(where, sliced)

    def many(*arguments, **options):
        yield from (None for _ in range(20))
        yield from whole(*arguments, **options)

    now, silences = [0.0], []

    async def sleep(seconds: float) -> None:
        assert seconds == 0
        silences.append(now[0] - status.beat)
        now[0] += 1.0  # the next slice

    model = Model()
    model.send(3, "first")
    clock = Clock(now=lambda: now[0], epoch=lambda: model.now, sleep=sleep)
    session = model.session(clock=clock)
    status = session.status
    monkeypatch.setattr(where, sliced, many)
    finish(lived(session))
    assert len(silences) > 20
    assert max(silences) <= 1.0


# Over a rebalance nothing is left to repeat while a shard waits, and without a proof it steps nothing more


def later(model: Model) -> None:
    model.send(2, "later")


class Held(Feed):
    """A rebalance begins in the middle of the first fetch; ``meanwhile`` happens before it has settled.

    ``read`` says to which offset the queries were tested by then, where not all are.
    """

    status: ShardStatus
    model: Model
    meanwhile: Callable[[Model], None]
    read: int | None

    def __init__(self, broker) -> None:
        super().__init__(broker)
        self.rebalances = 0
        self.fetched: list[int] = []

    @property
    def held(self) -> bool:
        return self._rounds == 1 and self.rebalances == 0

    async def settled(self) -> None:
        self.rebalances += 1
        read = len(list(self._broker.read("t"))) if self.read is None else self.read
        assert (self.status.outbox, self.status.offsets) == (0, {"t": read})
        self.meanwhile(self.model)

    async def fetch(self, topics, patience, max_records=None):
        found = await super().fetch(topics, patience, max_records)
        self.fetched.append(len(found.get("t", ())))
        return found


def stage(meanwhile: Callable[[Model], None] = later, *, opened: bool = True, read: int | None = None):
    model = Model(declared(PLAIN))
    if opened:
        model.send(1, "before", value=0)
        model.serve()
    model.send(3, "first", value=0 if opened else 90_000)
    session = model.session(Held)
    status = session.status
    ours = session.feed
    ours.status, ours.model, ours.meanwhile, ours.read = status, model, meanwhile, read
    return model, session, ours, status


def test_the_shard_stands_by_with_nothing_left_and_goes_on_where_it_was() -> None:
    _, session, feed, status = stage()
    finish(session.open())
    engine = session.engine
    finish(session.run())
    assert feed.rebalances == 1
    assert feed.fetched[:2] == [3, 2]
    assert status.offsets == {"t": 6}
    assert session.engine is engine


def test_what_takes_more_commits_than_the_one_under_way_is_read_again() -> None:
    model, session, feed, status = stage(opened=False, read=0)  # the run is open, and nothing tested
    finish(lived(session))
    assert feed.fetched[:2] == [3, 5]
    assert status.offsets == {"t": 5}
    model.broker.settle()
    assert len(model.told(EventType.ALERT)) == 5


def test_whoever_lost_the_shard_meanwhile_steps_nothing_more() -> None:
    def taken(model: Model) -> None:
        other = model.session()
        finish(other.open())
        later(model)

    _, session, feed, _ = stage(taken)
    finish(session.open())
    with pytest.raises(Fenced):
        finish(session.run())
    assert feed.fetched == [3]


def test_whoever_is_told_to_stop_while_it_waits_writes_nothing_more() -> None:
    written: list[int] = []

    def stopped(model: Model) -> None:
        written.append(len(list(model.broker.read("state", committed=False))))
        raise Stopped

    model, session, feed, _ = stage(stopped)
    finish(lived(session))
    assert feed.fetched == [3]
    assert [len(list(model.broker.read("state", committed=False)))] == written
