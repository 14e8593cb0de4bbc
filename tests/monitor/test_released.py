"""Released events: numbered without gaps, with permanent ids, and CloudEvents that decode to what was encoded."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from datetime import UTC, timedelta
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import (
    CHARGES_KEPT,
    UNKNOWN,
    Alert,
    Budget,
    EventType,
    Lifecycle,
    ReleasedStatus,
    decode,
    encode,
    event_in,
    received,
)
from stream_svt.monitor.state.mutes import FOR_EVER, UNTIL_RUN_ENDS
from stream_svt.monitor.takeover import change_spec
from stream_svt.privacy.loss import to_float
from tests.support import alerts
from tests.support.alerts import encoded
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, interrupted, mutes_of, spec_of, stream
from tests.support.released import account_of, alert, lifecycle

_TIME = "2026-01-05T12:00:00.000Z"


@pytest.fixture(scope="module")
def play() -> Play:
    """A play with nearly every type of event."""
    limit = "{names: [a, b, c], limit: 7, unit: one basket}"
    spec = spec_of(FORMS["plain"], FORMS["sweep"], FORMS["retry"], FORMS["limited"], datasets=limit)
    played = interrupted(spec, stream(3, 700), random.Random(4).randrange)
    for action in ("pause", "resume", "close", "resample", "raise-budget", "mute", "unmute"):
        named = {"limit": "8", "series": "tea", "until_word": "period"}
        operations.apply(played.engine, Command(id=action, action=Action(action), dataset="a", **named))
        played.commit()
    change_spec(played.engine, spec_of(FORMS["plain"] + ", beta: 0.2", FORMS["sweep"], datasets=limit))
    played.accept_loss(TOPIC, 900)
    played.engine.begin_state(2, "murmur2", "cluster")
    played.engine.adopt((3, "5f0c"))
    played.commit()
    played.retire(
        spec_of(FORMS["plain"] + ", beta: 0.2", FORMS["sweep"], datasets=limit.replace(", c]", "]"))
    )
    operations.apply(played.engine, Command(id="end", action=Action.CLOSE_APPLICATION, successor="next"))
    played.commit()
    return played


def test_every_type_of_event_is_seen(play):
    of_counts = {EventType.NOT_RENEWED, EventType.UNTESTED}  # see `test_not_renewed.py`
    of_counts |= {EventType.ALERT_ENDED, EventType.DECILES}  # tests/sources/test_ends.py, test_deciles.py
    assert {event.type for event in play.events} == {*EventType} - of_counts


def test_events_are_numbered_without_gaps_and_have_ids_of_their_own_made_of_public_parts_and_subjects(play):
    assert [event.sequence for event in play.events] == list(range(1, len(play.events) + 1))
    assert len({event.id for event in play.events}) == len(play.events)
    for event in play.events:
        data, about = event.data, event.data.dataset or "shard-0"
        assert event.id.startswith(
            f"app/{about}/{data.monitor}/{data.run}/" if data.dataset else f"app/{about}/"
        )
        series = data.series if isinstance(data, Alert) else None
        assert event.subject == (about if series is None else f"{about}/{series}")


def test_an_id_has_one_content_for_any_batching():
    """One monitor a dataset: then even what was never published is numbered the same at replay."""
    spec = spec_of(FORMS["retry"])
    contents: dict[str, set[bytes]] = defaultdict(set)
    for seed in range(5):
        for event in interrupted(spec, stream(3, 500), random.Random(seed).randrange).events:
            contents[event.id].add(msgspec.json.encode(event.data))
    assert all(len(content) == 1 for content in contents.values())


def test_an_event_is_a_cloud_event_and_decodes_to_what_was_encoded(play):
    for event in play.events:
        record = encode(event, application="app", shard=0, time=_TIME, origin="1-00000000000000aa")
        content = json.loads(record)
        known = {"specversion": "1.0", "source": "/stream-svt/app", "datacontenttype": "application/json"}
        known |= {"id": event.id, "type": event.type.value, "subject": event.subject, "time": _TIME}
        assert content == content | known
        found = decode(record)
        assert (found.id, found.sequence, found.shard) == (event.id, event.sequence, 0)
        assert found.data == event.data
        assert type(found.data) is type(event.data)


def changed(**fields: object) -> bytes:
    document = msgspec.json.decode(encoded(1, alerts.alert()))
    return msgspec.json.encode({**document, **fields})


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"not json",
        b"{}",
        b'{"specversion": "1.0"}',
        b"[]",
        b"\xff\xfe",
        b'{"id":"\xff"}',
        encoded(1, alerts.alert())[:-1] + b',"more":"\xff"}',
        b"[" * 60_000,
        b'{"data":' + b"[" * 60_000,
        b'{"other":' + b'{"a":' * 60_000,
        changed(time="yesterday"),
        changed(time="2026-01-05T10:00:00"),
        changed(time="0001-01-01T00:00:00+14:00"),
        changed(time="9999-12-31T23:59:59-01:00"),
        changed(time="9999-12-31T23:59:59.999999+00:00"),
        changed(source="/somebody-else/x"),
        changed(data={"dataset": "shop"}),
        changed(id=7),
        *(changed(sequence=number) for number in (-1, 0, 1 << 63, (1 << 64) - 1)),
    ],
)
def test_a_record_that_is_not_an_event_does_not_decode(record: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(record)
    assert received(record) is event_in(record) is None


@pytest.mark.parametrize("time", ["1970-01-01T00:00:00+00:00", "9998-12-31T23:59:59.999999-00:00"])
def test_the_times_of_events_can_be_shown_in_every_time_zone(time: str) -> None:
    assert (decode(changed(time=time)).time + timedelta(hours=14)).astimezone(UTC)


@pytest.mark.parametrize(
    ("content", "data"),
    [({"new": [1]}, UNKNOWN), (alerts.lifecycle("x"), alerts.lifecycle("x"))],
    ids=["another form", "the usual form"],
)
def test_an_event_of_a_newer_service_is_received_and_counts_only_in_the_usual_form(content, data) -> None:
    """Who adds charges up must not take an event for one without a charge."""
    record = changed(type="io.stream-svt.later.v1", data=content)
    assert received(record, 2, 41) == msgspec.structs.replace(decode(record), partition=2, offset=41)
    assert decode(record).data == data
    assert (event_in(record) is None) is (data is UNKNOWN)


def test_a_record_does_not_choose_its_position() -> None:
    assert (decode(changed(partition=7, offset=9)).partition, decode(changed(offset=9), 1, 2).offset) == (
        -1,
        2,
    )


def test_an_alert_holds_outcome_price_and_law_but_no_value_and_no_noise(play):
    alert = play.alerts()[0]
    assert set(alert.__struct_fields__) == {
        "dataset", "monitor", "series", "query_id", "position", "threshold", "correction", "gap", "branch",
        "attempt", "threshold_noise", "query_noise", "estimate", "bound", "beta", "run", "number",
        "muted_until", "account", "spec_hash", "severity", "watched_until",
    }  # fmt: skip
    assert alert.gap >= 0
    assert alert.attempt >= 1
    assert alert.bound is not None
    assert alert.bound <= alert.threshold + alert.correction + alert.gap + 1


@pytest.mark.parametrize("form", ["plain", "fine", "coarse"])
def test_an_alert_is_in_real_units(form):
    spec = spec_of(FORMS[form])
    (monitor,) = spec.monitors
    played, step = interrupted(spec, stream(3, 400), random.Random(1).randrange), monitor.granularity
    alerts, (branch,) = played.alerts(), monitor.mechanism().branches
    on_grid = {float(math.ceil(given / step) * step) for given in (500, 450, Fraction(1201, 2))}
    assert {alert.threshold for alert in alerts} <= on_grid
    assert {alert.correction for alert in alerts} == {float(branch.correction(0) * step)}
    assert all((Fraction(alert.gap) / step).denominator == 1 for alert in alerts)
    highest = max(alerts, key=lambda alert: alert.gap)  # a value above the upper bound, 100,000
    reached = highest.threshold + highest.correction + highest.gap
    for amount in (reached, highest.bound, highest.estimate):
        assert amount == pytest.approx(100_000, rel=0.02)


def test_bounds_and_estimates_are_certified_with_exponential_threshold_noise_only():
    for form, certified in (("plain", True), ("laplace", False)):
        played = interrupted(spec_of(FORMS[form]), stream(3, 400), random.Random(1).randrange)
        alerts = played.alerts()
        assert alerts
        assert any(alert.bound is not None for alert in alerts) == certified
        assert all((alert.bound is None) == (alert.estimate is None) for alert in alerts)


@pytest.mark.parametrize(
    "form", ["plain", "muted for the run", "muted for a while", "never muted", "few mutes", "few short mutes"]
)
def test_the_alerts_tell_which_series_are_muted(form):
    spec = spec_of(FORMS[form])
    played = interrupted(spec, queries := stream(3, 250), random.Random(1).randrange)
    [monitor], (runner,), held = spec.monitors, played.engine.runners.values(), {}
    for top in played.alerts():
        clock_ms = max(query.time_ms for query in queries[: top.position.offset + 1])
        assert not isinstance(top.muted_until, int) or top.muted_until == clock_ms + 2_000
    for event in played.events:
        ends = held.setdefault(event.data.dataset, {})
        if event.type in (EventType.RUN_HALTED, EventType.RUN_CLOSED):
            held[event.data.dataset] = {name: end for name, end in ends.items() if end != "run"}
        elif isinstance(event.data, Alert) and event.data.muted_until is not None:
            ends.pop(event.data.series, None)
            ends[event.data.series] = event.data.muted_until
    shown = {FOR_EVER: "period", UNTIL_RUN_ENDS: "run"}
    for dataset, number in played.engine.number.items():
        ends = {runner.runs.mutes.hash_of(series): end for series, end in held.get(dataset, {}).items()}
        told = list(ends.items())[-monitor.max_mutes :]
        muted = [(name, shown.get(end, end)) for name, end in mutes_of(runner, number)]
        assert _holding(told, runner.clock_ms) == _holding(muted, runner.clock_ms)
    assert any(map(len, held.values())) == (form != "never muted")


def _holding(ends, clock_ms):
    """Return the mutes that hold at a clock."""
    return [(name, end) for name, end in ends if isinstance(end, str) or end > clock_ms]


def test_reasons_are_a_fixed_set_of_words(play):
    reasons = {event.data.reason for event in play.events if isinstance(event.data, Lifecycle)}
    assert reasons <= {
        "first-start", "first", "resampled", "cutoff", "schedule", "command", "removed", "loss",
        "budget", "max-runs", "alert", "accepted", "refused", "added", "changed",
        "configuration", "application-closed",
    }  # fmt: skip


# What a reader of events knows: the books and the states that the engine has, whatever happened to it


DATASETS = {
    "epsilon": "{names: [a, b, c], limit: 3, unit: one basket}",
    "rho": "{names: [a, b, c], limit: {rho: 1.2}, unit: one basket}",
}
HIGH, LOW = 900, 0

queries = st.tuples(
    st.just("queries"),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([HIGH, HIGH, LOW])), max_size=12),
)
commands = st.tuples(
    st.sampled_from(["pause", "resume", "close", "resample", "raise-budget"]),
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "m0", "m1"]), st.integers(4, 9)),
)


def agrees(status: ReleasedStatus, play: Play) -> None:
    """Hold what was folded against the engine's views."""
    for view in play.views():
        budget = status.budgets[view.dataset]
        for name in ("measure", "limit", "spent", "reserved"):
            assert getattr(budget, name) == getattr(view, name)
        assert budget.left == max(view.limit - view.spent, 0.0)
        statuses = status.of_dataset(view.dataset)
        for one in view.monitors:
            found = statuses[one.monitor]
            shown = (found.shown, found.run, found.tops, found.halts)
            assert shown == (one.state, one.run, one.alerts, one.halts), (view.dataset, one.monitor)


