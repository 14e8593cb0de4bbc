"""What a source counts and costs, in words, and what `apply` may change of it."""

from __future__ import annotations

import pytest

from stream_svt.planning.difference import Difference, difference
from stream_svt.planning.sources import bytes_per_day, explain_sources, open_windows, rows_per_day
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.sources import MeasureSpec, SourceSpec
from tests.support.sources import ANSWERS, changed

NOW_MS = 1_796_000_000_000
"""In a period of the generator."""


def spec(*changes: tuple[str, str]) -> ApplicationSpec:
    return load_spec(changed(*changes))


def compared(*changes: tuple[str, str], before: ApplicationSpec | None = None) -> Difference:
    return difference(before or spec(), spec(*changes), 4, now_ms=NOW_MS)


def refusals(found: Difference) -> dict[str, str]:
    return {one.field: one.message for one in found.refused}


LATER = (
    "for windows that are not open yet: applied now, from the first that begins after 2026-11-30 01:18:20 UTC; it "
    "opens 25m before"
)
FIXED = {
    "topic": ("topic: web.requests", "topic: web.others"),
    "format": ("topic: web.requests", "topic: web.requests\n    format: avro"),
    "unit": ("unit: user", "unit: account"),
    "series": ("field: page", "field: route"),
    "dataset": ('dataset: "web-{date}"', 'dataset: "www-{date}"'),
    "time": ("in: ms", "in: s"),
    "where": ("unit: user", "unit: user\n    where: {method: GET}"),
    "every": ("window: 1h", "window: 1h\n    every: 1m"),
    "window": ("window: 1h", "window: 30m"),
    "lateness": ("window: 1h", "window: 1h\n    lateness: 2m"),
    "ahead": ("window: 1h", "window: 1h\n    ahead: 1h"),
    "ask": ("window: 1h", "window: 1h\n    ask: tick"),
}
"""Another value of each key that decides counts."""


@pytest.mark.parametrize("key", FIXED)
def test_what_decides_a_count_never_changes(key: str) -> None:
    changes = [FIXED[key]]
    if key == "dataset":
        changes.append(('generate: "web-{date}"', 'generate: "www-{date}"'))
    found = refusals(compared(*changes))
    assert "another ledger for the same persons" in found[f"sources.requests.{key}"]
    assert [one for one in found if one.startswith("sources")] == [f"sources.requests.{key}"]


def test_each_key_of_a_source_is_fixed_or_has_a_rule_of_its_own() -> None:
    keys = {info.alias or name for name, info in SourceSpec.model_fields.items()}
    assert keys == {*FIXED} | {"name", "settle", "measures", "answers"}
    assert {*MeasureSpec.model_fields} == {"name", "conditions", "at_most"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("window: 1h", "window: 1h\n    settle: 20s"), "settle: 10s -> 20s"),
        (("/cart, ", ""), "series: removes /cart, for windows that are not open yet"),
        (("[/, /search", "[/search, /"), "series: another order, for windows"),
        (
            ("measures:", "measures:\n      - {name: posts, where: {method: POST}}"),
            "measures: adds posts, for windows that are not open yet: applied now, from the first that begins after",
        ),
        (("/cart, ", "/cart, /help, "), f"series: adds /help, {LATER}"),
    ],
)
def test_settle_lists_and_more_measures_may_change(change: tuple[str, str], says: str) -> None:
    found = compared(change)
    assert found.refused == []
    at = found.lines.index("~ source requests")
    assert found.lines[at + 1].strip().startswith(says)


def test_the_names_of_datasets_may_change() -> None:
    wards = ('dataset: "web-{date}"', 'dataset: {pattern: "web-{name}-{date}", field: ward, names: [a, b]}')
    declared = ('generate: "web-{date}"', 'generate: "web-{name}-{date}", names: [a, b, c]')
    before = spec(wards, declared)
    found = compared((wards[0], wards[1].replace("a, b", "a, c")), declared, before=before)
    assert found.refused == []
    assert "    dataset names: adds c and removes b, for windows" in "\n".join(found.lines)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("      - {name: slow, where: {ms: {at_least: 2000}}}\n", ""), "slow cannot be removed"),
        (("at_least: 2000", "at_least: 3000"), "slow cannot be changed"),
        (
            ("measures:", "measures:\n      - {name: events, of: {events: {at_most: 2}}}"),
            "events counts 2 events of a unit, and the source has 1 at most",
        ),
    ],
)
def test_a_measure_stays_as_it_is_and_none_is_more_sensitive(change: tuple[str, str], says: str) -> None:
    assert says in refusals(compared(change))["sources.requests.measures"]


