"""A session: takeovers, what it waits for, what a shard says of itself, and a rebalance; on the modelled log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.errors import ConfigError, ConfigurationBehind, RecordsUnreadable, TimestampAhead
from stream_svt.kafka.clients import Fenced
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import Bounds
from stream_svt.monitor.takeover import load
from stream_svt.protocol import session as session_module
from stream_svt.protocol.ports import Clock, Stopped
from stream_svt.protocol.records import Records
from stream_svt.protocol.shard_states import Cause, ShardStatus
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.datasets import RetiredDatasets
from stream_svt.worker.workload import AppliedWorkload
from tests.simulation.log import finish, lived
from tests.simulation.model import COMMON, PLAIN, Feed, Model, declared, has, rest
from tests.simulation.script import Script
from tests.simulation.world import ModelWorkload, Process, World


def test_everything_that_was_charged_is_published_before_a_takeover_charges_anything() -> None:
    model = Model(declared(f"{{name: hot, {COMMON}}}"))
    model.send(5, "a")
    model.serve()
    account = model.journal()
    records = finish(account.open())
    workload = AppliedWorkload(model.spec, Partitioning(1, "murmur2"))
    assert list(workload.gather(0, RetiredDatasets()))
    engine = workload.engine(0, account.meta.noise_key)
    load(engine, records, account.meta.progress)
    for number in range(6):
        operations.apply(engine, Command(f"c{number}", (Action.PAUSE, Action.RESUME)[number % 2], "d0"))
    commit = engine.take_commit()
    assert len(commit.events) == 12
    finish(account.commit(commit))
    model.broker.mark("app-0", everything=True)

    model.serve(journal=model.journal(bounds=Bounds(published=2)))
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
    ("unread", "shown"), [(0, [0, 0, 1, 1]), (1_000_000, [0, 0, 1])], ids=["caught up", "behind"]
)
def test_an_alert_is_published_before_the_next_fetch_unless_the_shard_is_behind(
    unread: int, shown: list[int]
) -> None:
    model = Model(declared(f"{{name: hot, {COMMON}}}"))
    model.send(1, "a")
    found: list[int] = []

    def look(number: int) -> None:
        model.broker.settle()
        found.append(len(model.told(EventType.ALERT)))

    @contextlib.contextmanager
    def ahead() -> Iterator[None]:
        look(-1)
        yield
        look(-1)

    model.serve(feed=model.feed(unread=unread, hook=look), clock=replace(model.clock, ahead=ahead))
    # At a fetch, then where other shards get no turn, then at the next fetch.
    assert found[: len(shown)] == shown
    assert found[-1] == 1


@pytest.mark.parametrize(("few", "rests"), [(2000, False), (0, True)])
def test_an_alert_of_few_queries_is_committed_in_the_turn_in_which_they_were_tested(
    monkeypatch, few: int, rests: bool
) -> None:
    monkeypatch.setattr(session_module, "FEW", few)
    model = Model(declared(f"{{name: hot, {COMMON}}}"))
    model.send(1, "a")
    urgent, rested = list[bool](), list[bool]()

    @contextlib.contextmanager
    def ahead() -> Iterator[None]:
        urgent.append(True)
        yield
        urgent.pop()

    async def sleep(seconds: float) -> None:
        rested.append(bool(urgent))
        await rest(seconds)

    model.serve(clock=replace(model.clock, sleep=sleep, ahead=ahead))
    assert len(model.told(EventType.ALERT)) == 1
    assert any(rested) is rests


def test_other_shards_get_a_turn_between_the_batches_of_what_was_fetched() -> None:
    class OneByOne(QueryDecoder):
        def decode(self, records: Records) -> QueryBatch:
            return super().decode(records[:1])

    model, turns = Model(declared(HOT)), list[str]()
    model.send(9, "low", value=0)

    async def sleep(seconds: float) -> None:
        turns.append("rest")
        await rest(seconds)

    def watch(engine: Engine) -> None:
        step = engine.step
        engine.step = lambda batch: turns.append("step") or step(batch)  # type: ignore[func-returns-value, method-assign]

    workload = ModelWorkload(model.spec, decoder=OneByOne, watch=watch)
    model.serve(interval="60s", workload=workload, clock=replace(model.clock, sleep=sleep))
    assert turns.count("step") == 10  # the first one opens the run
    assert ["step", "step"] not in [turns[at : at + 2] for at in range(len(turns))]


@pytest.mark.parametrize(
    ("where", "sliced"), [(session_module, "load_in_slices"), (session_module, "change_spec_in_slices")]
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


def test_a_takeover_that_commits_between_the_runs_it_closes_shows_every_dataset() -> None:
    model = Model(declared(PLAIN, names="d0, d1, d2"))
    for name in ("d0", "d1", "d2"):
        model.send(1, name, dataset=name)
    model.serve()
    model.spec, model.version = declared(PLAIN, names="d0, d1"), (1, "digest")
    session = model.session()
    session.workload = ModelWorkload(
        model.spec, Partitioning(1, "murmur2"), model.version, bounds=Bounds(records=1)
    )
    finish(session.open())
    assert [view.spent > 0 for view in session.status.views.values()] == [True, True]


# Over a rebalance nothing is left to repeat while a shard waits, and without a proof it steps nothing more


def later(model: Model) -> None:
    model.send(2, "later")


class Held(Feed):
    """A rebalance begins in the middle of the first fetch; ``meanwhile`` happens before it has settled.

    ``read`` says to which offset the queries were tested by then, where not all are.
    """

    status: ShardStatus

    def __init__(self, model: Model, meanwhile: Callable[[Model], None], read: int | None) -> None:
        super().__init__(model.broker)
        self.model, self.meanwhile, self.read = model, meanwhile, read
        self.rebalances = 0
        self.fetched: list[int] = []

    @property
    def held(self) -> bool:
        return self._rounds == 1 and self.rebalances == 0

    async def wait_for_rebalance(self) -> None:
        self.rebalances += 1
        read = len(list(self._broker.read("t"))) if self.read is None else self.read
        assert (self.status.outbox, self.status.offsets) == (0, {"t": read})
        self.meanwhile(self.model)

    async def fetch(self, topics, max_wait, max_records=None):
        found = await super().fetch(topics, max_wait, max_records)
        self.fetched.append(len(found.get("t", ())))
        return found


def stage(meanwhile: Callable[[Model], None] = later, *, opened: bool = True, read: int | None = None):
    model = Model(declared(PLAIN))
    if opened:
        model.send(1, "before", value=0)
        model.serve()
    model.send(3, "first", value=0 if opened else 90_000)
    feed = Held(model, meanwhile, read)
    session = model.session(feed=feed)
    feed.status = session.status
    return model, session, feed, session.status


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


# Another configuration takes effect, and no query and no lost outcome slips between two versions

HOT = f"{{name: hot, mute: none, {COMMON}}}"
OTHER = HOT.replace("hot", "other")
ELSEWHERE = OTHER.replace("topic: t", "topic: u")
MUTED = HOT.replace("mute: none", "mute: 1h")


@pytest.mark.parametrize(("start_at", "seen"), [("earliest", 7), ("latest", 2)])
def test_a_monitor_on_a_new_topic_begins_where_it_is_told(start_at: str, seen: int) -> None:
    model = Model(declared(HOT), start_at=start_at)
    model.serve()
    model.send(2, "a")
    model.serve()
    model.send(5, "before", topic="u")
    model.broker.write("u", b"d0", b"{broken")
    model.spec = declared(HOT, ELSEWHERE)
    model.serve()
    model.send(2, "after", topic="u")
    model.serve(2)
    assert len(model.told(EventType.ALERT, "other")) == seen
    assert [entry.key for entry in model.broker.read("rejects")] == [b"u/5"] * (start_at == "earliest")


def test_a_topic_that_no_monitor_reads_before_the_replay_ends_shows_no_query() -> None:
    model = Model(declared(HOT))
    model.send(30, "low", value=0)
    model.dies_at(lambda content: bool(content.tested))
    model.spec = declared(HOT, ELSEWHERE)
    session = model.serve(feed=model.feed(rounds=2, most=5))
    assert session.status.read_ms == {"t": [*model.broker.read("t")][9].timestamp, "u": 0}


@pytest.mark.parametrize("removed", [ELSEWHERE, OTHER])
def test_a_lost_outcome_of_a_monitor_that_is_removed_is_computed_or_paid(removed: str) -> None:
    """Where its topic is read no more, nobody computes it; where it is, queries may name the monitor."""
    topic = "u" if removed is ELSEWHERE else "t"
    named = {} if removed is ELSEWHERE else {"monitor": "other"}
    model = Model(declared(HOT, removed))
    model.send(1, "low", topic, value=0, **named)
    model.serve()
    model.send(1, "top", topic, **named)
    model.dies_at(has(EventType.ALERT))
    model.spec = declared(HOT)
    model.serve(2)
    (closed,) = model.told(EventType.RUN_CLOSED, "other")
    tops = model.told(EventType.ALERT, "other")
    if removed is ELSEWHERE:
        assert (closed["reason"], closed["account"]["charge"], tops) == ("unread", 0.6, [])
    else:
        assert (closed["reason"], len(tops)) == ("removed", 1)


@pytest.mark.parametrize(("crash", "alerts"), [(False, 0), (True, 1)])
def test_what_nobody_read_before_a_stop_in_order_is_read_under_the_next_configuration(
    crash: bool, alerts: int
) -> None:
    """After a crash nobody knows what was read: the top may have been computed and lost."""
    model = Model(declared(HOT))
    model.send(5, "low", value=0)
    model.serve()
    if crash:
        model.send(1, "lower", value=0)
        model.dies_at(lambda _: True, after=True)
    model.send(1, "top")
    model.spec = declared(HOT.replace("threshold: 500", "threshold: 99999"))
    model.serve(2)
    assert len(model.told(EventType.ALERT)) == alerts


@pytest.mark.parametrize("rested", [True, False], ids=["maintenance is removed", "maintenance is declared"])
def test_what_an_owner_may_have_read_is_tested_or_not_as_it_was(rested: bool) -> None:
    """A lost top is computed again, and what was not tested stays so, whatever was applied meanwhile."""
    resting = f"{HOT[:-1]}, maintenance: [{{from: 2026-01-01T00:00Z, until: 2027-01-01T00:00Z}}]}}"
    old, new = (resting, HOT) if rested else (HOT, resting)
    model = Model(declared(old))
    model.send(1, "low", value=0)
    model.serve()
    model.send(1, "top")
    model.dies_at(lambda content: bool(content.skipped) if rested else has(EventType.ALERT)(content))
    model.spec = declared(new)
    model.serve(2)
    model.send(1, "later")
    model.serve(2)
    assert [alert["query_id"] for alert in model.told(EventType.ALERT)] == ["later0" if rested else "top0"]


@pytest.mark.parametrize("crash", [False, True])
def test_a_refused_record_before_a_run_is_named_however_its_owner_ends(crash: bool) -> None:
    """The start of a run is stored in the middle of a batch: the records before that place are not read again."""
    model = Model(declared(HOT))
    model.broker.write("t", b"d0", b"{broken")
    model.send(1, "a")
    if crash:
        started = [False]

        def after_the_start(content: Any) -> bool:
            started.append(has(EventType.RUN_STARTED)(content))
            return started[-2]

        model.dies_at(after_the_start)
    model.serve(2)
    assert [entry.key for entry in model.broker.read("rejects")] == [b"t/0"]


def both_read(spec: ApplicationSpec) -> Model:
    model = Model(spec)
    model.send(1, "first", value=0)
    model.send(1, "first", "u", value=0)
    model.serve()
    return model


def paused_within_a_replay(spec: ApplicationSpec) -> Model:
    """A top of monitor hot was computed and lost; the next owner heard of a pause before it came there."""
    model = both_read(spec)
    model.send(20, "low", value=0)
    model.send(1, "top")
    model.dies_at(has(EventType.ALERT))
    model.serve_a_while(
        4, lambda number: number == 0 and model.command("p", action=Action.PAUSE, dataset="d0", monitor="hot")
    )
    return model


def assert_computed_before_it_closes(model: Model) -> None:
    """The pause waits until the lost outcome is computed again: a close after it gives nothing of it back."""
    model.serve(2)
    model.command("x", action=Action.CLOSE, dataset="d0", monitor="hot")
    model.serve(2)
    kinds = [event["type"] for event in model.events if event["data"]["monitor"] == "hot"]
    assert kinds.count(EventType.ALERT) == kinds.count(EventType.RUN_CLOSED) == 1
    assert kinds.index(EventType.ALERT) < kinds.index(EventType.PAUSED) < kinds.index(EventType.RUN_CLOSED)


BOTH = declared(HOT, ELSEWHERE)


def without_the_topic(model: Model) -> None:
    """Else a close would give back what the outcome costs that was computed and lost."""
    model.send(30, "more", "u", value=0)
    model.spec = declared(ELSEWHERE)
    model.serve_a_while(1)


def refused_configuration(model: Model) -> None:
    model.spec = declared(HOT.replace("topic: t", "topic: w"), ELSEWHERE)
    third = model.session()
    finish(third.open())
    with pytest.raises(ConfigError, match="cannot change"):
        finish(third.run())
    model.broker.mark("app-0", everything=True)


def lost_with_the_closing_of_its_monitors(model: Model) -> None:
    """Their removal at full price, and the end of the replay, are one transaction."""
    model.spec = declared(ELSEWHERE)
    model.dies_at(has(EventType.RUN_CLOSED))


@pytest.mark.parametrize(
    "another", [without_the_topic, refused_configuration, lost_with_the_closing_of_its_monitors]
)
def test_a_replay_owed_on_a_paused_topic_is_still_owed_after_another_configuration(
    another: Callable[[Model], None],
) -> None:
    model = paused_within_a_replay(BOTH)
    another(model)
    model.spec = BOTH
    assert_computed_before_it_closes(model)


def test_a_pause_under_a_configuration_without_the_topic_ends_no_replay() -> None:
    """What was running then may have been read further than anybody knows."""
    model = both_read(BOTH)
    model.dies_at(has(EventType.ALERT), opened=lambda: model.send(1, "top"))
    model.send(40, "more", "u", value=0)
    model.spec = declared(ELSEWHERE)
    model.command("p", action=Action.PAUSE, dataset="d0", monitor="hot")
    model.serve_a_while(3)
    model.spec = BOTH
    assert_computed_before_it_closes(model)


def test_a_state_that_just_began_adopts_no_older_version_and_no_other_of_its_number() -> None:
    """Its owner dies before the replay is over: the monitors of its version are stored already."""
    model = Model(BOTH, version=(2, "second"))
    model.dies_at(has(EventType.STATE_BEGUN), after=True)
    model.spec, model.version = declared(HOT), (1, "first")
    with pytest.raises(ConfigurationBehind, match="has adopted version 2"):
        finish(model.session().open())
    model.version = (2, "first")
    with pytest.raises(ConfigError, match="adopted another version 2"):
        finish(model.session().open())


# Lost queries wait to be accepted


def lost() -> Model:
    model = Model(declared(HOT, ELSEWHERE))
    for topic in "tu":
        model.send(1, topic, topic)
    model.serve()
    for topic in "tu":
        model.send(5, f"lost-{topic}", topic)
        model.broker.first[topic] = 4
    return model


def accept(model: Model, topic: str, offset: int, **fields) -> None:
    model.command(f"now-{topic}-{offset}", action=Action.ACCEPT_LOSS, topic=topic, offset=offset, **fields)


def test_an_acceptance_of_another_loss_accepts_nothing_and_uses_its_number_up() -> None:
    model = lost()
    accept(model, "t", 0)
    assert model.waits().cause is Cause.RECORDS_LOST
    assert model.told(EventType.LOSS_ACCEPTED) == []
    message = "the shard does not wait for offset 0 of topic 't'; nothing was changed"
    assert model.replies() == [("refused", 1, message)]


def test_each_lost_topic_needs_an_acceptance_of_its_own_and_the_answer_comes_at_once() -> None:
    model = lost()
    accept(model, "t", 1)
    status = model.waits()
    assert status.cause is Cause.RECORDS_LOST
    assert "--shard 0 --topic u --offset 1'" in status.reason
    assert "--topic t" not in status.reason
    assert model.replies() == [("accepted", 1, "reading goes on: t at offset 4")]
    accept(model, "u", 1)
    model.serve()
    found = model.told(EventType.LOSS_ACCEPTED)
    assert [(event["detail"]["topic"], event["detail"]["offset"]) for event in found] == [("t", 4), ("u", 4)]
    assert model.replies()[1:] == [("accepted", 2, "reading goes on: u at offset 4")]


def test_what_else_comes_while_records_are_lost_stays_in_line() -> None:
    model = lost()
    model.command("pause", action=Action.PAUSE, dataset="d0", now=True)
    model.waits(lambda number: number == 2 and accept(model, "t", 1))
    assert model.told(EventType.PAUSED) == []
    assert [number for _, number, _ in model.replies()] == [1]
    model.command("pause again", action=Action.PAUSE, dataset="d0")
    accept(model, "u", 1)
    model.serve(2)
    assert [(reason, number) for reason, number, _ in model.replies()] == [("accepted", 1), ("accepted", 2)]
    assert model.told(EventType.PAUSED) == []
    rejected = [entry.value for entry in model.broker.read("rejects")]
    assert rejected == [b"command-stale"] * 2


def test_what_precedes_records_that_cannot_be_read_is_committed_before_the_session_ends() -> None:
    model = Model(declared(HOT))
    model.send(5, "a", value=1)

    def unreadable(number: int) -> None:
        if number == 5:
            raise RecordsUnreadable("damaged")

    owner = model.session(interval="60s", feed=model.feed(hook=unreadable, most=1))
    finish(owner.open())
    with pytest.raises(RecordsUnreadable, match="damaged"):
        finish(owner.run())
    model.broker.settle()
    successor = model.session()
    finish(successor.open())
    assert successor.engine.next_offset("t") == 5


# Queries stamped far ahead of the clock


def stamped_ahead(model: Model, seconds: float, name: str, dataset: str = "d0") -> None:
    """Send a query while the broker's clock is so far ahead."""
    model.now += seconds
    model.send(1, name, dataset=dataset, series=name)
    model.now -= seconds