def do(play: Play, step: tuple[str, object]) -> None:
    kind, what = step
    if kind == "queries":
        play.more(*[Query(dataset, value) for dataset, value in what])
        return
    dataset, monitor, limit = what
    raised = {"limit": str(limit)} if kind == "raise-budget" else {"monitor": monitor}
    operations.apply(play.engine, Command(id="c", action=Action(kind), dataset=dataset, **raised))
    play.commit()


@pytest.mark.parametrize("measure", list(DATASETS))
@settings(max_examples=60)
@given(steps=st.lists(st.one_of(queries, queries, commands), max_size=25))
def test_books_and_states_are_the_engines_after_every_commit(measure: str, steps: list) -> None:
    play, read = Play(spec_of(FORMS["never muted"], FORMS["plain"], datasets=DATASETS[measure])), 0
    declared = {
        one.name: Budget(to_float(one.terms.limit, one.terms.kind), one.terms.kind.measure)
        for one in play.spec.datasets
    }
    status = ReleasedStatus(declared, {monitor.name: list(declared) for monitor in play.spec.monitors})
    for step in steps:
        do(play, step)
        for event in play.events[read:]:
            record = encode(event, application="a", shard=0, time="2026-01-01T00:00:00Z", origin="1-a")
            status.take(decode(record))
        read = len(play.events)
        agrees(status, play)


