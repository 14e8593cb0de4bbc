"""Generated datasets: a period opens with its first query, ends after its lateness, and never opens twice."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.privacy.loss import Kind
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import Carried
from stream_svt.settings.periods import is_over, period_end
from stream_svt.worker import workload
from tests.support.generated_play import DAY_MS, GeneratedPlay, at, day, watermarks

MONITOR = "epsilon: 1, sensitivity: 1, monotonic: true, bounds: [0, 9], threshold: 5, cutoff: 3, expected_queries: 99"
GENERATED = "{generate: 'd-{date}', from: 2026-01-05, lateness: 6h, limit: 2, unit: one event}"


def spec_of(
    *datasets: str, monitors: str = f"{{name: m, topic: t, {MONITOR}}}", **options: object
) -> ApplicationSpec:
    declared = "\n".join(f"  - {one}" for one in datasets)
    return load_spec(f"application: app\ndatasets:\n{declared}\nmonitors:\n  - {monitors}\n", **options)


DAYS = spec_of(GENERATED)


# -- declarations ------------------------------------------------------------------------------------------------


def test_a_generator_without_an_end_makes_one_dataset_a_period() -> None:
    (generator,) = DAYS.generators
    assert DAYS.datasets == ()
    assert [one.name for one in generator.periods(at(1), at(3))] == [day(1), day(2)]
    assert [one.name for one in generator.periods(at(0.5), at(1) + 1)] == [day(0), day(1)]
    assert [one.name for one in generator.periods(0, at(0))] == []
    first = DAYS.dataset(day(0))
    assert (first.terms.from_ms, first.terms.until_ms, first.terms.lateness_ms) == (
        at(0),
        at(1),
        6 * 3_600_000,
    )
    assert (first.terms.limit, first.terms.unit, first.terms.horizon_ms) == (2 * 10**9, "one event", DAY_MS)
    assert first.terms.ends_ms == at(1) + 6 * 3_600_000


def test_a_generator_makes_a_dataset_for_each_name_and_period() -> None:
    lines = ["# wards", "north", "south-2"]
    spec = spec_of(
        "{generate: '{name}:{iso_week}', file: wards, from: 2026-01-05, limit: {rho: 1}, unit: one stay}",
        read_names={"wards": lines}.__getitem__,
    )
    (weeks,) = spec.generators
    names = [f"{name}:2026-w0{week}" for week in (2, 3) for name in ("north", "south-2")]
    assert [one.name for one in weeks.periods(at(0), at(8))] == names
    later = spec.dataset("south-2:2026-w04")
    assert (later.terms.from_ms, later.terms.kind, later.terms.horizon_ms) == (at(14), Kind.ZCDP, 7 * DAY_MS)
    for name in ("east:2026-w04", "north:2026-w01", "north:2026-w54", "north", "north:2026-w4"):
        with pytest.raises(KeyError):
            spec.dataset(name)


def test_at_a_time_those_datasets_are_declared_that_queries_may_count_for() -> None:
    assert [one.name for one in DAYS.at(at(3.5)).datasets] == [day(3)]
    assert [one.name for one in DAYS.at(at(3.1)).datasets] == [day(2), day(3)]
    assert [one.name for one in DAYS.at(0).datasets] == [day(0)], "before the first one, that one"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("name: d-2027-01-01", "has a name of generator 'd-{date}' at line 3: rename"),
        ("generate: 'd-{date}', from: 2026-01-05", "already declared"),
        ("generate: '{name}-{date}', names: [d], from: 2027-01-05", "has a name of generator 'd-{date}'"),
        (f"generate: '{{name}}-{{date}}', names: [{'n' * 195}], from: 2026-01-05", "generate"),
    ],
)
def test_a_problem_of_a_generator_is_reported(declared: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        spec_of(GENERATED, f"{{{declared}, limit: 1, unit: x}}")
    assert message in str(refused.value)


def test_a_limit_may_change_with_a_later_period() -> None:
    until = GENERATED.replace("lateness", "until: 2026-02-02, lateness")
    later = GENERATED.replace("2026-01-05", "2026-02-02").replace("limit: 2", "limit: 3")
    spec = spec_of(until, later)
    assert [one.name for one in spec.datasets] == [day(number) for number in range(28)]
    assert [spec.dataset(f"d-2026-02-0{number}").terms.limit for number in (1, 2)] == [2 * 10**9, 3 * 10**9]


@pytest.mark.parametrize(
    ("pattern", "name", "end"),
    [
        ("d-{date}", "d-2026-01-05", at(1)),
        ("d-{date}", "d-2026-02-30", None),
        ("d-{date}", "xd-2026-01-05", None),
        ("d-{date}", "d-2026-01-05\n", None),
        ("d-{date}", "d-٢٠٢٦-01-05", None),
        ("{iso_week}.x", "2026-w02.x", at(7)),
        ("{iso_week}.x", "2026-w02yx", None),
        ("{iso_week}", "2026-w54", None),
        ("{name}-{date}", "a-2026-01-01-2026-01-05", at(1)),
        ("{name}-{date}", "-2026-01-05", None),
        ("{date}", "9999-12-31", None),
    ],
)
def test_a_name_says_when_its_period_ends(pattern: str, name: str, end: int | None) -> None:
    assert period_end(pattern, name) == end
    assert is_over(name, {pattern: at(1)}) is (end == at(1))
    assert not is_over(name, {pattern: at(1) - 1})


@pytest.mark.parametrize("pattern", ["{name}-{date}", "{iso_week}:{name}"])
def test_every_dataset_that_a_generator_makes_is_found_by_its_name(pattern: str) -> None:
    declared = "from: 2026-01-05, limit: 1, unit: x"
    named = f"{{generate: '{pattern}', names: [a, b-2026-01-05, '{{date}}'], {declared}}}"
    (weeks,) = spec_of(named).generators
    made = list(weeks.periods(0, at(800)))
    assert [*weeks.periods(at(400.5), at(800))] == [one for one in made if one.terms.until_ms > at(400.5)]
    assert len(made) == 3 * len(weeks.begins(0, at(800))) == len({one.name for one in made})
    for one in made[:: len(made) // 40]:
        assert weeks.find(one.name) == one
        assert period_end(pattern, one.name) == one.terms.until_ms


# -- periods open and end ----------------------------------------------------------------------------------------


def test_a_period_exists_from_its_first_query_on_and_leaves_nothing_when_it_is_over() -> None:
    play = GeneratedPlay(DAYS)
    play.adopt()
    assert play.stored == []
    for number in range(40):
        play.roll(at(number))
        assert play.ask(day(number), at(number + 0.5))
        assert len(play.stored) <= 3
        assert len(play.engine.datasets) <= 5
    assert play.stored == [f"d/{day(number)}" for number in (37, 38, 39)]
    assert watermarks(play) == {"d-{date}": 38}
    retired = play.reasons(EventType.RETIRED)
    assert retired == [(day(number), "period-over") for number in range(37)]
    closed = [event for event in play.events if event.type is EventType.RUN_CLOSED]
    assert [(one.data.dataset, one.data.reason) for one in closed] == retired
    assert all(one.data.account.charge == one.data.account.reserved == 0 for one in closed)
    assert len(play.reasons(EventType.DECLARED)) == 40
    assert play.engine.accounts.queues.live < 500


def test_a_late_query_counts_as_long_as_the_slowest_monitor_has_not_passed_the_period() -> None:
    two = f"{{name: m, topic: t, {MONITOR}}}\n  - {{name: slow, topic: u, {MONITOR}}}"
    play = GeneratedPlay(spec_of(GENERATED, monitors=two))
    play.adopt()
    assert play.ask(day(0), at(0.1))
    assert play.ask(day(0), at(0.1), topic="u")
    for number in range(1, 9):
        play.roll(at(number))
        assert play.ask(day(number), at(number + 0.5))
    assert play.ask(day(0), at(0.9), topic="u"), "the topic lags, and its day is not over"
    assert play.ask(day(4), at(4.1), topic="u")
    play.roll(at(9))
    play.roll(at(9))
    assert watermarks(play) == {"d-{date}": 3}, "day 3 waits for its lateness"
    assert play.stored == [f"d/{day(number)}" for number in range(3, 9)]
    assert not play.ask(day(2), at(2.1), topic="u")


def test_time_stands_still_for_a_generator_that_no_monitor_runs_on() -> None:
    both = [GENERATED, "{name: other, limit: 2, unit: x}"]
    play = GeneratedPlay(spec_of(*both))
    play.adopt()
    assert play.ask(day(0), at(0.5))
    only = f"{{name: m, topic: t, datasets: [other], {MONITOR}}}"
    play.open(spec_of(*both, monitors=only))
    play.adopt()
    assert play.ask("other", at(9))
    play.roll(at(9))
    assert watermarks(play) == {}
    assert play.stored == [f"d/{day(0)}", "d/other"]


def test_time_passes_without_records_for_a_monitor_that_has_read_all_of_them() -> None:
    play = GeneratedPlay(DAYS)
    play.adopt()
    assert play.ask(day(0), at(0.5))
    play.ends["t"] += 1  # a record that was not read
    play.adopt(idle_ms=at(9))
    assert watermarks(play) == {"d-{date}": 0}
    play.ends["t"] -= 1
    play.adopt(idle_ms=at(9))
    assert watermarks(play) == {"d-{date}": 8}
    assert not play.ask(day(8), at(8.5)), "a record that comes late counts by the time that has passed"
    assert not play.ask(day(3), at(3.5))
    play.roll(at(9))
    assert play.stored == []


# -- no period opens twice -----------------------------------------------------------------------------------------


@pytest.fixture
def over() -> GeneratedPlay:
    """Days 0 and 1 are over, day 2 is open."""
    play = GeneratedPlay(DAYS)
    play.adopt()
    for number in range(3):
        play.roll(at(number))
        assert play.ask(day(number), at(number + 0.5))
    play.roll(at(2.5))
    play.roll(at(2.5))
    assert play.stored == [f"d/{day(2)}"]
    assert watermarks(play) == {"d-{date}": 2}
    return play


@pytest.mark.parametrize(
    "changed",
    [
        GENERATED.replace("6h", "30d"),
        GENERATED.replace("2026-01-05", "2025-12-01"),
        GENERATED.replace("lateness", "until: 2026-03-02, lateness"),
    ],
    ids=["longer lateness", "earlier first day", "an end"],
)
def test_a_period_that_is_over_stays_so_whatever_is_declared(over: GeneratedPlay, changed: str) -> None:
    late = f"{{name: m, topic: t, {MONITOR}}}\n  - {{name: late, topic: u, {MONITOR}}}"
    over.open(spec_of(changed, monitors=late))
    over.adopt()
    for topic in ("t", "u"):
        assert not over.ask(day(0), at(0.5), topic=topic)
        assert not over.ask(day(1), at(1.5), topic=topic)
    assert over.ask(day(2), at(2.6))
    assert over.stored == [f"d/{day(2)}"]
    assert watermarks(over) == {"d-{date}": 2}, "a monitor that has read nothing brings no time back"


def test_a_plain_dataset_of_the_name_of_a_period_that_is_over_is_refused(over: GeneratedPlay) -> None:
    with pytest.raises(ConfigError, match="name of a period that a generator made and that is over"):
        over.open(spec_of(f"{{name: {day(1)}, limit: 2, unit: one event}}"))
    over.open(spec_of(f"{{name: {day(3)}, limit: 2, unit: one event}}"))


def test_a_successor_opens_no_period_that_was_shown_or_had_begun() -> None:
    begun = {"d-{date}": at(2)}
    carried = Carried("before", "cluster", "alerts", "app", True, {}, begun, begun, {})
    play = GeneratedPlay(replace(DAYS, carried=carried), now_ms=at(2))
    play.adopt()
    assert next(iter(play.engine.datasets)).name == day(2)
    assert not play.ask(day(1), at(1.5))
    assert play.ask(day(2), at(2.1))
    play.roll(at(2.5))
    assert watermarks(play) == {"d-{date}": 2}


def test_generators_that_make_too_many_datasets_are_refused_with_the_way_out(monkeypatch) -> None:
    monkeypatch.setattr(workload, "MAX_DATASETS", 20)
    with pytest.raises(ConfigError, match=r"'d-{date}' makes 22 datasets .* declare a later first day"):
        GeneratedPlay(DAYS, now_ms=at(20))
    GeneratedPlay(DAYS, now_ms=at(18))


ENDED = {EventType.RETIRED, EventType.BALANCE}


def _some_spec(chance: random.Random, today: int) -> ApplicationSpec | None:
    """Return a specification, None if it is refused."""
    names = chance.choice(["[a]", "[a, b]", "[b, c]"])
    first = chance.choice(["2025-12-29", "2026-01-05", "2026-01-07"])
    lateness = chance.choice(["0s", "6h", "30h", "3d"])
    daily = f"{{generate: '{{name}}-{{date}}', names: {names}, from: {first}, lateness: {lateness}, limit: 2, unit: u}}"
    weekly = "{generate: 'w{iso_week}', from: 2026-01-05, lateness: 1d, limit: 2, unit: u}"
    later = day(max(3, today + 1), prefix="")[1:]
    changed = daily.replace(first, later).replace("limit: 2", "limit: 3")
    succession = [daily.replace("lateness", f"until: {later}, lateness"), changed]
    period = f"{{name: {day(max(0, today - chance.randrange(4)), prefix='a')}, limit: 2, unit: u}}"
    plain = "{name: plain, limit: 2, unit: u}"
    datasets = chance.choice([[daily], [daily], [daily, weekly], succession, [plain], [period]])
    monitors = [f"{{name: m, topic: t, datasets: ['{chance.choice(['*', '*', 'a*', 'b*'])}'], {MONITOR}}}"]
    if chance.random() < 0.5:
        monitors.append(f"{{name: n, topic: u, {MONITOR}}}")
    try:
        return spec_of(*datasets, monitors="\n  - ".join(monitors))
    except ConfigError:
        return None


def _played(chance: random.Random) -> GeneratedPlay:
    spec = None
    while spec is None:
        spec = _some_spec(chance, 0)
    play = GeneratedPlay(spec)
    play.adopt()
    today, marks = 0.0, dict[str, int]()
    clocks = {"t": 0.0, "u": 0.0}
    for _ in range(chance.randrange(40, 90)):
        match chance.choice(("ask", "ask", "ask", "ask", "roll", "die", "wait", "apply")):
            case "ask":
                today += chance.choice([0, 0.01, 0.3, 0.5])
                topic = chance.choice("tu")
                lag = chance.choice([0, 0, 1, 2.5]) if topic == "u" else 0
                clocks[topic] = max(clocks[topic], today - lag)
                number = max(0, int(clocks[topic]) - chance.choice([0, 0, 0, 1, 2, 5]))
                week = f"w2026-w{2 + number // 7:02}"
                names = ["plain", week, *(day(number, prefix=name) for name in "aabbcc")]
                moment = at(clocks[topic]) + chance.randrange(-3_600_000, 3_600_000)
                play.ask(chance.choice(names), moment, chance.choice([0, 9, 9]), topic=topic)
            case "roll":
                play.roll(at(today))
            case "die":
                play.open(now_ms=at(today))
            case "wait":
                play.adopt(idle_ms=at(today) - 3_600_000)
            case "apply":
                _apply(play, _some_spec(chance, int(today)), at(today))
        now = dict(watermarks(play))
        assert now | marks == now or all(now[pattern] >= mark for pattern, mark in marks.items())
        marks = now
    return play


def _apply(play: GeneratedPlay, spec: ApplicationSpec | None, now_ms: int) -> None:
    """Continue with a specification, or with the previous one if the state refuses it."""
    if spec is None:
        return
    before, stored = play.spec, (dict(play.records), play.progress, len(play.events))
    try:
        play.open(spec, now_ms)
        play.adopt()
    except ConfigError:
        play.records, play.progress, count = stored
        del play.events[count:]
        play.open(before)
        play.adopt()


@pytest.mark.parametrize("seed", range(6))
def test_no_ledger_of_a_period_begins_twice_or_goes_on_after_its_end(seed: int) -> None:
    kinds: Counter[EventType] = Counter()
    for number in range(8):
        play = _played(random.Random(100 * seed + number))
        declared, retired = set[str](), set[str]()
        for event in play.events:
            name = event.data.dataset
            kinds[event.type] += 1
            assert name not in retired or event.type in ENDED
            if event.type is EventType.DECLARED:
                assert name not in declared
                declared.add(name)
            if event.type is EventType.RETIRED:
                retired.add(name)
    assert kinds[EventType.RETIRED] > 5
    assert kinds[EventType.DECLARED] > kinds[EventType.RETIRED]