def alerts(model: Model) -> list[int]:
    return [data["position"]["offset"] for data in model.told(EventType.ALERT)]


def refused_ahead(model: Model) -> TimestampAhead:
    session = model.session()
    finish(session.open())
    with pytest.raises(TimestampAhead) as ahead:
        finish(session.run())
    model.broker.settle()
    return ahead.value


def test_what_comes_before_a_query_stamped_far_ahead_is_tested_and_that_one_waits_for_the_clock() -> None:
    model = Model(declared(MUTED))
    model.send(1, "a", series="a")
    stamped_ahead(model, 610, "early")
    model.send(1, "b", series="b")
    error = refused_ahead(model)
    assert "the record at offset 1 of 't' is stamped 6" in str(error)
    assert error.passes_at == pytest.approx(model.now + 10, abs=2)
    refused_ahead(model)  # and again: the place is stored
    assert alerts(model) == [0]
    model.now = error.passes_at
    model.serve(2)
    assert alerts(model) == [0, 1, 2]


@pytest.mark.parametrize(("monitor", "seconds"), [(MUTED, 590), (HOT, 10**9)])
def test_what_is_a_little_ahead_is_tested_and_anything_where_no_duration_is_measured(
    monitor: str, seconds: float
) -> None:
    model = Model(declared(monitor))
    stamped_ahead(model, seconds, "early")
    model.serve(2)
    assert alerts(model) == [0]


