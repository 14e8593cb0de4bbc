"""Offsets without a record at the end or the beginning of a partition: markers, aborted and compacted records.

A position passes them once they are read, so that a shard parks only where records are lost, its lag returns to zero,
and periods end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from stream_svt.errors import RecordsLost, StateRolledBack, UnreadableState
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.snapshot import ProgressRecord, from_bytes
from stream_svt.protocol import transactions
from stream_svt.protocol.shard_states import Cause
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.sections import CommitConfig
from stream_svt.worker.workload import AppliedWorkload
from tests.simulation.log import Fate, finish, lived
from tests.simulation.model import COMMON, PLAIN, Model, Stops, declared
from tests.simulation.world import CONTROL

STEP = 0.3
"""Seconds between two fetches."""
HOT = f"{{name: hot, mute: none, {COMMON}}}"
MANY = 3 * 2 * CommitConfig().max_records
"""Offsets that are more than a takeover replays."""


SPEC = declared(PLAIN)


@dataclass
class Shard(Model):
    """A shard whose queries come in transactions of producers."""

    spec: ApplicationSpec = SPEC

    def serve_on(
        self, hook: Callable[[int], object] = lambda number: None, rounds: int = 30, **parts: Any
    ) -> Any:
        """Let an owner read for some rounds, then stop; return its session, which may wait for no acceptance."""

        def passes(number: int) -> None:
            assert session.status.cause is not Cause.RECORDS_LOST, session.status.reason
            self.now += STEP
            self.broker.settle()  # the markers of what this shard writes
            hook(number)

        session = self.session(feed=self.feed(rounds=rounds, hook=passes), **parts)
        try:
            finish(lived(session))
        finally:
            finish(session.journal.close())
            self.broker.fence("app-0")
            self.broker.settle()
        return session

    def killed_after(self, rounds: int, hook: Callable[[int], object] = lambda number: None) -> None:
        """Let an owner read for some rounds, then die without handing over."""

        def dies(number: int) -> None:
            hook(number)
            if number == rounds:
                raise Stops

        with pytest.raises(Stops):
            self.serve_on(dies, rounds + 10)

    def write(self, fate: Fate, *values: int, topic: str = "t", name: str = "shop") -> None:
        """Write queries in one transaction of a producer."""
        bodies = [msgspec.json.encode({"id": f"q{value}", "value": value}) for value in values]
        self.broker.produce(name, topic, [(b"d0", body) for body in bodies], fate)

    @property
    def end(self) -> int:
        return self.broker.span("t")[1]

    def empty(self) -> None:
        """Delete everything that may be read, as retention does."""
        self.broker.first["t"] = self.end

    @property
    def stored(self) -> set[int]:
        """The stored positions."""
        progress = self.stored_meta().progress
        assert progress is not None
        return {at for at, row, _ in from_bytes(ProgressRecord, progress, key="meta").positions.values()}

    @property
    def commits(self) -> int:
        return sum(entry.key == b"meta" for entry in self.broker.read("state"))


def _committed(model: Shard) -> None:
    model.write(Fate.COMMITTED, 1, 90_000)


def _aborted(model: Shard) -> None:
    model.write(Fate.COMMITTED, 1)
    model.write(Fate.ABORTED, 2, 3)


def _aborted_without_records_before(model: Shard) -> None:
    model.write(Fate.ABORTED, 2, 3)


def _far_aborted(model: Shard) -> None:
    model.write(Fate.COMMITTED, 1)
    model.write(Fate.ABORTED, *range(MANY // 1000))
    for _ in range(30):
        model.write(Fate.ABORTED)
        model.write(Fate.ABORTED, 7)


def _compacted(model: Shard) -> None:
    for value in range(5):
        model.write(Fate.COMMITTED, value)
    model.broker.compact("t", 4, 6, 8)


def _marker_of_nothing(model: Shard) -> None:
    model.send(2, "a")
    model.broker.produce("shop", "t", [(b"d0", b"")], Fate.ABORTED)


TAILS = (_committed, _aborted, _aborted_without_records_before, _far_aborted, _compacted, _marker_of_nothing)


@pytest.mark.parametrize("write", TAILS)
@pytest.mark.parametrize("cadence", [None, "250ms"])
def test_a_quiet_topic_that_retention_emptied_has_lost_nothing(write, cadence) -> None:
    model = Shard()
    policy = CommitConfig(interval="100ms", cadence=cadence)
    clock = replace(model.clock, sleep=_sleeps(model))
    write(model)
    first = model.serve_on(policy=policy, clock=clock)
    assert first.status.lag == {"t": 0}
    assert model.stored == {model.end}
    model.empty()
    spent = model.spent
    second = model.serve_on(policy=policy, clock=clock)
    assert second.status.lag == {"t": 0}
    model.write(Fate.COMMITTED, 90_000)
    model.serve_on(policy=policy, clock=clock)
    assert sum(model.spent.values()) > sum(spent.values())
    assert not model.told(EventType.LOSS_ACCEPTED)


def _sleeps(model: Model) -> Any:
    async def sleep(seconds: float) -> None:
        model.now += seconds

    return sleep


@pytest.mark.parametrize("write", TAILS)
def test_it_has_lost_nothing_either_where_the_idle_owner_was_killed(write) -> None:
    model = Shard()
    write(model)
    model.killed_after(int(2 * transactions.POSITIONS_EVERY / STEP))
    assert model.stored == {model.end}
    model.empty()
    assert model.serve_on().status.lag == {"t": 0}


@pytest.mark.parametrize("write", TAILS)
def test_what_comes_without_a_record_while_an_owner_is_idle_is_passed_too(write) -> None:
    model = Shard()
    model.send(1, "first")

    def later(number: int) -> None:
        if number == 10:
            write(model)

    model.killed_after(10 + int(2 * transactions.POSITIONS_EVERY / STEP), later)
    assert model.stored == {model.end}
    model.empty()
    assert model.serve_on().status.lag == {"t": 0}


def test_where_records_are_gone_the_shard_parks() -> None:
    model = Shard()
    _committed(model)
    model.serve_on()
    model.write(Fate.COMMITTED, 90_000)
    model.empty()
    with pytest.raises(AssertionError, match="records of query topics are gone"):
        model.serve_on()


@pytest.mark.parametrize("fate", [Fate.COMMITTED, Fate.ABORTED])
def test_records_of_an_open_transaction_are_read_once_it_has_ended(fate) -> None:
    model = Shard()
    model.write(Fate.COMMITTED, 1)
    model.write(Fate.OPEN, *[90_000] * 5, name="open")
    model.write(Fate.COMMITTED, 90_000)
    session = model.serve_on()
    assert not model.told(EventType.ALERT)
    assert session.status.lag == {"t": 7}, "what waits behind it counts"

    def ends(number: int) -> None:
        if number == 3:
            producer = model.broker._producers["open"]
            model.broker.end("open", producer.epoch, fate)
            model.broker.settle()

    session = model.serve_on(ends)
    assert len(model.told(EventType.ALERT)) == (6 if fate is Fate.COMMITTED else 1)
    assert session.status.lag == {"t": 0}


@pytest.mark.parametrize("begins", [0, 2, 5])
def test_a_log_whose_beginning_was_compacted_or_deleted_is_read_from_what_it_holds(begins) -> None:
    model = Shard()
    for value in (1, 2, 90_000):
        model.write(Fate.COMMITTED, value)
    model.broker.compact("t", 0, 2)
    model.broker.first["t"] = begins
    assert model.serve_on().status.lag == {"t": 0}
    assert len(model.told(EventType.ALERT)) == (begins < 5)


@pytest.mark.parametrize("interval", ["100ms", "60s"])
def test_a_producer_that_aborts_without_end_costs_a_bounded_number_of_transactions(interval) -> None:
    model = Shard()
    model.send(1, "first", value=0)

    def aborts(number: int) -> None:
        for _ in range(int(STEP / 0.1)):
            model.write(Fate.ABORTED, 1)

    rounds = 400
    model.serve_on(rounds=rounds, policy=CommitConfig(interval=interval))
    idle = model.commits
    model.serve_on(aborts, rounds, policy=CommitConfig(interval=interval))
    every = max(transactions.POSITIONS_EVERY, CommitConfig(interval=interval).interval / 1000)
    assert rounds * STEP / every - 2 < model.commits - idle < 1.2 * rounds * STEP / every + 10
    assert model.stored == {model.end}


def test_an_idle_topic_costs_no_transaction() -> None:
    model = Shard()
    _committed(model)
    counts: list[int] = []
    model.serve_on(lambda number: counts.append(model.commits), 100)
    assert len({*counts[-60:]}) == 1


def test_the_end_marker_of_the_records_takes_no_transaction_more() -> None:
    model, plain = Shard(), Shard()
    _committed(model)
    plain.send(1, "a", value=1)
    plain.send(1, "b")
    for one in (model, plain):
        one.serve_on()
    assert model.commits == plain.commits


def test_a_period_ends_on_a_topic_that_ends_with_markers() -> None:
    """Also where a marker comes between the takeover and the first fetch, at each takeover."""
    model = Shard(
        load_spec(
            "application: app\ndatasets:\n"
            "  - {generate: 'shop-{date}', from: 2026-09-20, lateness: 1h, limit: 5, unit: one basket}\n"
            f"monitors:\n  - {HOT}\n"
        )
    )
    body = msgspec.json.encode({"id": "q", "value": 90_000})
    model.broker.produce("shop", "t", [(b"shop-2026-09-21", body)], Fate.COMMITTED)

    def aborts(number: int) -> None:
        model.write(Fate.ABORTED, 1)

    for _ in range(4):
        now_ms = int(model.now * 1000)
        workload = AppliedWorkload(model.spec, Partitioning(1, "murmur2"), version=(1, "one"), now_ms=now_ms)
        model.serve_on(aborts, workload=workload)
        model.write(Fate.ABORTED, 1)  # the next owner begins before the end
        model.now += 86_400
    retired = {event["dataset"] for event in model.told(EventType.RETIRED)}
    assert "shop-2026-09-21" in retired


# What an owner may have stepped is bounded before it is stepped


def test_a_batch_far_behind_the_last_one_is_stepped_once_its_bound_is_durable() -> None:
    model = Shard(declared(HOT))
    policy = CommitConfig(interval="60s", max_records=10)
    model.send(2, "low", value=0)
    model.serve_on(policy=policy)
    for _ in range(20):
        model.write(Fate.ABORTED, 1, 2)
    model.send(1, "high")
    session = model.session(policy=policy)
    bounds: list[tuple[int, int]] = []

    async def watch() -> None:
        await session.open()
        step = session.engine.step

        def stepped(batch: Any) -> Any:
            model.broker.settle()
            bounds.append((batch.end, model.stored_meta().read_to["t"]))
            return step(batch)

        session.engine.step = stepped
        await session.run()

    finish(watch())
    assert bounds
    assert all(end <= bound for end, bound in bounds), bounds


# A topic that is created again is another one, whatever its offsets are


@pytest.mark.parametrize("topic", ["alerts", "state"])
@pytest.mark.parametrize("filled", [0, 1, 200])
def test_a_topic_that_an_owner_writes_and_that_is_created_again_ends_its_session(topic, filled) -> None:
    """At its next transaction where the offsets go back; the next takeover refuses what is left in any case."""
    model = Shard(declared(HOT))
    model.send(3, "before")

    def anew(number: int) -> None:
        if number == 10:
            model.broker.make_anew(topic)
            for entry in range(filled):
                model.broker.write(topic, b"other/%d" % entry, b"no event")
            model.send(2, "after")

    if filled < 200:
        with pytest.raises(RecordsLost, match=f"of topic '{topic}', where earlier records end at"):
            model.serve_on(anew)
    else:
        model.serve_on(anew)
    with pytest.raises(UnreadableState):
        model.serve_on()


@pytest.mark.parametrize("copies", [False, True])
def test_an_alert_topic_that_is_created_again_while_nobody_runs_is_refused(copies) -> None:
    model = Shard(declared(HOT))
    model.send(3, "before")
    model.serve_on()
    alerts = [entry.value for entry in model.broker.read("alerts")]
    model.broker.make_anew("alerts")
    if copies:  # the newest events alone, where they were
        for value in [None] * 20 + alerts[-2:]:
            model.broker.write("alerts", b"", value)
    with pytest.raises(StateRolledBack, match="was created again after event"):
        model.serve_on()


def test_an_alert_topic_that_ends_too_early_is_refused_without_ids_too() -> None:
    model = Shard(declared(HOT))
    model.send(3, "before")
    model.serve_on()
    model.broker.partitions["alerts"] = model.broker.partitions["alerts"][:-2]
    with pytest.raises(StateRolledBack, match="does not show event"):
        model.serve_on()


def test_a_query_topic_that_is_created_again_and_filled_is_not_taken_for_the_old_one() -> None:
    model = Shard(declared(HOT))
    model.send(3, "before")
    model.serve_on()
    model.broker.make_anew("t")
    model.send(5, "after")
    with pytest.raises(
        AssertionError, match="from offset 3 of 't', which was created again and now holds 0 to 5"
    ):
        model.serve_on()
    model.command("c1", action=Action.ACCEPT_LOSS, topic="t", offset=3)
    model.serve()
    model.serve_on()
    assert len(model.told(EventType.ALERT)) == 8
    model.send(1, "more")
    assert model.serve_on().status.offsets == {"t": 6}


def test_a_query_topic_of_which_nothing_was_read_may_be_created_again() -> None:
    model = Shard(declared(HOT))
    model.serve_on()
    model.broker.make_anew("t")
    model.send(5, "after")
    model.serve_on()
    assert len(model.told(EventType.ALERT)) == 5


def test_a_control_topic_that_is_created_again_and_filled_is_read_from_its_beginning() -> None:
    model = Shard(declared(HOT))
    model.broker.write(CONTROL, b"", b"{}")
    model.serve_on()
    model.broker.make_anew(CONTROL)
    model.command("c1", action=Action.PAUSE, dataset="d0")
    for _ in range(3):
        model.broker.write(CONTROL, b"d0", b"{}")
    model.serve_on()
    assert [reply[1] for reply in model.replies()] == [1]