# What the engine does not show

WEEK, OTHER = "week-1", "week-2"


@pytest.fixture
def status() -> ReleasedStatus:
    return ReleasedStatus({WEEK: Budget(4.0), OTHER: Budget(2.0)}, {"hot": [WEEK, OTHER], "rare": [WEEK]})


def take(status: ReleasedStatus, *records: bytes) -> None:
    for record in records:
        status.take(decode(record))


def test_a_dataset_without_events_has_its_declared_budget_and_idle_monitors(status: ReleasedStatus) -> None:
    assert (status.budgets[WEEK].left, status.budgets[WEEK].reported) == (4.0, False)
    assert {name: status.shown for name, status in status.of_dataset(WEEK).items()} == {
        "hot": "idle",
        "rare": "idle",
    }


def test_the_latest_charges_are_kept_with_their_time(status: ReleasedStatus) -> None:
    take(
        status, *[alert(WEEK, at=float(second), account=account_of(0.01 * second)) for second in range(1, 81)]
    )
    take(status, lifecycle(EventType.RESUMED, WEEK, at=99.0, account=account_of(0.8, charge=0.0)))
    charges = status.budgets[WEEK].charges
    assert len(charges) == CHARGES_KEPT
    assert charges[-1] == (80.0, 0.1)


def test_events_about_undeclared_datasets_and_monitors_are_ignored(status: ReleasedStatus) -> None:
    take(status, alert("unheard-of"), lifecycle(EventType.SPEC_CHANGED, "", monitor="hot"))
    assert set(status.budgets) == {WEEK, OTHER}
    assert set(status.of_dataset(WEEK)) == {"hot", "rare"}


def test_an_event_of_an_unknown_type_updates_the_account_and_no_state(status: ReleasedStatus) -> None:
    event = decode(lifecycle(EventType.RUN_STARTED, WEEK, account=account_of(0.7)))
    status.take(msgspec.structs.replace(event, type="io.stream-svt.something.new.v1"))
    assert status.budgets[WEEK].spent == 0.7
    assert status.of_dataset(WEEK)["hot"].shown == "idle"
