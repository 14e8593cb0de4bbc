"""What a successor takes over, from events that were written by hand: balances, running periods, mutes, positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from stream_svt.monitor.released import PERIOD_OVER, EventType
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.history.carry_over import ShardHistory, carry_over, summary
from stream_svt.protocol.state_records import Closed
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import Carried, MonitorPosition, parse
from tests.support import alerts
from tests.support.alerts import account_of, lifecycle
from tests.support.generated_play import DAY_MS, START_MS, at, day

UNITS = Kind.PURE.units
MONITOR = (
    "{name: m, topic: t, epsilon: 1, sensitivity: 1, monotonic: true, bounds: [0, 9], threshold: 5, cutoff: 3, "
    "expected_queries: 99, max_mutes: 3}"
)
DAILY = "{generate: 'd-{date}', from: 2026-01-05, lateness: 6h, limit: 2, unit: one event}"
PLAIN = "{name: plain, limit: 5, unit: one event}"
NOON = at(3.5)
"""When the applications are closed: in the middle of day 3."""
PROOF = "a proof"


def spec_of(*datasets: str, carried: Carried | None = None) -> ApplicationSpec:
    head = "application: app\n" + ("carried_over: file\n" if carried else "")
    text = f"{head}datasets: [{', '.join(datasets)}]\nmonitors: [{MONITOR}]\n"
    return load_spec(text, read_names=lambda _: list(carried.lines()) if carried else [])


@dataclass(frozen=True)
class Event:
    """A record of the alert topic."""

    value: bytes
    timestamp: int = NOON


def events(*shown: tuple[str, Any], first: int = 1, proved: bool = True) -> Iterable[Event]:
    """Yield events of type and data, each of a transaction of its own, with the proofs that the owner makes."""
    for number, (kind, data) in enumerate(shown, start=first):
        event = {
            "specversion": "1.0",
            "id": f"app/{number}",
            "source": "/stream-svt/app",
            "type": kind,
            "subject": "",
            "time": "2026-01-08T12:00:00.000Z",
            "shard": 0,
            "sequence": number,
            "origin": f"{number}-00",
            "stateid": "00",
            "data": data,
        }
        proof = (
            {"proof": PROOF} if proved and kind in (EventType.BALANCE, EventType.APPLICATION_CLOSED) else {}
        )
        yield Event(msgspec.json.encode(event | proof))


BEGUN = (
    EventType.STATE_BEGUN,
    lifecycle("first-start", dataset="", detail={"partitions": 1, "partitioner": "murmur2", "cluster": "c"}),
)


def spent(
    kind: EventType, name: str, amount: float, *, reserved: float = 0, reason: str = "", limit: float = 2
) -> tuple[EventType, Any]:
    account = account_of(amount, amount, reserved=reserved, limit=limit)
    return kind, lifecycle(reason, dataset=name, account=account, detail={"unit": "one event"})


def closed(balances: int, **detail: Any) -> tuple[EventType, Any]:
    detail = {"successor": "next", "balances": balances, "positions": {}, "watermarks": {}} | detail
    return EventType.APPLICATION_CLOSED, lifecycle("command", dataset="", detail=detail)


def history(found: Iterable[Event], end: Closed | None = None) -> ShardHistory:
    shard = ShardHistory("app", 0, lambda proof, _: proof == PROOF, closed=end)
    for event in found:
        shard.take(event)
    shard.end()
    return shard


def left(
    shard: ShardHistory, *datasets: str, spec: ApplicationSpec | None = None, **changes: Any
) -> tuple[Carried, list[str]]:
    """Return what is carried over, read from its file."""
    options = {"cluster": "c", "alerts": "app.alerts", "successor": "next", "home": lambda _: 0, "now_ms": 0}
    carried, notes = carry_over(spec or spec_of(*datasets), [shard], **options | changes)
    assert parse(list(carried.lines())) == carried
    return carried, notes


def shares(carried: Carried) -> Mapping[str, tuple[float, float]]:
    """Return of each dataset what was spent, and its limit."""
    return {name: (one.spent / UNITS, one.limit / UNITS) for name, one in carried.datasets.items()}


# Balances


def test_without_a_proof_what_is_reserved_counts_as_spent() -> None:
    start = spent(EventType.RUN_STARTED, "plain", 0.4, reserved=0.6, limit=5)
    shown = [BEGUN, start, spent(EventType.RUN_CLOSED, "plain", 0.4, limit=5), closed(0)]
    carried, _ = left(history(events(*shown, proved=False), Closed("next", 4, "4-00")), PLAIN)
    assert shares(carried) == {"plain": (1, 5)}
    assert carried.complete


def test_a_dataset_without_an_event_behind_a_gap_has_nothing_left() -> None:
    """Its later charges may be among the events that are gone."""
    other = "{name: other, limit: 5, unit: one event}"
    before = events(BEGUN, spent(EventType.DECLARED, "plain", 0.5, limit=5))
    shown = [
        spent(EventType.RUN_STARTED, "other", 0.5, limit=5),
        spent(EventType.RUN_CLOSED, "other", 0.5, limit=5),
    ]
    behind = events(*shown, closed(0), first=7, proved=False)
    carried, notes = left(history([*before, *behind], Closed("next", 9, "9-00")), PLAIN, other)
    assert shares(carried) == {"plain": (5, 5), "other": (0.5, 5)}
    assert "Events before number 7 are missing" in notes[0]
    assert not carried.complete


# Periods


def closed_in_order(*shown: tuple[EventType, Any], **detail: Any) -> ShardHistory:
    balances = sum(kind is EventType.BALANCE for kind, _ in shown)
    return history(events(BEGUN, *shown, closed(balances, **detail)))


OVER = {"watermarks": {"d-{date}": at(3)}}
"""Days 0 to 2 are over."""


def test_the_period_in_progress_goes_on_with_its_balance() -> None:
    shown = [
        spent(EventType.DECLARED, day(2), 0.3),
        spent(EventType.RETIRED, day(2), 0.5, reason=PERIOD_OVER),
        spent(EventType.DECLARED, day(3), 0.4),
        spent(EventType.BALANCE, day(3), 0.57),
    ]
    carried, notes = left(closed_in_order(*shown, **OVER), DAILY)
    assert notes == []
    assert shares(carried) == {day(3): (0.57, 2)}
    assert (carried.watermarks, carried.begun) == ({"d-{date}": at(3)}, {"d-{date}": at(4)})
    successor = spec_of(DAILY, carried=msgspec.structs.replace(carried, successor="app"))
    assert [successor.find(day(number)) for number in (0, 2)] == [None, None]
    assert [successor.dataset(day(number)).terms.spent_before for number in (3, 4)] == [570_000_000, 0]


def test_a_week_in_progress_goes_on_until_its_end() -> None:
    """Day 3 is the Thursday of the second week of 2026."""
    weekly = "{generate: 'w-{iso_week}', from: 2026-01-05, limit: 2, unit: one event}"
    carried, _ = left(closed_in_order(spent(EventType.BALANCE, "w-2026-w02", 0.57)), weekly)
    assert shares(carried) == {"w-2026-w02": (0.57, 2)}
    assert (carried.watermarks, carried.begun) == ({"w-{iso_week}": at(0)}, {"w-{iso_week}": at(7)})


def test_a_period_of_a_limit_that_renews_goes_on_with_its_balance_and_no_earlier_one_opens() -> None:
    """Closed on day 33: the third period of 15 days runs, and the second one takes late queries no more."""
    limit = "every: 15d, from: 2026-01-05, lateness: 6h, limit: {epsilon: 6, per: 30d}"
    rolling = f"{{generate: 'd-{{date}}', {limit}, unit: one event}}"
    (generator,) = spec_of(rolling).generators
    promise = generator.each.unit
    shown = [
        spent(EventType.DECLARED, day(15), 0.3),
        spent(EventType.RETIRED, day(15), 1.5, reason=PERIOD_OVER),
        spent(EventType.BALANCE, day(30), 0.57),
    ]
    shard = closed_in_order(*shown, watermarks={generator.pattern: at(30)})
    shard.latest_ms = at(33)
    carried, notes = left(shard, rolling)
    assert notes == []
    assert shares(carried) == {day(30): (0.57, 2)}
    assert (carried.watermarks, carried.begun) == ({generator.pattern: at(30)}, {generator.pattern: at(45)})
    assert carried.datasets[day(30)].unit == promise == "one event (any 30 days: at most epsilon 6)"
    successor = spec_of(rolling, carried=msgspec.structs.replace(carried, successor="app"))
    assert [successor.find(day(number)) for number in (0, 15)] == [None, None]
    assert [successor.dataset(day(number)).terms.spent_before for number in (30, 45)] == [570_000_000, 0]


def test_a_dataset_that_no_query_had_opened_yet_goes_on_whole() -> None:
    wards = DAILY.replace("'d-{date}'", "'{name}-{date}', names: [a, b]")
    balance = spent(EventType.BALANCE, day(3, prefix="a"), 0.5)
    carried, _ = left(closed_in_order(balance, watermarks={"{name}-{date}": at(3)}), wards)
    assert shares(carried) == {day(3, prefix="a"): (0.5, 2), day(3, prefix="b"): (0, 2)}


def test_a_period_whose_late_queries_still_count_goes_on() -> None:
    balances = [spent(EventType.BALANCE, day(number), 0.1 * number) for number in (2, 3)]
    carried, _ = left(closed_in_order(*balances, watermarks={"d-{date}": at(2)}), DAILY)
    assert shares(carried) == {day(2): (0.2, 2), day(3): (0.3, 2)}
    assert carried.watermarks == {"d-{date}": at(2)}


def test_a_close_shortly_before_midnight_carries_the_next_period_too() -> None:
    shard = closed_in_order(spent(EventType.BALANCE, day(3), 0.5), **OVER)
    shard.latest_ms = at(4) - 300_000
    carried, _ = left(shard, DAILY)
    assert shares(carried) == {day(3): (0.5, 2), day(4): (0, 2)}
    assert carried.begun == {"d-{date}": at(5)}


def test_a_period_that_is_over_goes_on_nowhere_even_if_its_events_are_gone() -> None:
    """Retention took the events of day 2, and a lateness of 30 days came later."""
    late = DAILY.replace("6h", "30d")
    carried, _ = left(closed_in_order(spent(EventType.BALANCE, day(3), 0.5), **OVER), late)
    assert shares(carried) == {day(3): (0.5, 2)}
    unproved = history(events(BEGUN, closed(0, **OVER), proved=False), Closed("next", 2, "2-00"))
    assert shares(left(unproved, late)[0]) == {day(3): (0, 2)}


def test_where_shards_differ_no_dataset_that_one_of_them_has_retired_goes_on() -> None:
    wards = DAILY.replace("'d-{date}'", "'{name}-{date}', names: [a, b]")
    names = {f"{name}{number}": day(number, prefix=name) for name in "ab" for number in (2, 3)}
    ahead = closed_in_order(spent(EventType.BALANCE, names["a3"], 0.5), watermarks={"{name}-{date}": at(3)})
    behind = closed_in_order(spent(EventType.BALANCE, names["b2"], 0.5), watermarks={"{name}-{date}": at(2)})
    options = {"cluster": "c", "alerts": "app.alerts", "successor": "next", "now_ms": 0}
    carried, _ = carry_over(spec_of(wards), [ahead, behind], home=lambda name: int(name[0] == "b"), **options)
    assert shares(carried) == {names["a3"]: (0.5, 2), names["b2"]: (0.5, 2), names["b3"]: (0, 2)}
    successor = spec_of(wards, carried=msgspec.structs.replace(carried, successor="app"))
    assert successor.find(names["a2"]) is None


def test_without_a_proof_a_period_that_may_be_over_goes_on_only_if_events_show_it() -> None:
    """Another shard proves that its own day 2 was not over."""
    wards = DAILY.replace("'d-{date}'", "'{name}-{date}', names: [a, b, c]")
    names = {f"{name}{number}": day(number, prefix=name) for name in "abc" for number in (2, 3)}
    proved = closed_in_order(spent(EventType.BALANCE, names["a2"], 0.5), watermarks={"{name}-{date}": at(2)})
    start = spent(EventType.RUN_STARTED, names["b2"], 0.25)
    unproved = history(events(BEGUN, start, closed(0), proved=False), Closed("next", 3, "3-00"))
    options = {"cluster": "c", "alerts": "app.alerts", "successor": "next", "now_ms": 0}
    carried, _ = carry_over(
        spec_of(wards), [proved, unproved], home=lambda name: int(name[0] != "a"), **options
    )
    assert shares(carried) == {names["a2"]: (0.5, 2), names["b2"]: (0.25, 2)} | {
        names[f"{name}3"]: (0, 2) for name in "abc"
    }


@pytest.mark.parametrize(("reserved", "counts"), [(0, 0.4), (0.6, 1.0)])
def test_without_a_proof_the_period_in_progress_goes_on_with_the_most_that_events_show(reserved, counts):
    shown = [
        BEGUN,
        spent(EventType.DECLARED, day(2), 0.3),
        spent(EventType.RETIRED, day(2), 0.3, reason=PERIOD_OVER),
        spent(EventType.RUN_STARTED, day(3), 0.4, reserved=reserved),
        closed(0),
    ]
    carried, _ = left(history(events(*shown, proved=False), Closed("next", 5, "5-00")), DAILY)
    assert shares(carried) == {day(3): (counts, 2)}


def test_behind_a_gap_the_period_in_progress_has_nothing_left_unless_it_is_shown() -> None:
    shown = [
        spent(EventType.RUN_STARTED, "plain", 0.5, limit=5),
        spent(EventType.RUN_CLOSED, "plain", 0.5, limit=5),
    ]
    found = events(*shown, closed(0), first=7, proved=False)
    carried, _ = left(history(found, Closed("next", 9, "9-00")), DAILY, PLAIN)
    assert shares(carried) == {"plain": (0.5, 5), day(3): (2, 2)}


def test_a_chain_carries_a_running_period_on_until_it_is_over() -> None:
    first, _ = left(closed_in_order(spent(EventType.BALANCE, day(3), 0.5), **OVER), DAILY)
    spec = spec_of(DAILY, carried=msgspec.structs.replace(first, successor="app"))
    same_day, _ = left(closed_in_order(**OVER), spec=spec)
    assert shares(same_day) == {day(3): (0.5, 2)}, "no query came"
    later = closed_in_order(watermarks={"d-{date}": at(4)})
    later.latest_ms = at(4.5)
    next_day, _ = left(later, spec=spec)
    assert shares(next_day) == {day(4): (0, 2)}
    assert next_day.watermarks == {"d-{date}": at(4)}
    given_up = history(events(BEGUN, closed(0), proved=False), Closed("next", 2, "2-00"))
    given_up.latest_ms = at(4.5)
    assert shares(left(given_up, spec=spec)[0]) == {day(4): (0, 2)}


def test_the_period_that_the_clock_or_an_event_shows_has_begun() -> None:
    shown = history(events(BEGUN, spent(EventType.DECLARED, day(9), 0.5), closed(0), proved=False))
    shown.closed = Closed("next", 3, "3-00")
    assert left(shown, DAILY)[0].begun == {"d-{date}": at(10)}
    nothing = ShardHistory("app", 0, lambda *_: False, closed=Closed("next", 1, ""))
    nothing.end()
    assert left(nothing, DAILY, now_ms=at(7))[0].begun == {"d-{date}": at(8)}, "no event is left"


def test_a_generator_that_was_removed_opens_none_of_its_periods_again() -> None:
    shard = closed_in_order(watermarks={"gone-{date}": at(2)})
    carried, _ = left(shard, PLAIN)
    assert carried.begun == {"gone-{date}": START_MS + 4 * DAY_MS}
    gone = DAILY.replace("d-{", "gone-{")
    successor = spec_of(gone, carried=msgspec.structs.replace(carried, successor="app"))
    assert [successor.find(day(number, prefix="gone")) is None for number in (1, 3, 4)] == [True, True, False]


# Mutes and positions


def alert(series: str, until: object, *, name: str = "plain", monitor: str = "m") -> tuple[EventType, Any]:
    return EventType.ALERT, alerts.alert(dataset=name, monitor=monitor, series=series, muted_until=until)


STOPPED = {"m": {"topic": "t", "offset": 9, "row": 0, "clock_ms": NOON}}


def muted(carried: Carried) -> dict[tuple[str, str], list[tuple[str, int]]]:
    return {(line.dataset, line.monitor): line.ends for line in carried.mutes}


def test_live_mutes_are_carried_over_oldest_first_as_many_as_a_monitor_keeps() -> None:
    ends = [
        ("expired", NOON),
        ("a", NOON + 1),
        ("b", "period"),
        ("c", "run"),
        ("d", NOON + 9),
        ("a", NOON + 5),
    ]
    shown = [alert(*one) for one in ends]
    carried, _ = left(closed_in_order(*shown, positions=STOPPED), PLAIN)
    assert muted(carried) == {("plain", "m"): [("b", -1), ("d", NOON + 9), ("a", NOON + 5)]}
    more = [*shown, alert("e", "period"), alert("f", None)]
    assert muted(left(closed_in_order(*more, positions=STOPPED), PLAIN)[0]) == {
        ("plain", "m"): [("d", NOON + 9), ("a", NOON + 5), ("e", -1)]
    }


def test_a_mute_that_has_ended_by_its_monitors_clock_is_not_carried_over() -> None:
    shown = [alert("a", NOON + 1), alert("expired", NOON)]
    assert muted(left(closed_in_order(*shown, positions=STOPPED), PLAIN)[0]) == {
        ("plain", "m"): [("a", NOON + 1)]
    }
    unknown, _ = left(closed_in_order(*shown), PLAIN)
    assert muted(unknown) == {("plain", "m"): [("a", NOON + 1), ("expired", NOON)]}, "it ends by itself"


def operated(kind: EventType, series: str, **end: object) -> tuple[EventType, Any]:
    data = alerts.lifecycle("command", dataset="plain", monitor="m", detail={"series": series, **end})
    return kind, data


def test_what_an_operator_muted_and_unmuted_is_carried_over_too() -> None:
    shown = [
        alert("a", "period"),
        operated(EventType.UNMUTED, "a"),
        operated(EventType.MUTED, "b", muted_until=NOON + 7),
        operated(EventType.MUTED, "c", muted_until="run"),
        operated(EventType.MUTED, "d", muted_until="period"),
    ]
    carried, _ = left(closed_in_order(*shown, positions=STOPPED), PLAIN)
    assert muted(carried) == {("plain", "m"): [("b", NOON + 7), ("d", -1)]}


def test_an_incident_is_carried_over_until_it_ends_or_an_operator_mutes_its_series() -> None:
    def begun(series: str, watched: int) -> tuple[EventType, Any]:
        data = alerts.alert(
            dataset="plain", monitor="m", series=series, muted_until=NOON + 9, watched_until=watched
        )
        return EventType.ALERT, data

    position = {"topic": "t", "partition": 0, "offset": 1, "row": 0}
    top = {"branch": "top", "attempt": 1, "gap": 1.0, "number": 1, "spec_hash": "", "position": position}
    end = alerts.lifecycle("below", dataset="plain", monitor="m.end", detail={"series": "b", **top})
    shown = [
        *(begun(series, NOON + 9) for series in "abc"),
        begun("d", NOON + 12),  # of a monitor with not_renewed
        (EventType.ALERT_ENDED, end),
        operated(EventType.MUTED, "c", muted_until=NOON + 9),
    ]
    carried, _ = left(closed_in_order(*shown, positions=STOPPED), PLAIN)
    assert muted(carried) == {
        ("plain", "m"): [("a", NOON + 9), ("d", NOON + 9), ("c", NOON + 9)],
        ("plain", "m.end"): [("a", NOON + 9)],
    }
    assert ", 3 series muted" in "\n".join(summary(carried))
    spec = spec_of(PLAIN, carried=msgspec.structs.replace(carried, successor="app"))
    second, _ = left(closed_in_order(operated(EventType.UNMUTED, "a"), positions=STOPPED), spec=spec)
    assert ("plain", "m.end") not in muted(second)


def test_mutes_end_with_their_monitor_and_their_dataset() -> None:
    removed = EventType.SPEC_CHANGED, lifecycle("removed", dataset="", monitor="old", detail={})
    shown = [
        alert("a", "period", monitor="old"),
        alert("a", "period", name=day(2)),
        alert("a", "period", name=day(3)),
        removed,
        spent(EventType.RETIRED, day(2), 0.5, reason=PERIOD_OVER),
        spent(EventType.BALANCE, day(3), 0.5),
        spent(EventType.BALANCE, "plain", 0.5, limit=5),
    ]
    carried, _ = left(closed_in_order(*shown, **OVER), PLAIN, DAILY)
    assert muted(carried) == {(day(3), "m"): [("a", -1)]}


def test_a_chain_carries_mutes_on_until_their_monitor_is_removed() -> None:
    first, _ = left(closed_in_order(alert("a", "period"), alert("b", NOON + 5), positions=STOPPED), PLAIN)
    spec = spec_of(PLAIN, carried=msgspec.structs.replace(first, successor="app"))
    second, _ = left(closed_in_order(alert("b", "period")), spec=spec)
    assert muted(second) == {("plain", "m"): [("a", -1), ("b", -1)]}
    removed = EventType.SPEC_CHANGED, lifecycle("removed", dataset="", monitor="m", detail={})
    retired = spent(EventType.RETIRED, "plain", 0.5, reason="configuration")
    for end in (removed, retired):
        assert muted(left(closed_in_order(end), spec=spec)[0]) == {}


@pytest.mark.parametrize(
    ("until", "left_of_it"),
    [(None, []), ("run", []), (-7, []), (NOON + 9, [("a", NOON + 9)]), ("period", [("a", -1)])],
)
def test_what_a_chain_ends_stays_ended(until: object, left_of_it: list[tuple[str, int]]) -> None:
    """No event: the second application took the mute over from the file."""
    first, _ = left(closed_in_order(alert("a", "period"), alert("b", "period")), PLAIN)
    spec = spec_of(PLAIN, carried=msgspec.structs.replace(first, successor="app"))
    ended = (
        operated(EventType.UNMUTED, "a")
        if until is None
        else operated(EventType.MUTED, "a", muted_until=until)
    )
    second, _ = left(closed_in_order(ended), spec=spec)
    assert muted(second) == {("plain", "m"): [("b", -1), *left_of_it]}
    spec = spec_of(PLAIN, carried=msgspec.structs.replace(second, successor="app"))
    assert muted(left(closed_in_order(), spec=spec)[0]) == muted(second)


def test_alerts_of_two_histories_mute_nothing() -> None:
    shown = list(events(BEGUN, alert("a", "period"), closed(0), proved=False))
    twice = history(
        [*shown[:2], *events(alert("b", "period"), first=2), *shown[2:]], Closed("next", 3, "3-00")
    )
    twice.conflict = True
    assert muted(left(twice, PLAIN)[0]) == {}


def test_positions_are_those_of_the_event_that_closed_the_shard_on_its_own_cluster() -> None:
    forged = closed(0, positions={"m": STOPPED["m"] | {"offset": 99}})
    shown = [BEGUN, forged, closed(0, positions=STOPPED)]
    shard = history(events(*shown, proved=False), Closed("next", 3, "3-00"))
    here, _ = left(shard, PLAIN)
    assert here.positions == {0: {"m": MonitorPosition("t", 9, 0, NOON)}}
    assert left(shard, PLAIN, cluster="mirror")[0].positions == {}
    given_up = history(events(BEGUN, forged, proved=False), Closed("next", 3, "3-00"))
    assert left(given_up, PLAIN)[0].positions == {}


@pytest.mark.parametrize(
    "said", [{"positions": {"m": [1]}}, {"positions": 3}, {"watermarks": {"d-{date}": "x"}}]
)
def test_an_event_that_says_something_else_moves_nothing(said: dict[str, Any]) -> None:
    carried, _ = left(closed_in_order(**said), PLAIN)
    assert carried.positions == {}
    assert shares(carried) == {"plain": (0, 5)}
