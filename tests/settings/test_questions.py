"""Keys of questions: what follows from them for a monitor, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from stream_svt.errors import ConfigError
from stream_svt.settings import fields
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.document import read
from stream_svt.settings.fields import Named
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.questions import BOUND, Question
from stream_svt.settings.sections import ConfigDocument

SOURCE = (
    "name: requests, topic: raw, unit: user, window: 1h, series: {field: page, names: [/, /search]}, measures: "
    "[{name: visitors}, {name: errors, where: {status: [500]}}, {name: events, of: {events: {at_most: 3}}}]"
)
DATASET = "name: web, limit: 20"


def application(
    question: str,
    measure: str = "visitors",
    dataset: str = "web",
    declared: str = DATASET,
    file: str = "10 /\n20 /search",
    source: str = SOURCE,
) -> ApplicationSpec:
    monitor = f"name: m, source: requests, measure: {measure}, epsilon: 1/2, cutoff: 5, {question}"
    source = f'{source}, dataset: "{dataset}"'
    text = f"{{application: web, sources: [{{{source}}}], datasets: [{{{declared}}}], monitors: [{{{monitor}}}]}}"
    return load_spec(text, read_names=lambda _: file.split("\n"))


def asked(spec: ApplicationSpec) -> Question:
    [found] = spec.window_list(spec.sources[0]).questions
    return found


@pytest.mark.parametrize(
    ("question", "measure", "sensitivity", "granularity"),
    [
        ("threshold: 5, for: 5", "visitors", 1, 1),
        ("threshold: 5, mean: 3, over: [2h, 6h], for: {windows: 5, at_least: 4}", "events", 3, 1),
        ("thresholds: t.txt", "events", 3, 1),
        ("threshold: 5, share: {of: errors, above: 1%}", "visitors", Fraction(101, 100), Fraction(1, 100)),
        (
            "threshold: 5, share: {of: errors, above: 0.25}, for: 2",
            "visitors",
            Fraction(5, 4),
            Fraction(1, 4),
        ),
        ("threshold: 5, usual: {every: 7d}", "visitors", 2, 1),
        (
            "threshold: 5, usual: {every: 1d, times: 3, factor: 1.5}",
            "events",
            Fraction(15, 2),
            Fraction(1, 2),
        ),
        ("threshold: 5, excess: {over: 512, windows: 24}", "events", 72, 1),
    ],
)
def test_sensitivity_and_granularity_follow_from_a_question(question, measure, sensitivity, granularity):
    spec = application(question, measure)
    [monitor] = spec.monitors
    bound = BOUND * Fraction(granularity)
    assert (monitor.sensitivity, monitor.granularity, monitor.monotonic) == (sensitivity, granularity, True)
    assert monitor.bounds == (-bound, bound)
    down, up = asked(spec).moves
    assert (down + up) * monitor.granularity == monitor.sensitivity
    restored = MonitorSpec.from_json(monitor.to_json())
    assert restored.tested == monitor.tested == f"monitor {asked(spec).rows}"
    assert restored.hash() == monitor.hash()


def test_thresholds_are_by_series_and_may_change_without_an_effect_on_runs():
    one, other = (
        application("thresholds: t.txt", file=file) for file in ("10 /\n20 /search", "# none\n7 /search\n0 /")
    )
    assert asked(one).thresholds == (10, 20)
    assert asked(other).thresholds == (0, 7)
    assert one.monitors[0].threshold == 0
    assert one.monitors[0].hash() == other.monitors[0].hash()


def test_a_file_of_thresholds_is_parsed_once(monkeypatch):
    lines = []
    integer = fields.integer
    monkeypatch.setattr(fields, "integer", lambda value: lines.append(value) or integer(value))
    spec = application("thresholds: t.txt", file="123457 /\n123458 /search")
    assert asked(spec).thresholds == asked(spec).thresholds == (123457, 123458)
    assert [lines.count(number) for number in (123457, 123458)] == [1, 1]


def test_a_bundle_has_the_files_of_thresholds():
    monitor = "name: m, source: requests, measure: visitors, epsilon: 1, cutoff: 5, thresholds: t.txt"
    parts = f"sources: [{{{SOURCE}, dataset: web}}], datasets: [{{{DATASET}}}], monitors: [{{{monitor}}}]"
    text = f"{{application: web, {parts}}}"
    files = SimpleNamespace(lines=lambda name: Named(name, ["10 /", "20 /search"]))
    found = ConfigDocument.model_validate(read(text, "configuration").data, context=files)
    assert found.files == {"t.txt": "10 /\n20 /search\n"}


def test_a_question_is_asked_at_closes_only():
    ticks = application("threshold: 5, for: 3", source=f"{SOURCE}, ask: tick")
    assert ticks.monitors[0].expected_queries == 30 * 24 * 2
    assert (
        application("threshold: 5", source=f"{SOURCE}, ask: tick").monitors[0].expected_queries
        > 30 * 24 * 2 * 100
    )


def test_a_monitor_without_a_question_is_as_before():
    spec = application("threshold: 5")
    assert spec.window_list(spec.sources[0]).questions == ()
    assert spec.monitors[0].tested == "visitors"
    assert "share" not in spec.monitors[0].to_json()


VISITS = "threshold: 5, excess: {over: 5, windows: 3, visits: {at_most: "


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("threshold: 5, share: {of: error, above: 1%}", "share.of: source 'requests' has no measure 'error'; did you"),
        ("threshold: 5, share: {of: visitors, above: 1%}", "share.of: must be another measure with the same of"),
        ("threshold: 5, share: {of: events, above: 1%}", "share.of: must be another measure with the same of"),
        ("threshold: 5, share: {of: errors, above: 100%}", "share.above: expected a share such as 1%"),
        ("threshold: 5, share: {of: errors, above: true}", "share.above: expected a share such as 1%"),
        ("threshold: 5, over: [1h]", "over: expected a short and a longer time, such as [5m, 1h], found a list of 1"),
        ("threshold: 5, for: true", "for: expected a number of windows such as 5, or {windows: 5, at_least: 4}"),
        ("threshold: 5, share: {of: errors, above: 1/3}", "share.above: must be a decimal, found '1/3'"),
        ("threshold: 5, share: {of: errors, above: 0.00001}", "share.above: has too many decimals"),
        ("threshold: 5, over: [30m, 1h]", "over: must be a multiple of the window (1h), found 30m"),
        ("threshold: 5, over: [6h, 1h]", "over: expected a short and a longer time"),
        ("threshold: 5, over: 1h", "over: expected a short and a longer time, such as [5m, 1h], found '1h'"),
        ("threshold: 5, usual: {every: 7d, times: 40}", "usual: reads 6720 windows back, and at most 2000 are kept"),
        ("threshold: 5, for: 1", "for: must be at least 2, found 1"),
        ("threshold: 5, for: {windows: 3, at_least: 4}", "for.at_least: must be at most windows (3), found 4"),
        ("threshold: 5, excess: {over: 1/2, windows: 3}", "excess.over: must be a whole number of at most 70,368"),
        (f"{VISITS}3, in: 3}}}}", "excess.visits.at_most: must be less than in (3), found 3"),
        (f"mean: 2, {VISITS}1, in: 3}}}}", "excess.visits: is for sums of counts: remove mean"),
        ("threshold: 5, for: 3, sensitivity: 2", "sensitivity: follows from source 'requests': remove it"),
    ],
)  # fmt: skip
def test_wrong_questions_are_refused(question: str, message: str):
    with pytest.raises(ConfigError) as refused:
        application(question)
    assert f"monitors[0].{message}" in str(refused.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("10 /", "has no threshold of /search"),
        ("10 /\n20 /search\n30 /", "line 3: '/' occurs twice"),
        (
            "10 /\nmany /search",
            "line 2: expected a whole number up to 2^40 and a series, found 'many /search'",
        ),
        ("10 /\n20", "line 2: expected a whole number up to 2^40 and a series, found '20'"),
        (f"10 /\n{2**40 + 1} /search", "line 2: expected a whole number up to 2^40"),
    ],
)
def test_wrong_files_of_thresholds_are_refused(file: str, message: str):
    with pytest.raises(ConfigError, match=r"thresholds: 't.txt'") as refused:
        application("thresholds: t.txt", file=file)
    assert message in str(refused.value)


def test_a_question_needs_a_source():
    monitor = "name: m, topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5, for: 3"
    with pytest.raises(ConfigError, match=r"monitors.0..for: is used with source only"):
        load_spec(
            f"{{application: web, datasets: [{{name: a, limit: 9, unit: one user}}], monitors: [{{{monitor}}}]}}"
        )


def test_a_question_is_about_counts_and_not_about_answers_that_are_passed_on():
    answers = "name: s, topic: t, answers: {value: v, dataset: web, sensitivity: 1, bounds: [0, 9]}"
    monitor = "name: m, source: s, epsilon: 1, cutoff: 1, threshold: 5, expected_queries: 10, for: 3"
    datasets = "[{name: web, limit: 9, unit: one user}]"
    with pytest.raises(
        ConfigError, match=r"monitors.0..for: source 's' passes on answers, and has no measures"
    ):
        load_spec(
            f"{{application: web, sources: [{{{answers}}}], datasets: {datasets}, monitors: [{{{monitor}}}]}}"
        )


GENERATED = 'generate: "web-{date}", from: 2026-11-23, lateness: 2h'


@pytest.mark.parametrize(
    ("declared", "is_refused"),
    [
        (f"{GENERATED}, limit: 4", True),
        (f"{GENERATED}, limit: {{epsilon: 4, per: 30d}}, every: 14d, looks_back: 28d", True),
        (f"{GENERATED}, limit: {{epsilon: 4, per: 30d}}, every: 14d, looks_back: 29d", False),
    ],
)
def test_what_is_usual_is_read_over_borders_of_periods_that_count_it(declared: str, is_refused: bool):
    question = "threshold: 5, usual: {every: 7d}, for: 3"
    if not is_refused:
        assert asked(application(question, dataset="web-{date}", declared=declared)).look_back == 674
        return
    with pytest.raises(ConfigError, match=r"usual: reads 674h back, into earlier periods of 'web-.date.'"):
        application(question, dataset="web-{date}", declared=declared)


def test_borders_of_datasets_of_others_do_not_matter_to_what_is_usual():
    other = '{generate: "shop-{date}", from: 2026-11-23, limit: 4, unit: one basket'
    assert asked(application("threshold: 5, usual: {every: 7d}", declared=f"{DATASET}}}, {other}")).usual


def test_a_measure_that_a_share_is_of_is_tested():
    spec = application("threshold: 5, share: {of: errors, above: 1%}")
    untested = [note.message for note in spec.notes if "no monitor tests" in note.message]
    assert untested == ["no monitor tests measure 'events' of source 'requests'"]


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"end: {": "mute: 1d, end: {"}, "mute", "follows from end: write longest there"),
        ({"below: 400": "below: 501"}, "end.below", "must not be above the threshold 500, found 501"),
        (
            {"below: 400": "below: 60"},
            "end.below",
            "no end would be seen: without events a test reports it 0% of the time. Raise it to 352, or give end",
        ),
        ({"below: 400": "below: 400, epsilon: 0.01"}, "end.below", "no end would be seen"),
        ({"below: 400": "below: 400, epsilon: 1/1000000000000"}, "end.epsilon", "must be at least 1e-9"),
        ({"end: {": "append: sweep, end: {"}, "end", "cannot be combined with append"),
        ({"end: {": "not_renewed: 3, end: {"}, "not_renewed", "cannot be combined with end"),
        ({"name: m,": "name: m.end,"}, "name", "is a name of the service"),
        ({"limit: 20": "limit: {rho: 1}"}, "end", "where one run at a time is open"),
        ({"limit: 20": "limit: 0.9"}, "end", "one whole run costs epsilon 1"),
        (
            {", series: {field: page, names: [/, /search]}": ""},
            "end",
            "has no series, and only series are muted",
        ),
        ({"window: 1h": "window: 1h, ask: tick, every: 1m"}, "end", "asks at each tick"),
    ],
)
def test_wrong_ends_are_refused(change: dict[str, str], key: str, message: str):
    source = f"{SOURCE}, dataset: web"
    monitor = "name: m, source: requests, measure: visitors, epsilon: 0.5, cutoff: 5, threshold: 500"
    end = "{below: 400, epsilon: 1}" if "limit: 0.9" in change.values() else "{below: 400}"
    parts = f"sources: [{{{source}}}], datasets: [{{{DATASET}}}], monitors: [{{{monitor}, end: {end}}}]"
    text = f"{{application: web, {parts}}}"
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(ConfigError) as refused:
        load_spec(text)
    found = {problem.field: problem.message for problem in refused.value.problems}
    assert message in found[f"monitors[0].{key}"]


@pytest.mark.parametrize(
    ("threshold", "below", "enough"), [(250, 60, "and the threshold to 302"), (1500, 301, "to 302")]
)
def test_an_end_of_sums_is_found_without_events_or_the_least_below_is_named(threshold, below, enough):
    def application(below: int) -> str:
        monitor = f"name: m, source: requests, epsilon: 0.5, cutoff: 5, threshold: {threshold}"
        asks = f"measure: visitors, excess: {{over: 50, windows: 3}}, end: {{below: {below}}}"
        sources = f"sources: [{{{SOURCE}, dataset: web}}], datasets: [{{{DATASET}}}]"
        return f"{{application: web, {sources}, monitors: [{{{monitor}, {asks}}}]}}"

    with pytest.raises(ConfigError, match=f"Raise it {enough}, or give end"):
        load_spec(application(below))
    if threshold > below + 1 == 302:
        assert load_spec(application(302)).monitors[1].ends == "m"


def test_ends_are_tested_by_a_monitor_that_follows_from_the_first():
    spec = application(
        "threshold: 500, for: 5, end: {below: 400, longest: 2d, epsilon: 1, cutoff: 3}", "events"
    )
    alerts, ends = spec.monitors
    assert (alerts.name, alerts.mute, ends.name, ends.ends) == ("m", 2 * 86_400_000, "m.end", "m")
    assert (ends.threshold, ends.epsilon, ends.cutoff, ends.expected_queries) == (-400, 1, 3, 3 * 48)
    assert (ends.sensitivity, ends.monotonic, ends.bounds) == (alerts.sensitivity, True, alerts.bounds)
    first, second = spec.window_list(spec.sources[0]).questions
    assert (first.moves, second.moves) == ((0, 3), (3, 0))
    assert (first.holds, second.holds) == ((5, 5), (5, 1))
    assert MonitorSpec.from_json(ends.to_json()) == ends
    assert len({alerts.tested, ends.tested, alerts.declares_about, ends.declares_about}) == 4
