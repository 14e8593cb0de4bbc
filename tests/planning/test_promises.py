"""What a limit that renews promises, and that nothing changes a promise once it is declared."""

from __future__ import annotations

import pytest

from stream_svt.planning import explain
from stream_svt.planning.difference import difference
from stream_svt.planning.promises import promises
from stream_svt.planning.sources import explain_sources
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.support.generated_play import at
from tests.support.sources import changed

LIMIT = "limit: {epsilon: 4, per: 30d}"
ROLLING = f"generate: 'd-{{date}}', every: 15d, from: 2026-01-05, lateness: 1h, {LIMIT}, unit: one stay"
UNTIL = ROLLING.replace("lateness", "until: 2026-02-04, lateness")
LATER = ROLLING.replace("01-05", "02-04")
MORE = LATER.replace("epsilon: 4", "epsilon: 5")
MONITOR = "name: m, topic: t, epsilon: 0.5, sensitivity: 1, bounds: [0, 9], threshold: 5, cutoff: 1"


def spec(*datasets: str) -> ApplicationSpec:
    declared = "\n".join(f"  - {{{one}}}" for one in datasets)
    return load_spec(
        f"application: app\ndatasets:\n{declared}\nmonitors:\n  - {{{MONITOR}, expected_queries: 9}}\n"
    )


SAID = (
    "d-{date}: the events of a privacy unit in any 30 days cost at most epsilon 4. At most 3 periods of 15 days "
    "read them, each with epsilon 1.333333333. Each pays for 2 alerts, about 4 in 30 days; with every: 10d for 2, "
    "about 6 in 30 days. Choose before you apply: `every` never changes."
)


@pytest.mark.parametrize(("day", "begin"), [(-9, "01-05"), (0, "01-20"), (14.9, "01-20"), (15, "02-04")])
def test_a_promise_names_its_periods_and_the_next_begin(day: float, begin: str) -> None:
    for one in (spec(ROLLING), spec(ROLLING).at(at(day))):
        assert promises(one, at(day)) == [f"{SAID} The next one begins at 2026-{begin} 00:00:00 UTC."]


def test_a_promise_names_the_look_back_and_the_names() -> None:
    named = ROLLING.replace("d-{date}", "{name}-{date}").replace(
        "every", "names: [a, b], looks_back: 28d, every"
    )
    more = named.replace("[a, b]", "[c]").replace("epsilon: 4", "epsilon: 5")
    said, other = promises(spec(named, more), at(1))
    assert (
        "in any 30 days and 28 days of look-back cost at most epsilon 4. At most 5 periods of 15 days read them"
        in said
    )
    assert "each with epsilon 0.8. Each pays for" in said
    assert "That holds for each of 2 names: a unit with several loses" in said
    assert "epsilon 5" in other


@pytest.mark.parametrize(
    ("day", "count"),
    [(1, 2), (59.9, 2), (60, 1)],
    ids=["in the first", "30 days after its end, but a moment", "30 days after its end"],
)
def test_a_second_generator_adds_its_limit_until_the_reach_of_the_first_is_over(
    day: float, count: int
) -> None:
    *first, second = promises(spec(UNTIL, MORE), at(day))
    assert len(first) == count - 1
    assert "cost at most epsilon 5" in second
    for said in first:
        begins = " The next one begins at 2026-01-20 00:00:00 UTC." if day == 1 else ""
        adds = "until 2026-03-06 00:00:00 UTC this limit and later ones add up."
        assert said == f"{SAID}{begins} The last one ends at 2026-02-04 00:00:00 UTC; {adds}"


def test_generators_with_one_promise_do_not_add_up() -> None:
    (said,) = promises(spec(UNTIL, LATER.replace("lateness: 1h", "lateness: 2h")), at(1))
    assert "add up" not in said


def test_of_a_generator_with_an_end_no_period_is_named_after_the_last_one() -> None:
    (said,) = promises(spec(UNTIL), at(16))
    assert "The next one" not in said
    assert promises(spec(UNTIL), at(61)) == [], "its reach is over"


def test_a_dataset_without_a_limit_that_renews_promises_nothing_for_a_time() -> None:
    assert promises(spec(ROLLING.replace("{epsilon: 4, per: 30d}", "4")), at(1)) == []


def refused(old: ApplicationSpec, new: ApplicationSpec, day: float = 20) -> list[str]:
    return [one.message for one in difference(old, new, 4, now_ms=at(day)).refused]


@pytest.mark.parametrize("day", [-9, 20])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("every: 15d", "every: 10d", "every and from of a generator never change"),
        ("01-05", "01-06", "every and from of a generator never change"),
        ("01-05", "01-20", "from, per, every, looks_back and the limit never change"),
        ("01-20", "01-05", "from, per, every, looks_back and the limit never change"),
        ("per: 30d", "per: 29d", "from, per, every, looks_back and the limit never change"),
        ("every", "looks_back: 12h, every", "from, per, every, looks_back and the limit never change"),
        ("epsilon: 4", "epsilon: 5", "from, per, every, looks_back and the limit never change"),
        ("{epsilon: 4, per: 30d}", "4", "from, per, every, looks_back and the limit never change"),
    ],
)
def test_what_a_promise_rests_on_never_changes(old: str, new: str, message: str, day: float) -> None:
    before = ROLLING if old in ROLLING else ROLLING.replace(new, old)
    for one, other in ((before, before.replace(old, new)), (before.replace(old, new), before)):
        found = refused(spec(one), spec(other), day)
        assert any(message in text for text in found), found


def test_a_second_generator_may_promise_something_else_from_a_later_day() -> None:
    old = spec(ROLLING)
    assert refused(old, spec(UNTIL, MORE)) == []
    assert refused(old, spec(UNTIL, MORE.replace("30d", "60d"))) == []
    (problem,) = refused(old, spec(UNTIL.replace("02-04", "01-20"), MORE))
    assert "give the generator an until, and declare it a second time from there" in problem, "a gap"
    (problem,) = refused(old, spec(UNTIL.replace("epsilon: 4", "epsilon: 6"), MORE))
    assert "both limits add up" in problem, "the first one must stay as it was"


def test_apply_says_the_promise_of_a_new_generator() -> None:
    lines = difference(spec(ROLLING.replace("d-", "e-")), spec(ROLLING), 4, now_ms=at(1)).lines
    text = "one dataset each 15 days, epsilon 1.333333333 each, for one stay (any 30 days: at most epsilon 4)"
    begin = lines.index(f"+ generator d-{{date}}: {text}")
    assert lines[begin + 1].strip().startswith(SAID)


def test_check_explains_a_dataset_by_its_promise() -> None:
    lines = explain(spec(ROLLING).at(at(1)))
    (protects,) = (line for line in lines if "Protects" in line)
    assert "Any 30 days: at most epsilon 4." in protects
    assert "every period adds datasets" not in protects
    (lasts,) = (line for line in lines if "Lasts" in line)
    assert lasts.endswith("skips queries until the next period begins.")


def test_a_source_says_the_promise_instead_of_a_sum_that_grows() -> None:
    renewing = changed(
        ("from: 2026-11-28", "every: 15d, from: 2026-11-28"), ("{epsilon: 2}", "{epsilon: 8, per: 30d}")
    )
    (protects,) = (line for line in explain_sources(load_spec(renewing).at(at(330))) if "Protects" in line)
    assert protects.endswith(
        "all events of one `user` in 15 days in dataset web-{date}: at most epsilon 2.666666666. "
        "Any 30 days: at most epsilon 8."
    )