def test_a_less_sensitive_measure_changes_no_monitor() -> None:
    first = ("{name: visitors}", "{name: visitors, of: {events: {at_most: 5}}}")
    before = spec(first)
    found = compared(first, ("measures:", "measures:\n      - {name: all}"), before=before)
    assert found.refused == []
    assert [line for line in found.lines if line[:1] in "+~-"] == ["~ source requests"]


def test_a_name_never_comes_to_mean_another_source() -> None:
    digest = spec().sources[0].digest
    same = difference(None, spec(), 4, sources={"requests": digest}, now_ms=NOW_MS)
    other = difference(None, spec(FIXED["ahead"]), 4, sources={"requests": digest}, now_ms=NOW_MS)
    assert same.refused == []
    assert "an earlier version declared the name for another source" in refusals(other)["sources.requests"]
    more = ("{name: visitors}", "{name: visitors, of: {events: {at_most: 5}}}")
    assert difference(None, spec(more), 4, sources={"requests": digest}, now_ms=NOW_MS).refused


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            ("status: [500, 502, 503, 504]", "status: [200]"),
            "errors is not as an earlier version declared it",
        ),
        (("      - {name: slow, where: {ms: {at_least: 2000}}}\n", ""), "slow is left out"),
    ],
)
def test_a_source_that_is_declared_again_has_the_measures_of_before(
    change: tuple[str, str], says: str
) -> None:
    known = spec().sources[0].digests()
    assert difference(None, spec(), 4, sources=known, now_ms=NOW_MS).refused == []
    again = difference(None, spec(change), 4, sources=known, now_ms=NOW_MS)
    assert says in refusals(again)["sources.requests.measures"]


def test_a_second_source_on_a_topic_is_named_as_another_ledger() -> None:
    more = """
  - {name: seconds, topic: web.requests, unit: user, window: 1h, dataset: second}
datasets:
  - {name: second, limit: 1}"""
    text = changed(("\ndatasets:", more)) + (
        "  - {name: m2, source: seconds, epsilon: 1, cutoff: 5, threshold: 500, mute: 1h}\n"
    )
    found = difference(spec(), load_spec(text), 4, now_ms=NOW_MS)
    assert found.refused == []
    lines = "\n".join(found.lines)
    assert "+ source seconds on topic web.requests" in lines
    asked = spec(
        ("measure: visitors,", "measure: visitors, for: 3,"), ("measure: errors,", "measure: errors, for: 2,")
    )
    effects = [
        one for one in difference(None, asked, 4, now_ms=NOW_MS).lines if " tests the smallest of " in one
    ]
    assert len(effects) == 2
    assert len({one.index(one.split(" tests ")[0].split()[-1]) for one in effects}) == 1, (
        "one below the other"
    )
    assert "another ledger for the persons of source requests: the losses of both add up" in lines


@pytest.mark.parametrize(("key", "value"), [("measure", "errors"), ("source", "others")])
def test_a_monitor_stays_with_its_source_and_measure(key: str, value: str) -> None:
    others = (
        "name: others, topic: web.requests, unit: user, window: 1h, dataset: x, measures: [{name: visitors}]"
    )
    datasets = f"\n  - {{{others}}}\ndatasets:\n  - {{name: x, limit: 1}}"
    before = spec(("\ndatasets:", datasets))
    first = "source: requests, measure: visitors"
    replaced = {"measure": first.replace("visitors", value), "source": first.replace("requests", value)}[key]
    after = spec(("\ndatasets:", datasets), (first, replaced))
    assert f"monitors.many-users.{key}" in refusals(difference(before, after, 4, now_ms=NOW_MS))


def test_a_removed_source_is_named() -> None:
    kept = """application: web
datasets: [{generate: "web-{date}", from: 2026-11-28, lateness: 1h, limit: 2, unit: one event}]
monitors: [{name: m, topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,
  expected_queries: 9}]
"""
    found = difference(spec(), load_spec(kept), 4, now_ms=NOW_MS)
    assert any(
        line.startswith("- source requests: its counts are no longer written") for line in found.removals
    )


# -- in words


def test_a_source_is_explained_with_what_it_moves_protects_assumes_writes_and_takes() -> None:
    text = "\n".join(explain_sources(spec().at(NOW_MS)))
    assert text.startswith(
        "Source requests on topic web.requests:\n  Counts   visitors, errors, slow (different units) of 5 "
    )
    for part in (
        "of 5 series, in windows of 1h: 15 counts a window.",
        "one `user` adds 0 to 1 to each count",
        "all events of one `user` in a day in dataset web-{date}: at most epsilon 2.\n",
        "replication within 10s (settle)",
        "producers' timestamps",
        "about 360 rows, ",
        "a day to topic web.requests.counts",
        "24 MB of memory for a million pairs",
        "up to 2 open windows",
        "1 GiB holds those of 44h",
    ):
        assert part in text


