"""Maintenance is declared before it begins, and stays until the windows that it touches were asked."""

from __future__ import annotations

from datetime import datetime

import pytest

from stream_svt.application.config import parse_config
from stream_svt.errors import Problem
from stream_svt.planning.difference import difference
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.support.sources import changed

SPAN = "{from: 2026-12-01T22:00Z, until: 2026-12-02T02:00Z}"
SUNDAYS = "{every: Sun 02:00-04:00}"
PLAIN = "- {name: plain, topic: t, datasets: [other], epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], "
BASE = changed(
    (
        "limit: {epsilon: 2}}\nmonitors:",
        "limit: {epsilon: 3}}\n  - {name: other, limit: 9, unit: u}\nmonitors:",
    ),
    (
        "  - {name: many-errors, source",
        f"  {PLAIN}threshold: 5, correction: mean}}\n  - {{name: many-errors, source",
    ),
)


def spec(*, counts: str = "", plain: str = "", everywhere: str = "") -> ApplicationSpec:
    """Return monitors of counts and of a query topic with maintenance."""
    parts = [("threshold: 500, ", f"threshold: 500, maintenance: [{counts}], ")]
    parts.append(("correction: mean", f"correction: mean, maintenance: [{plain}]"))
    return load_spec(changed(*parts, text=BASE) + f"maintenance: [{everywhere}]\n")


def refused(old: ApplicationSpec | None, new: ApplicationSpec, now: str) -> list[str]:
    """Return which monitors' maintenance is refused at a moment."""
    now_ms = int(datetime.fromisoformat(now).timestamp() * 1000)
    problems = [one.field for one in difference(old, new, 4, now_ms=now_ms).refused]
    if "maintenance" in problems:  # once for all
        assert problems == ["maintenance"]
        return sorted(one.name for one in new.monitors)
    return sorted(one.split(".")[1] for one in problems if one.endswith(".maintenance"))


def test_what_is_late_for_every_monitor_is_said_once_with_its_line_and_what_to_do():
    [problem] = difference(spec(), spec(everywhere=SPAN), 4, now_ms=2**42).refused
    remedy = "to rest now, 'stream-svt control pause -c FILE DATASET --for 1h'"
    assert problem.field == "maintenance"
    assert problem.message == f"{SPAN} has begun: declare maintenance before it begins; {remedy}"
    config = parse_config(f"{BASE}maintenance: [{SPAN}]\n")
    assert config.placed(problem).line == BASE.count("\n") + 1
    own = Problem(0, "monitors.plain.maintenance", "late")
    at = next(number for number, line in enumerate(BASE.splitlines(), 1) if "name: plain" in line)
    assert config.placed(own) == Problem(at, own.field, own.message)
    assert config.placed(Problem(0, "datasets.x", "else")).line == 0


@pytest.mark.parametrize(
    ("now", "late"),
    [("2026-12-01T21:59Z", False), ("2026-12-01T22:00Z", True), ("2027-12-01T22:00Z", True)],
)
@pytest.mark.parametrize("before", [spec(), None], ids=["a change", "the first version"])
def test_an_interval_that_begins_in_the_past_is_refused(before, now, late):
    new = spec(counts=SPAN, plain=SPAN)
    assert refused(before, new, now) == ["many-users", "plain"] * late
    assert refused(new, new, now) == []
    assert refused(before, spec(everywhere=SPAN), now) == ["many-errors", "many-users", "plain"] * late


@pytest.mark.parametrize(
    ("now", "of_counts", "of_queries"),
    [
        ("2026-12-01T21:59Z", False, False),
        ("2026-12-01T22:00Z", True, True),
        ("2026-12-02T01:59Z", True, True),
        ("2026-12-02T02:00Z", True, False),  # a window until 03:00 is asked at 03:01
        ("2026-12-02T03:00Z", True, False),
        ("2026-12-02T03:01Z", False, False),
    ],
)
def test_an_interval_stays_until_its_last_window_is_asked(now, of_counts, of_queries):
    old = spec(counts=SPAN, plain=SPAN)
    assert refused(old, spec(), now) == ["many-users"] * of_counts + ["plain"] * of_queries
    shorter = SPAN.replace("02:00", "01:00")
    assert "plain" not in refused(old, spec(counts=SPAN, plain=SPAN), now)
    assert ("plain" in refused(old, spec(counts=SPAN, plain=shorter), now)) is (now > "2026-12-01T22")


@pytest.mark.parametrize(
    ("now", "running"),
    [
        ("2026-11-29T01:59Z", False),
        ("2026-11-29T02:00Z", True),
        ("2026-11-29T03:59Z", True),
        ("2026-11-29T04:00Z", False),
        ("2026-12-05T12:00Z", False),
        ("2026-12-06T03:00Z", True),
    ],
)
def test_a_weekly_time_comes_and_goes_between_two_of_its_times(now, running):
    with_it, without = spec(counts=SUNDAYS), spec()
    assert refused(without, with_it, now) == refused(with_it, without, now) == ["many-users"] * running


def test_times_of_each_day_may_come_and_go_though_a_window_of_theirs_is_always_open():
    nightly = ", ".join(
        f"{{every: {day} 02:00-04:00}}" for day in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    )
    assert refused(spec(), spec(counts=nightly), "2026-12-02T04:30Z") == []
    assert refused(spec(counts=nightly), spec(), "2026-12-02T04:30Z") == []
    assert refused(spec(counts=nightly), spec(), "2026-12-02T03:30Z") == ["many-users"]


def test_a_new_monitor_may_have_what_was_declared_for_others_and_one_that_goes_takes_its_own_along():
    old, now = spec(everywhere=SPAN), "2026-12-02T00:00Z"
    new = "  - {name: new, source: requests, measure: slow, epsilon: 1, cutoff: 5, threshold: 5}"
    more = f"{new}\nmaintenance: [{SPAN}]\n"
    assert refused(old, load_spec(BASE + more), now) == []
    assert refused(spec(), load_spec(BASE + more), now) == ["many-errors", "many-users", "new", "plain"]
    lines = [line for line in BASE.splitlines() if "many-users" not in line]
    assert refused(spec(counts=SPAN), load_spec("\n".join(lines)), now) == []
