"""Periods of any length, and limits that renew: how many ledgers a time touches, and what they add up to."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from fractions import Fraction
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.errors import ConfigError
from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.privacy.loss import Kind, to_units
from stream_svt.settings.application import load_spec
from stream_svt.settings.carried import NOTHING, Balance, parse
from stream_svt.settings.datasets import DatasetDeclaration
from stream_svt.settings.document import read
from stream_svt.settings.periods import (
    Renewal,
    is_over,
    period_at,
    period_end,
    period_name,
    with_length,
    written,
)
from tests.support.generated_play import DAY_MS, GeneratedPlay, at, day, watermarks
from tests.support.sources import WEB, changed

MONITOR = "epsilon: 0.5, sensitivity: 1, monotonic: true, bounds: [0, 1e6], threshold: 5, cutoff: 1"
LIMIT = "limit: {epsilon: 4, per: 30d}"
ROLLING = f"generate: 'd-{{date}}', every: 15d, from: 2026-01-05, lateness: 1h, {LIMIT}, unit: a stay"


def spec_of(*datasets: str, monitors: str = f"name: m, topic: t, {MONITOR}", **options):
    declared = "\n".join(f"  - {{{one}}}" for one in datasets)
    return load_spec(
        f"application: app\ndatasets:\n{declared}\nmonitors:\n  - {{{monitors}, expected_queries: 9}}\n",
        **options,
    )


def refusal(*datasets: str) -> tuple[str, str]:
    with pytest.raises(ConfigError) as refused:
        spec_of(*datasets)
    (problem,) = refused.value.problems
    return problem.field, problem.message


# -- how many periods a time touches --------------------------------------------------------------------------------


def touched(per: int, back: int, length: int, window: int) -> int:
    """Return the most periods whose ledgers are charged for tests that read events of a time ``per``, by trying all.

    The time begins at any moment. A test reads the windows from ``back`` before the tested one on, which decides the
    dataset by its begin.
    """
    most = 0
    for begin in range(length):
        first, last = begin // window * window, (begin + per - 1) // window * window
        tested = range(first, last + back + 1, window)
        most = max(most, len({one // length for one in tested}))
    return most


def settings() -> list[tuple[int, int, int, int]]:
    ranges = product(range(1, 13), range(7), range(1, 9), range(1, 9))
    return [one for one in ranges if one[2] % one[3] == 0]


def test_no_time_touches_more_periods_than_share_the_limit() -> None:
    found = {one: touched(*one) for one in settings()}
    allowed = {one: Renewal(1, *one[:3]).periods for one in found}
    assert all(found[one] <= allowed[one] for one in found)
    reached = {one[:3] for one in found if found[one] == allowed[one]}
    assert len(reached) > 300, "the number of periods is not only safe: most settings need all of them"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda per, back, length: -(-(per + back) // length),
        lambda per, back, length: -(-per // length) + 1,
        lambda per, back, length: (per + back) // length + 1,
    ],
    ids=["one fewer", "without the look-back", "rounded down"],
)
def test_a_smaller_number_of_periods_is_too_small_somewhere(wrong: Callable[[int, int, int], int]) -> None:
    assert any(touched(*one) > wrong(*one[:3]) for one in settings())


def test_thirty_days_touch_three_calendar_months() -> None:
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(365)]
    months = max(len({one.month for one in days[begin : begin + 30]}) for begin in range(335))
    assert months == 3, "a share of half the limit for each month would promise too much"


@given(
    st.integers(1, 10**10),
    st.integers(1, 100),
    st.integers(0, 100),
    st.integers(1, 40),
    st.integers(0, 10**4),
)
def test_the_ledgers_of_any_time_add_up_to_the_limit_at_most(
    limit: int, per: int, back: int, length: int, begin: int
) -> None:
    renewal = Renewal(limit, per, back, length)
    charged = (begin + per + back) // length - begin // length + 1
    assert charged * renewal.share <= limit
    assert (renewal.share + 1) * renewal.periods > limit, "rounded down to ledger units, and no further"


@given(st.fractions(Fraction(1, 10), 100), st.integers(1, 60), st.integers(0, 30), st.integers(1, 40))
def test_datasets_of_a_generator_get_their_shares(epsilon: Fraction, per: int, back: int, every: int) -> None:
    keys = f"every: {every}d, from: 2026-01-05, looks_back: {f'{back}d' if back else 0}, unit: a stay"
    limit = f"limit: {{epsilon: {epsilon}, per: {per}d}}"
    monitor = f"name: m, topic: t, {MONITOR.replace('epsilon: 0.5', 'epsilon: 0.0001')}"
    (generator,) = spec_of(f"generate: 'd-{{date}}', {keys}, {limit}", monitors=monitor).generators
    for begin in (at(every * 7 + offset) for offset in (0, 0.5, every - 1)):
        reached = generator.periods(begin, begin + (per + back) * DAY_MS + 1)
        assert sum(one.terms.limit for one in reached) <= to_units(epsilon, Kind.PURE)


# -- names ----------------------------------------------------------------------------------------------------------


def test_a_period_of_several_days_has_the_name_of_its_first_day() -> None:
    (generator,) = spec_of(ROLLING).generators
    found = [*generator.periods(at(0), at(31))]
    assert [one.name for one in found] == [day(0), day(15), day(30)]
    first = found[0].terms
    assert (first.from_ms, first.until_ms, first.horizon_ms) == (at(0), at(15), 15 * DAY_MS)
    assert (first.kind, first.limit) == (Kind.PURE, to_units(4, Kind.PURE) // 3)
    assert first.unit == "a stay (any 30 days: at most epsilon 4)"
    assert generator.find(day(30)) == found[2]
    assert generator.find(day(14)) is None
    assert generator.find(day(-15)) is None


@pytest.mark.parametrize("days", [1, 2, 7, 15, 30, 365])
@pytest.mark.parametrize("offset", [0, 1, 6, 364])
def test_the_period_of_every_moment_has_one_name_and_one_end(days: int, offset: int) -> None:
    pattern = with_length("d-{date}", days, at(offset) // DAY_MS)
    assert written(pattern) == "d-{date}"
    for moment in (at(offset + number / 2) + shift for number in range(-5, 3 * days) for shift in (0, -1)):
        begin, end = period_at(pattern, moment)
        assert begin <= moment < end == begin + days * DAY_MS
        assert (begin - at(offset)) % (days * DAY_MS) == 0
        name = period_name(pattern, moment)
        assert name == period_name(pattern, begin) == day(round((begin - at(0)) / DAY_MS))
        assert period_end(pattern, name) == end
        assert is_over(name, {pattern: end})
        assert not is_over(name, {pattern: end - 1})
    if days > 1:
        assert period_end(pattern, day(offset + 1)) is None, "no period begins then"


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ("epsilon: 4, per", "rho: 4, per", "limit", "two runs with rho must not be open at once"),
        ("every: 15d, ", "", "every", "is required with a limit per: the length of a period, such as 15d"),
        ("every: 15d", "looks_back: 28d", "every", "such as 29d"),
        ("every: 15d", "every: 36h", "every", "must be whole days, found 36h"),
        ("{date}", "{iso_week}", "every", "periods of {iso_week} are weeks: remove every, or write {date}"),
        ("30d}", "0d}", "limit", "must be between 1ms and 100 years"),
        ("30d}", "30}", "limit", "the unit is missing"),
        (", per: 30d", ", in: 30d", "limit", "expected one measure"),
        ("epsilon: 4", "epsilon: 1e-9", "limit", "is too small for parts of 3 periods"),
        ("{epsilon: 4, per: 30d}", "4, looks_back: 1d", "looks_back", "is used with a limit per only"),
        (
            "from: 2026-01-05",
            "from: 2026-01-05, until: 2026-02-05",
            "until",
            "write 2026-02-04 or 2026-02-19",
        ),
        ("d-{date}", "d-{date/15d+3}", "generate", "expected a name with one of"),
    ],
)
def test_a_problem_of_a_limit_that_renews_is_named(old: str, new: str, key: str, message: str) -> None:
    field, text = refusal(ROLLING.replace(old, new))
    assert field == f"datasets[0].{key}"
    assert message in text


def test_a_limit_that_renews_needs_periods() -> None:
    field, message = refusal("name: d, unit: x, limit: {epsilon: 4, per: 30d}")
    assert field == "datasets[0].limit"
    assert "per needs periods: declare generate, and every" in message


def test_weeks_may_renew_too() -> None:
    weekly = ROLLING.replace("{date}", "{iso_week}").replace("every: 15d, ", "")
    (generator,) = spec_of(weekly).generators
    assert generator.each.renewal == Renewal(4 * 10**9, 30 * DAY_MS, 0, 7 * DAY_MS)
    assert generator.each.renewal.periods == 6


def test_generators_of_one_name_have_the_same_periods() -> None:
    until = ROLLING.replace("lateness", "until: 2026-02-04, lateness")
    later = ROLLING.replace("2026-01-05", "2026-02-04")
    spec = spec_of(until, later.replace("epsilon: 4", "epsilon: 5"))
    assert [one.name for one in spec.datasets] == [day(0), day(15)]
    assert spec.dataset(day(30)).terms.limit == 5 * 10**9 // 3
    for wrong in (later.replace("15d", "10d"), later.replace("02-04", "02-05")):
        field, message = refusal(until, wrong)
        assert field == "datasets[1].every"
        assert "and from must fit those of the generator at line 3, which makes the same names" in message


# -- sources --------------------------------------------------------------------------------------------------------

RENEWING = (("from: 2026-11-28", "every: 15d, from: 2026-11-28"), ("{epsilon: 2}", "{epsilon: 8, per: 30d}"))


def test_a_source_fills_the_period_in_which_a_window_begins() -> None:
    spec = load_spec(changed(*RENEWING))
    (source,), (generator,) = spec.sources, spec.generators
    for begin in range(generator.from_ms, generator.from_ms + 46 * DAY_MS, 3_600_000):
        dataset = generator.find(source.dataset_at(begin, ""))
        assert dataset.terms.from_ms <= begin < begin + source.window <= dataset.terms.until_ms
    assert source.period_ms == 15 * DAY_MS
    assert source.unit_text == "all events of one `user` in 15 days"
    assert generator.each.unit == f"{source.unit_text} (any 30 days: at most epsilon 8)"
    assert spec.monitors[0].expected_queries == 8 * 24 * 15
    assert spec.monitors[0].covers(source.dataset_at(generator.from_ms, ""))


def test_what_a_source_counts_never_changes_with_its_periods() -> None:
    digests = {
        load_spec(changed(*RENEWING, *more)).sources[0].digest
        for more in ([], [("every: 15d", "every: 30d")], [("11-28, lateness", "11-29, lateness")])
    }
    assert len(digests | {load_spec(WEB).sources[0].digest}) == 4


def test_answers_may_fill_longer_periods_too() -> None:
    answers = """\
