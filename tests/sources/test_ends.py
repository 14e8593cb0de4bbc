"""Incidents that end by tests of their own: what is reported and charged, in which order, and what an operator does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
from msgspec import structs

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.columns.strings import TextList
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType, encode, received
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.monitor.state.plan import Plan, end_of
from stream_svt.monitor.takeover import change_spec, take_mutes
from stream_svt.protocol.history.audit import Audit
from stream_svt.protocol.history.carry_over import ShardHistory, carry_over
from stream_svt.protocol.records import OneRecord
from stream_svt.protocol.state_records import Closed
from stream_svt.proving.neighbours import Summary, check_case
from stream_svt.proving.streams import Case, ScriptStep, StepTo
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import parse
from stream_svt.settings.periods import DAY_MS
from stream_svt.settings.questions import Question, rows_of
from stream_svt.sources.counts import CountsRecord
from tests.support import alerts, counter_of_questions
from tests.support.counter_of_questions import SOURCE, T
from tests.support.ended import (
    HIGH,
    LONG,
    QUIET,
    TOPIC,
    WHOLE,
    Feed,
    application,
    decoder_of,
    record,
    written,
)

_TIME = "2026-01-05T12:00:00.000Z"
DAILY = 'generate: "web-{date}", from: 2026-09-01, lateness: 1h'


def test_an_incident_costs_two_charges_however_long_it_is():
    spec = application()
    feed = Feed(spec).read(written(spec, LONG))
    assert feed.tops == [("alert", "/", 1), ("ended", "/", 41)]
    [end] = feed.ends
    assert (end.monitor, end.detail["below"], end.detail["series"]) == ("m.end", 400, "/")
    assert 100 <= end.detail["bound"] < 400
    assert end.detail["gap"] >= 0
    ledger = feed.play.ledger()
    runs = [feed.play.runs(name).plan.mechanism for name in ("m", "m.end")]
    assert ledger.spent == sum(one.threshold_units + one.largest_units for one in runs)
    feed.read(written(spec, [*LONG, HIGH]))
    assert feed.tops[2:] == [("alert", "/", 43)]  # it is tested again


def test_an_end_at_zero_has_no_sign():
    spec = application()
    plan = Plan.of(spec.monitors[0])
    end = end_of(alerts.alert(threshold=0.0, bound=0.0, estimate=0.0), plan)
    assert [str(end.detail[name]) for name in ("below", "bound", "estimate")] == ["0.0"] * 3


def test_an_audit_knows_ends_and_their_prices():
    spec = application()
    events = Feed(spec).read(written(spec, LONG)).play.events
    for free in (False, True):
        audit = Audit(monitors=spec.monitors)
        for event in events:
            shown = event
            if free and event.type == EventType.ALERT_ENDED:
                account = structs.replace(event.data.account, charge=0.0)
                shown = structs.replace(event, data=structs.replace(event.data, account=account))
            audit.add(0, event.sequence, encode(shown, application="web", shard=0, time=_TIME, origin="o"))
        assert bool(audit.findings) is free
    lacking = structs.replace(events[0], type=EventType.ALERT_ENDED)
    assert received(encode(lacking, application="web", shard=0, time=_TIME, origin="o")) is None


def successor(feed: Feed, spec: ApplicationSpec, application: str = "next") -> Feed:
    """Return an engine of an application that takes over what an engine released, and continues where that stopped."""
    shown = ShardHistory(spec.application, 0, lambda *_: False, closed=Closed(application, 0, ""))
    for event in feed.play.events:
        value = encode(event, application=spec.application, shard=0, time=_TIME, origin="o")
        shown.take(OneRecord(event.sequence, T, b"web", value))
    options = {"cluster": "c", "alerts": "web.alerts", "home": lambda _: 0, "now_ms": T}
    carried, _ = carry_over(spec, [shown], successor=application, **options)
    found = Feed(replace(spec, application=application, carried=parse([*carried.lines()])))
    found.play.engine.advance(TOPIC, feed.play.engine.next_offset(TOPIC) or 0)
    assert [*take_mutes(found.play.engine)] == [None] * len(carried.mutes)
    found.play.commit()
    return found


def test_a_successor_tests_for_the_ends_of_incidents_that_it_takes_over():
    spec = application()
    feed = Feed(spec).read(written(spec, LONG[:30]))
    for name in ("next", "third"):  # the third by the file of the second, which reads nothing
        feed = successor(feed, feed.play.spec, name)
    feed.read(written(spec, [*LONG, HIGH]), random.Random(1))
    assert feed.tops == [("ended", "/", 41), ("alert", "/", 43)]
    assert feed.ends[0].detail["carried_from"] == "next"
    assert "carried_from" not in Feed(spec).read(written(spec, LONG)).ends[0].detail


def test_a_successor_goes_on_with_no_incident_that_is_over_and_with_no_mute_of_an_operator():
    spec = application()
    over = successor(Feed(spec).read(written(spec, LONG)), spec)
    assert over.read(written(spec, [*LONG, HIGH])).tops == [("alert", "/", 43)]
    muted = Feed(spec).read(written(spec, [HIGH]))
    muted.command(Action.MUTE, monitor="m", series="/", until_word="period")
    assert not successor(muted, spec).read(written(spec, [HIGH, QUIET, QUIET])).tops
    unmuted = Feed(spec).read(written(spec, [HIGH]))
    unmuted.command(Action.UNMUTE, monitor="m", series="/")
    assert successor(unmuted, spec).read(written(spec, [HIGH, QUIET, HIGH])).tops == [("alert", "/", 2)]


def test_a_successor_without_end_keeps_the_mute():
    spec = application()
    first = Feed(spec).read(written(spec, [HIGH]))
    without = replace(spec, monitors=(spec.monitors[0].model_copy(update={"end": None}),))
    assert not successor(first, without).read(written(spec, [HIGH, QUIET, QUIET, HIGH])).tops


def test_nothing_is_charged_for_ends_before_an_alert():
    spec = application()
    feed = Feed(spec).read(written(spec, [QUIET] * 30))
    assert not feed.play.commits[-1].tested["m.end"]
    assert feed.play.run_state(0, "m.end").runs == 0


def test_an_end_that_nobody_can_pay_is_left_to_the_longest_time():
    spec = application("below: 400, longest: 6h, epsilon: 40, cutoff: 5", limit=55)
    feed = Feed(spec)
    feed.play.engine.accounts.account(0).ledger.charge(45 * 10**9)
    feed.play.commit()
    feed.read(written(spec, [HIGH, *[QUIET] * 7, HIGH]))
    assert feed.tops == [("alert", "/", 0), ("alert", "/", 8)]
    assert [event.data.monitor for event in feed.play.events if event.type == EventType.EXHAUSTED] == [
        "m.end"
    ]


def test_an_incident_is_over_where_all_windows_are_below():
    """The alert needs the smallest of three windows, the end the largest."""
    spec = application(more="for: 3,")
    counts = [HIGH, HIGH, HIGH, QUIET, HIGH, QUIET, QUIET, QUIET, QUIET]
    assert Feed(spec).read(written(spec, counts)).tops == [("alert", "/", 2), ("ended", "/", 7)]


def test_an_end_by_the_smallest_window_would_be_seen_too_early(monkeypatch):
    monkeypatch.setattr(Question, "ending", lambda self: structs.replace(self, ends=True))
    spec = application(more="for: 3,")
    counts = [HIGH, HIGH, HIGH, QUIET, HIGH, HIGH, HIGH]
    assert ("ended", "/", 3) in Feed(spec).read(written(spec, counts)).tops


def test_incidents_end_with_their_period_and_are_charged_again_in_the_next():
    spec = application(datasets=DAILY)
    spec = replace(spec, datasets=(*spec.generators[0].periods(T, T + DAY_MS + 1),))
    feed = Feed(spec).read(written(spec, [*[QUIET] * 20, *[HIGH] * 8, QUIET]))
    names = [event.data.dataset for event in feed.play.events if event.type in WHOLE]
    assert [kind for kind, *_ in feed.tops] == ["alert", "alert", "ended"]
    assert len({*names}) == 2
    assert names[1] == names[2]


def histories(spec: ApplicationSpec, counts: Sequence[Sequence[int]], seeds: int) -> list[list[object]]:
    """Return the events of each dataset, as one engine reads the records at once, and others with restarts."""
    records, small = written(spec, counts), Bounds(runs=1, records=3, rejects=3, cost=3)
    feeds = [Feed(spec).read(records)]
    feeds += [
        Feed(spec, small if seed % 2 else BOUNDS).read(records, random.Random(seed)) for seed in range(seeds)
    ]
    return [
        [(event.id, event.type, event.data) for event in feed.play.events if event.data.dataset]
        for feed in feeds
    ]


def changing(rng: random.Random, windows: int) -> list[tuple[int, int]]:
    return [(rng.choice((100, 380, 420, 900)), rng.choice((100, 390, 410, 900))) for _ in range(windows)]


@pytest.mark.parametrize("more", ["", "for: {windows: 2, at_least: 1},"])
def test_the_same_incidents_end_whatever_is_read_at_once_and_however_often_an_engine_restarts(more):
    spec = application("below: 400, longest: 9h", more, limit=900)
    first, *others = histories(spec, changing(random.Random(1), 60), 8)
    assert Counter(kind for _, kind, _ in first)[EventType.ALERT_ENDED] > 5
    assert all(other == first for other in others)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("cutoff", "runs"), [(5, 1), (1, 2)])
def test_an_incident_ends_once_though_rows_of_several_windows_are_tested_together(at_once, cutoff, runs):
    """Where records of the counts that alerts are about cannot be read, rows of ends follow one another."""
    spec = application(f"below: 400, cutoff: {cutoff}", limit=90)
    both = [(900, 900), (100, 900), (100, 100), (100, 100)]
    records = [
        one
        for number, one in enumerate(written(spec, both))
        if number < 3 or "measure" not in dict(one.headers)
    ]
    assert len(records) == 3 + 3
    feed = Feed(spec)
    for stop in [len(records)] if at_once else range(1, len(records) + 1):
        feed.read(records[:stop])
    assert feed.tops == [("alert", "/", 0), ("alert", "/a", 0), ("ended", "/", 1), ("ended", "/a", 2)]
    assert sum(one.tested["m.end"] for one in feed.play.commits) == 2 + 2 + 1
    assert feed.play.run_state(0, "m.end").runs == runs


def test_an_incident_ends_on_each_dataset_by_itself():
    spec = application(datasets="names: [web, shop]")
    tops = Feed(spec).read(written(spec, [HIGH, QUIET, HIGH])).tops
    assert tops == [*[("alert", "/", 0)] * 2, *[("ended", "/", 1)] * 2, *[("alert", "/", 2)] * 2]


def test_engines_that_do_not_read_measure_by_measure_differ(monkeypatch):
    """So that the order of both runs would follow from what was read at once."""
    monkeypatch.setattr(QueryBatch, "of_one_measure", lambda _, start, stop: stop)
    spec = application("below: 400, longest: 9h", "for: {windows: 2, at_least: 1},", limit=900)
    first, *others = histories(spec, changing(random.Random(1), 60), 4)
    assert any(other != first for other in others)


def test_a_pause_holds_for_the_ends_too():
    spec = application()
    feed = Feed(spec).read(written(spec, [HIGH, HIGH]))
    feed.command(Action.PAUSE, monitor="m")
    feed.read(written(spec, [HIGH, HIGH, QUIET, QUIET]))
    assert not feed.ends
    feed.command(Action.RESUME, monitor="m.end")
    feed.read(written(spec, [HIGH, HIGH, QUIET, QUIET, QUIET]))
    assert feed.tops == [("alert", "/", 0), ("ended", "/", 4)]
    feed.command(Action.CLOSE, monitor="m")
    assert not any(feed.play.runs(name).is_open(0) for name in ("m", "m.end"))


def test_a_mute_of_an_operator_is_ended_by_nothing_else():
    spec = application()
    feed = Feed(spec).read(written(spec, [HIGH]))
    feed.command(Action.MUTE, monitor="m", series="/", until_word="period")
    feed.read(written(spec, [HIGH, QUIET, QUIET]))
    assert not feed.ends
    feed.command(Action.UNMUTE, monitor="m", series="/")
    feed.read(written(spec, [HIGH, QUIET, QUIET, QUIET, HIGH]))
    assert feed.tops == [("alert", "/", 0), ("alert", "/", 4)]


def test_a_monitor_without_end_keeps_its_mutes_and_tests_for_no_end():
    spec = application()
    feed = Feed(spec).read(written(spec, [HIGH]))
    without = replace(spec, monitors=(spec.monitors[0].model_copy(update={"end": None}),))
    change_spec(feed.play.engine, without)
    feed.read(written(spec, [HIGH, QUIET, QUIET, HIGH]))
    assert feed.tops == [("alert", "/", 0)]
    change_spec(feed.play.engine, spec)
    feed.read(written(spec, [HIGH, QUIET, QUIET, HIGH, QUIET]))
    assert feed.tops == [("alert", "/", 0), ("ended", "/", 4)]


@dataclass(frozen=True)
class Written:
    """A record of counts, for the neighbour test."""

    record: CountsRecord

    @property
    def measure(self) -> str:
        headers = {name: content.decode() for name, content in self.record.headers}
        return headers["measure"] if "measure" in headers else rows_of(headers["monitor"])


PAIRS = (
    "measure: all, end: {below: 4, longest: 5m}, threshold: 5",
    "measure: all, share: {of: errors, above: 25%}, over: [1m, 3m], end: {below: 0, longest: 5m}, threshold: 1",
    "measure: all, for: 2, usual: {every: 2m, times: 2, factor: 1.5}, end: {below: 1, longest: 5m}, threshold: 1",
)


def test_one_unit_changes_incidents_by_no_more_than_was_charged():
    """A unit's events, or a part of them, through the counter and the engine: in both directions."""
    summary = Summary()
    for seed in range(24):
        rng = random.Random(seed)
        spec = load_spec(
            f"{{application: web, sources: [{{{SOURCE}}}], datasets: [{{name: web, limit: 900}}], monitors: "
            f"[{{name: m, source: s, epsilon: 12, cutoff: 4, max_runs: off, {PAIRS[seed % len(PAIRS)]}}}]}}"
        )
        plays = [counter_of_questions.Play(spec) for _ in range(2)]
        for number in range(14):
            others = [
                (f"u{n}", rng.choice(("/", "/a")), rng.choice((200, 500))) for n in range(rng.choice((1, 24)))
            ]
            own = [("x", rng.choice(("/", "/a")), rng.choice((200, 500))) for _ in range(rng.randrange(4))]
            for play, events in zip(plays, ([one for one in own if rng.random() < 0.3], own), strict=True):
                play.window(number, others + events)
        fewer, more = ({TOPIC: [Written(one) for one in play.counts]} for play in plays)
        script = script_of(len(fewer[TOPIC]), rng)
        for first, second, direction in ((fewer, more, Neighbours.UP), (more, fewer, Neighbours.DOWN)):
            case = Case(spec, script, (first, first), (second, second), (direction,))
            assert check_case(case, rng, summary, partial(decoded, decoder_of(spec))) is None, seed
    assert summary.alerts > 60
    assert summary.largest_cost > 0.3


def script_of(records: int, rng: random.Random) -> tuple[ScriptStep, ...]:
    script, last = list[ScriptStep](), 0
    while last < records:
        last = min(records, last + rng.randrange(1, 9))
        script += [StepTo(TOPIC, last), *rng.choice(((), ("commit",), ("crash", StepTo(TOPIC, last))))]
    return (*script, "commit")


def decoded(decoder: QueryDecoder, _: str, records: Sequence[Written], first: int) -> QueryBatch:
    batch = decoder.decode([record(one.record, offset) for offset, one in enumerate(records, first)])
    batch.query_id = TextList([f"q{offset}" for offset in batch.offset.tolist()])
    return batch