def test_losses_of_datasets_by_a_field_are_said_to_add_up() -> None:
    found = spec(
        ('dataset: "web-{date}"', 'dataset: {pattern: "web-{name}-{date}", field: ward, names: [a, b]}'),
        ('generate: "web-{date}"', 'generate: "web-{name}-{date}", names: [a, b]'),
    )
    text = "\n".join(explain_sources(found.at(NOW_MS)))
    assert "A `user` with several values of `ward` is in several datasets, and their losses add up." in text
    assert "30 counts a window" in text


def test_rows_and_open_windows_follow_from_the_times_of_a_source() -> None:
    hourly, [by_tick] = spec().sources[0], spec(("window: 1h", "window: 1h\n    ask: tick")).sources
    assert rows_per_day(hourly) == 15 * 24
    assert rows_per_day(by_tick) == 15 * 24 * 366  # each tick of an hour, and those of the minute of lateness
    assert bytes_per_day(by_tick) == pytest.approx(366 * bytes_per_day(hourly), abs=366)
    [daily] = spec(("window: 1h", "window: 1d\n    ahead: 2d")).sources
    assert open_windows(hourly) == 2
    assert open_windows(daily) == 4


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (("value: payload.hits", "value: hits"), ["sources.hits.answers"]),
        (("dataset: {field: store}", "dataset: {field: shop}"), ["sources.hits.answers"]),
        (("answers:", "every: 1m\n    answers:"), ["sources.hits.every"]),
        (("answers:", "settle: 1m\n    answers:"), []),
        (("sensitivity: 2", "sensitivity: 3"), []),
        (("sensitivity: 2", "sensitivity: 1"), ["monitors.busy.sensitivity"]),
    ],
)
def test_where_answers_are_never_changes_and_a_declaration_as_on_query_topics(change, refused) -> None:
    old, new = load_spec(ANSWERS), load_spec(changed(change, text=ANSWERS))
    assert [*refusals(difference(old, new, 4, now_ms=NOW_MS))] == refused


def test_what_is_assumed_of_answers_is_told() -> None:
    head, passes, moves, *_ = explain_sources(load_spec(ANSWERS))
    assert head == "Source hits on topic flink.hits:"
    assert "`payload.hits` of series `page` as it is" in passes
    assert "one user moves each answer by 2 at most, up or down: that is declared" in moves


QUESTIONS = {
    "threshold: 50, share: {of: errors, above: 1%}, for: 5": (
        "asking tests the smallest of 5 windows of errors less 1 % of visitors: one `user` moves it by -0.01 to 1. "
        "Nothing is asked in the first 4h of each period, nor in the first 4h of the source and of a series, nor where "
        "a window that it reads was lost. A series with fewer than 51 visitors in a window is never above the "
        "threshold."
    ),
    "threshold: 50, mean: 3, over: [2h, 6h], for: {windows: 5, at_least: 3}": (
        "asking tests the 3rd largest of 5 windows of the smaller of the means over 2h and 6h of the mean of 3 windows "
        "of visitors: one adds 0 to 1. Nothing is asked in the first 11h of each period, nor in the first 11h of the "
        "source and of a series, nor where a window that it reads was lost."
    ),
    "threshold: 50, excess: {over: 512, windows: 24}": (
        "asking tests the largest sum of what the last 1 to 24 windows have above 512, of visitors: one adds 0 to 24. "
        "Nothing is asked in the first 23h of the source and of a series, nor where a window that it reads was lost."
    ),
    "threshold: 50, excess: {over: 512, windows: 24, visits: {at_most: 1, in: 24}}": (
        "asking tests the largest sum of what the last 1 to 24 windows have above 512, of visitors, each unit "
        "counted in 1 of any 24 windows at most: one `user` moves it by -1 to 1. Nothing is asked in the first 23h of "
        "the source and of a series, nor where a window that it reads was lost."
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_told_in_words(question: str) -> None:
    monitor = (
        f"  - {{name: asking, source: requests, measure: visitors, epsilon: 1, cutoff: 5, {question}}}\n"
    )
    found = spec(("monitors:\n", f"monitors:\n{monitor}"), ("limit: {epsilon: 2}", "limit: {epsilon: 3}"))
    assert f"  Asks     {QUESTIONS[question]}" in explain_sources(found)
    [takes] = [line for line in explain_sources(found) if line.startswith("  Takes")]
    assert "closed windows, which questions read" in takes
    units = " Units of 23 closed windows, which visits look up, also in the event log"
    looks_up = f"{units}: 184 MB for a million pairs in each."
    assert (looks_up in takes) is ("visits" in question)