application: shop
sources: [{name: hits, topic: hits, answers: {value: n, dataset: "d-{date}", sensitivity: 1, bounds: [0, 1e6]}}]
datasets: [{generate: "d-{date}", every: 15d, from: 2026-01-05, limit: {epsilon: 4, per: 30d}, unit: a stay}]
monitors: [{name: busy, source: hits, epsilon: 0.1, cutoff: 1, threshold: 5, expected_queries: 9}]
"""
    (source,) = load_spec(answers).sources
    assert [source.dataset_at(at(number), "") for number in (0, 14.9, 15)] == [day(0), day(0), day(15)]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        (
            [("window: 1h", "window: 2d")],
            "sources[0].window",
            "must divide the period of 'web-{date}', found 2d",
        ),
        (
            [("window: 1h", "window: 5d")],
            "datasets[0].from",
            "a window of source 'requests' must begin then: write 2026-11-27 or 2026-12-02",
        ),
        ([("every: 15d, ", "")], "datasets[0].every", "is required with a limit per"),
        (
            [('dataset: "web-{date}"', 'dataset: "web-{date/15d+3}"')],
            "sources[0].dataset.pattern",
            "expected {iso",
        ),
    ],
)
def test_a_problem_of_a_source_with_periods_is_named(changes, field: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_spec(changed(*RENEWING, *changes))
    found = {one.field: one.message for one in refused.value.problems}
    assert message in found[field], found


def test_a_window_of_whole_days_may_fill_periods_of_several() -> None:
    days = ("window: 1h", "window: 5d"), ("from: 2026-11-28", "from: 2026-12-02")
    whole = changed(*RENEWING, *days, ("lateness: 1h", "lateness: 1d"))
    (source,) = load_spec(whole).sources
    assert source.queries_of_a_period == 8 * 3


# -- the engine -----------------------------------------------------------------------------------------------------


def test_a_run_over_three_periods_spends_a_share_in_each() -> None:
    spec = spec_of(ROLLING)
    play = GeneratedPlay(spec)
    play.adopt()
    spent = []
    for period in range(3):
        for number in range(15 * period, 15 * period + 15):
            play.roll(at(number))
            play.ask(day(15 * period), at(number + 0.5), 1_000_000)
            assert not play.ask(day(number), at(number + 0.6)) or number % 15 == 0, "no period has that name"
        spent.append(play.engine.accounts.account(play.engine.number[day(15 * period)]).ledger.spent)
    assert spent == [10**9] * 3, "two runs of one alert in each: the share 1.33 pays for no third one"
    assert sum(spent) <= 4 * 10**9
    play.roll(at(45.5))
    play.ask(day(45), at(45.6))
    play.roll(at(46))
    play.roll(at(46))
    assert play.stored == [f"d/{day(45)}"]
    assert watermarks(play) == {with_length("d-{date}", 15, at(0) // DAY_MS): 45}
    retired = [event.data.dataset for event in play.events if event.type is EventType.RETIRED]
    assert retired == [day(0), day(15), day(30)]
    assert not play.ask(day(30), at(46.5)), "no period opens twice"


@pytest.mark.parametrize(
    ("old", "new"), [("per: 30d", "per: 29d"), ("epsilon: 4", "epsilon: 8"), ("every: 15d", "every: 30d")]
)
def test_a_ledger_refuses_a_promise_that_is_not_its_own(old: str, new: str) -> None:
    """Also where nobody applies the configuration."""
    play = GeneratedPlay(spec_of(ROLLING))
    play.adopt()
    assert play.ask(day(0), at(0.5))
    with pytest.raises(ConfigError):
        play.open(spec_of(ROLLING.replace(old, new)))


def test_no_command_raises_a_limit_that_renews() -> None:
    play = GeneratedPlay(spec_of(ROLLING))
    play.adopt()
    assert not operations.apply(play.engine, Command("c", Action.RAISE_BUDGET, day(0), limit="2"))
    play.commit()
    assert (
        "a limit for any 30 days never changes, and the next period has its own"
        in play.events[-1].data.detail["message"]
    )
    assert play.engine.accounts.account(0).ledger.limit == 4 * 10**9 // 3


# -- a successor ----------------------------------------------------------------------------------------------------

SHARE = 4 * 10**9 // 3


def carried(**changes):
    """Return what a successor of an application takes over on day 40: the third period runs."""
    pattern = with_length("d-{date}", 15, at(0) // DAY_MS)
    balance = Balance("a stay (any 30 days: at most epsilon 4)", Kind.PURE, SHARE, SHARE, 10**9)
    known = {
        "application": "app",
        "successor": "app2",
        "watermarks": {pattern: at(30)},
        "begun": {pattern: at(45)},
        "datasets": {day(30): balance},
    }
    return msgspec.structs.replace(NOTHING, **known | changes)


def succeed(dataset: str):
    return carried().continued(DatasetDeclaration.model_validate(read(f"{{{dataset}}}", "text").data))


def test_a_successor_goes_on_with_the_period_that_runs_and_opens_no_earlier_one() -> None:
    first, generator = succeed(ROLLING)
    assert [one.name for one in first] == [day(0)]
    found = [*generator.periods(at(0), at(61))]
    assert [(one.name, one.terms.spent_before, one.terms.limit) for one in found] == [
        (day(30), 10**9, SHARE),
        (day(45), 0, SHARE),
        (day(60), 0, SHARE),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "every: 15d",
            "every: 10d",
            "periods of 'd-{date}' had another length or begin in 'app': keep its every",
        ),
        ("01-05", "01-06", "had another length or begin"),
        ("per: 30d", "per: 29d", "must keep its privacy unit 'a stay (any 30 days: at most epsilon 4)'"),
        ("every", "looks_back: 0.5d, every", "must keep its privacy unit"),
        ("epsilon: 4", "epsilon: 5", "must keep its privacy unit"),
        ("{epsilon: 4, per: 30d}", "{epsilon: '1.333333333'}", "must keep its privacy unit"),
    ],
)
def test_a_successor_keeps_periods_and_promise(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        succeed(ROLLING.replace(old, new))


def test_a_file_with_periods_of_any_length_is_read_again() -> None:
    assert parse([*carried().lines()]) == carried()