PERIODS = "  - {generate: 'd{date}', from: 2026-09-21, limit: 5, unit: one basket}\n"


@pytest.mark.parametrize("more", ["", PERIODS])
def test_a_stamp_far_ahead_of_before_durations_count_ends_no_mute_and_no_period(more: str) -> None:
    """As in nanoseconds, on a topic whose monitors have no durations yet."""
    first = "application: app\ndatasets:\n  - {name: d0, limit: 5, unit: one basket}\n"
    model = Model(load_spec(f"{first}monitors:\n  - {HOT}\n"))
    stamped_ahead(model, 10**15, "early", "d0")
    model.serve(2)
    model.spec = load_spec(f"{first}{more}monitors:\n  - {MUTED if not more else HOT}\n")
    model.version = (1, "later")
    model.serve()
    dataset = "d2026-09-21" if more else "d0"
    model.send(1, "a", dataset=dataset, series="a")
    model.send(1, "b", dataset=dataset, series="a")
    model.serve()
    model.now += 3_600 + 601
    model.send(1, "c", dataset=dataset, series="a")
    model.serve(2)
    assert alerts(model) == ([0, 1, 2, 3] if more else [0, 1, 3])


def test_a_period_ends_for_no_query_stamped_behind_its_end() -> None:
    """The model begins on 21 September 2026."""
    periods = "{generate: 'd{date}', from: 2026-09-21, until: 2026-09-23, limit: 5, unit: one basket}"
    spec = load_spec(f"application: app\ndatasets: [{periods}]\nmonitors:\n  - {HOT}\n")
    model = Model(spec)
    model.now += 86_400 - model.now % 86_400 - 3_600  # an hour before midnight
    stamped_ahead(model, 3_700, "early", "d2026-09-22")
    refused_ahead(model)
    model.broker.first["t"] = 1
    assert alerts(model) == []


def test_a_session_announces_a_pause_on_a_dataset_that_its_configuration_covers_again() -> None:
    covering = {
        more: declared(f"{{name: hot, {COMMON}{more}}}", names="a, b") for more in ("", ", datasets: [a]")
    }
    model = Model(covering[""])
    model.send(1, "low", value=0, dataset="b")
    model.serve()
    model.command("pause", dataset="b", action=Action.PAUSE)
    model.serve()
    for number, more in enumerate((", datasets: [a]", "", ""), 1):
        model.spec, model.version = covering[more], (number, f"{number}")
        model.serve()
    told = [data["reason"] for data in model.told(EventType.PAUSED)]
    assert told == ["command", "covered"]
