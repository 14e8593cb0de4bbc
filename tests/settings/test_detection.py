"""`detect`: the numbers that follow, what is refused, and which numbers an applied version keeps."""

from __future__ import annotations

import json
from fractions import Fraction

import jsonschema
import pytest
from msgspec import to_builtins

from stream_svt.application.config import Config, parse_config
from stream_svt.errors import ConfigError
from stream_svt.mechanisms.accuracy import reported_margin
from stream_svt.mechanisms.correction import Exposure
from stream_svt.mechanisms.sparse_vector import sparse_vector
from stream_svt.planning.difference import difference
from stream_svt.settings import detection
from stream_svt.settings.detection import FILE, FOLLOW, Held, RunProblem, SolvedRun, solve
from stream_svt.settings.document import read
from stream_svt.settings.monitors import Change, MonitorSpec
from stream_svt.settings.sections import json_schema
from stream_svt.worker.parser import spec_of

DETECT = "above: 500, surely_from: 700, alerts: 10, per: 30d"


def text(
    detect: str = DETECT,
    more: str = "",
    series: int = 5,
    days: int = 15,
    limit: str = "4, per: 30d",
) -> str:
    """Return a configuration with one monitor of hourly counts of so many series, in periods of so many days."""
    names = ", ".join(f"s{number}" for number in range(series))
    return f"""
application: web
sources:
  - {{name: requests, topic: raw, unit: user, window: 1h, series: {{field: page, names: [{names}]}},
     dataset: "web-{{date}}", measures: [{{name: visitors}}, {{name: errors, where: {{status: [500]}}}}]}}
datasets: [{{generate: "web-{{date}}", from: 2026-01-05, every: {days}d, lateness: 1h, limit: {{epsilon: {limit}}}}}]
monitors:
  - {{name: many, source: requests, measure: visitors, detect: {{{detect}}}{more}}}
"""


def config(*args: object, **options: object) -> Config:
    return parse_config(text(*args, **options))


def monitor(*args: object, **options: object) -> MonitorSpec:
    return config(*args, **options).spec.monitors[0]


def problems(*args: object, **options: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        config(*args, **options)
    return {one.field.removeprefix("monitors[0]."): one.message for one in error.value.problems}


@pytest.mark.parametrize(
    ("series", "days", "cutoff", "epsilon"),
    [(5, 30, 10, "0.575"), (1_000, 30, 10, "0.859"), (5, 15, 5, "0.326"), (1_000, 15, 5, "0.475")],
)
def test_a_run_pays_for_the_alerts_of_a_period_and_finds_the_distance(series, days, cutoff, epsilon):
    found = monitor(series=series, days=days)
    assert (found.threshold, found.cutoff, found.on_halt) == (500, cutoff, "stop")
    assert found.epsilon == Fraction(epsilon)
    assert found.expected_queries == days * 24 * 2 ** (series - 1).bit_length()
    assert reported_margin(found.mechanism(), 0.95) <= 200
    # One alert in ten is wasted at most: the default of the correction.
    assert found.correction_rule() == Exposure(
        expected_queries=found.expected_queries, false_alerts=Fraction(cutoff, 10)
    )


def test_no_smaller_epsilon_finds_the_distance_at_any_split():
    found = monitor()
    for hundredth in range(10, 300):
        run = sparse_vector(
            epsilon=found.epsilon * Fraction(99, 100),
            cutoff=found.cutoff,
            monotonic=True,
            correction=found.correction_rule(),
            split=found.cutoff * Fraction(hundredth, 100),
        )
        assert reported_margin(run, 0.95) > 200


@pytest.mark.parametrize(
    ("question", "detect"),
    [
        ("share: {of: errors, above: 1%}", "above: 0.5, surely_from: 300.25, alerts: 3, per: 30d"),
        ("usual: {every: 1d, times: 3, factor: 1.5}", DETECT),
        ("thresholds: t.txt", "above: 0, surely_from: 200, alerts: 10, per: 30d"),
        ("excess: {over: 512, windows: 24}, for: 3", "above: 300, surely_from: 5000, alerts: 10, per: 30d"),
    ],
)
def test_answers_to_questions_are_found_from_the_same_distance_on(tmp_path, question, detect):
    (tmp_path / "t.txt").write_text("".join(f"9 s{number}\n" for number in range(5)))
    source = text(detect, f", {question}", limit="40, per: 30d").replace(
        "lateness", "looks_back: 6d, lateness"
    )
    [found] = parse_config(source, directory=tmp_path).spec.monitors
    asked = found.detect
    assert asked is not None
    margin = reported_margin(found.mechanism(), 0.95)
    assert margin * found.granularity <= asked.surely_from - found.threshold
    assert found.mechanism() == SolvedRun.by(found, asked).of.mechanism(found.epsilon, found.split)


def test_without_a_limit_per_time_alerts_are_for_the_life_of_a_dataset():
    found = monitor("above: 500, surely_from: 700, alerts: 10", limit="4")
    assert (found.cutoff, found.epsilon) == (
        10,
        monitor("above: 0, surely_from: 200, alerts: 10", limit="4").epsilon,
    )
    assert "has no per: leave it out" in problems(limit="4")["detect.per"]
    assert "has per 30d: write that" in problems("above: 500, surely_from: 700, alerts: 10")["detect.per"]
    assert "has per 30d: write that" in problems(DETECT.replace("30d", "31d"))["detect.per"]


@pytest.mark.parametrize(("distance", "queries"), [(200, 720), (50, 64), (1000, 4096)])
def test_more_alerts_cost_more_up_to_one_for_each_query(distance: int, queries: int):
    """Beyond that a tenth of the alerts, which may be false, would let each test report."""
    cutoffs = [1, 2, 5, 20, queries // 2, queries]
    found = [solve(RunProblem(distance, 1, cutoff, queries)) for cutoff in cutoffs]
    epsilons = [solved[0] for solved in found if solved is not None]
    assert len(epsilons) == len(cutoffs)
    assert epsilons == sorted(set(epsilons))
    assert solve(RunProblem(distance, 1, queries + 1, queries)) is None


def test_more_alerts_than_queries_are_refused():
    asked = "above: 500, surely_from: 700, alerts: 20000, per: 30d"
    told = "a period has 2,880 queries, and 10,000 of the alerts: ask for fewer alerts"
    assert told in problems(asked)["detect.surely_from"]


@pytest.mark.parametrize("number", ["1/0", "-1", "0", "1e9", "1.5", "9" * 30])
def test_numbers_of_a_version_that_are_no_fractions_are_refused(number: str):
    held = {"m": {"of": to_builtins(RunProblem(1, 1, 1, 1)), "epsilon": number, "split": "1"}}
    with pytest.raises(ValueError, match="epsilon"):
        Held.by({FILE: json.dumps(held)}, own=True)


@pytest.mark.parametrize("key", FOLLOW)
def test_keys_of_runs_are_refused_by_name_beside_detect(key):
    assert "cannot be combined with detect" in problems(more=f", {key}: 1")[key]


def test_the_schema_wants_detect_or_the_keys_of_a_run_and_not_both():
    accepts = jsonschema.Draft202012Validator(json_schema()).is_valid
    by_hand = text().replace(f"detect: {{{DETECT}}}", "epsilon: 1, cutoff: 5, threshold: 500")
    neither = text().replace(f", detect: {{{DETECT}}}", "")
    both = text(more=", epsilon: 1")
    assert [accepts(read(one, "").data) for one in (text(), by_hand, neither, both)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_wrong_detect_is_one_problem():
    assert problems(DETECT.replace("700", "500")).keys() == {"detect.surely_from"}
    assert problems(DETECT.replace("alerts: 10, ", "")).keys() == {"detect.alerts"}
    assert problems(more=", for: 2, mean: none").keys() == {"mean"}
    counted = text().replace(
        "source: requests, measure: visitors", "topic: t, sensitivity: 1, bounds: [0, 9]"
    )
    with pytest.raises(ConfigError, match="detect: is for counts of a source"):
        parse_config(counted)
    tiny = problems(
        "above: 5, surely_from: 6, alerts: 10, per: 30d", more=", excess: {over: 0, windows: 2000}"
    )
    assert "no epsilon finds so small a distance" in tiny["detect.surely_from"]


def test_what_the_limit_buys_is_named_and_true():
    limit = {"limit": "0.8, per: 30d"}
    said = problems(**limit)["detect.surely_from"]
    assert "epsilon 0.326, above the limit epsilon 0.266666666 of dataset" in said
    assert " (epsilon 0.8 over 3 periods; every: 30d makes them 2). For 5 alerts" in said
    assert said.endswith("it buys surely_from: 745; for 700 it buys alerts: 6 per 30d (3 a run)")
    assert monitor(DETECT.replace("700", "745"), **limit).cutoff == 5
    assert "detect.surely_from" in problems(DETECT.replace("700", "744"), **limit)
    assert monitor(DETECT.replace("10", "6"), **limit).cutoff == 3
    assert "detect.surely_from" in problems(DETECT.replace("10", "7"), **limit)


def test_a_run_that_a_change_ends_bars_no_other_one():
    [found], [dataset] = config().spec.monitors, config().current.datasets
    assert found.runs_allowed(dataset.terms, 1) is None


def test_monitors_that_exceed_the_limit_of_a_period_are_refused_with_the_sum():
    both = f"{text(limit='1.8, per: 30d')}  - {{name: more, source: requests, measure: errors, detect: {{{DETECT}}}}}\n"
    with pytest.raises(ConfigError, match=r"many 0\.326 \+ more 0\.326 = 0\.652"):
        parse_config(both)


def test_the_digest_of_a_monitor_depends_on_its_numbers_alone():
    found = monitor()
    keys = "threshold: 500, epsilon: 0.326, cutoff: 5, split: 3.4, on_halt: stop, max_runs: off"
    [other] = parse_config(text().replace(f"detect: {{{DETECT}}}", keys)).spec.monitors
    assert other.detect is None
    assert other.hash() == found.hash()
    assert MonitorSpec.from_json(found.to_json()) == found


# -- numbers of an applied version


@pytest.fixture
def held(monkeypatch) -> dict[str, str]:
    """Apply a configuration; then comes a release that solves for another epsilon."""
    files = config().bundle.files
    monkeypatch.setattr(detection, "solve", lambda run: (solve(run)[0] * 2, Fraction(7)))
    assert monitor().epsilon == Fraction("0.652")
    return files


def test_an_applied_version_keeps_its_numbers_under_another_solver(held):
    before = config().bundle
    version = replace_files(before, held)
    [worker] = spec_of(version).monitors
    assert (worker.epsilon, worker.cutoff) == (Fraction("0.326"), 5)
    assert config().holding(Held.by(held)).bundle == version  # nothing new to apply
    assert not difference(spec_of(version), config().holding(Held.by(held)).spec, 4).has_changes
    assert config().spec.hash() != spec_of(version).hash()  # the other solver would end the runs


def replace_files(bundle, files: dict[str, str]):
    return type(bundle)(bundle.text, files)


def test_a_version_is_read_with_its_numbers_even_where_another_release_would_ask_otherwise(held):
    numbers = json.loads(held[FILE])
    numbers["many"]["of"] |= {"queries": 77, "cutoff": 4}
    [worker] = spec_of(replace_files(config().bundle, {FILE: json.dumps(numbers)})).monitors
    assert (worker.expected_queries, worker.cutoff, worker.epsilon) == (77, 4, Fraction("0.326"))
    with pytest.raises(ConfigError, match="the numbers cannot be read"):
        spec_of(replace_files(config().bundle, {FILE: "{"}))


KEPT = {
    "the same distance": {"detect": DETECT.replace("500", "400").replace("700", "600")},
    "alerts of as many a period": {"detect": DETECT.replace("10", "9")},
    "more series": {"series": 8},
    "another limit": {"limit": "5, per: 30d"},
    "another mute": {"more": ", mute: 1d"},
}


@pytest.mark.parametrize("kept", KEPT)
def test_numbers_are_kept_where_what_they_follow_from_is_the_same(held, kept):
    assert config(**KEPT[kept]).holding(Held.by(held)).spec.monitors[0].epsilon == Fraction("0.326")


SOLVED_AGAIN = {
    "distance": {"detect": DETECT.replace("500", "400")},
    "queries": {"series": 9},
    "sensitivity": {"more": ", usual: {every: 1h}", "limit": "9, per: 30d"},
    "cutoff": {"detect": DETECT.replace("10", "12")},
}


@pytest.mark.parametrize("key", SOLVED_AGAIN)
def test_numbers_are_solved_again_where_that_changes_and_the_difference_says_why(held, key):
    options = SOLVED_AGAIN[key]
    source = (
        text(**options).replace("lateness", "looks_back: 4h, lateness")
        if "more" in options
        else text(**options)
    )
    again = parse_config(source).holding(Held.by(held))
    [new] = again.spec.monitors
    assert new.split == 7
    found = difference(spec_of(replace_files(config().bundle, held)), again.spec, 4)
    [why] = [line for line in found.lines if "solved again" in line]
    assert key in why
    assert f"    {Change.ENDS_RUNS.partition(', rho')[0]}" in found.lines
    assert any(line.startswith("    epsilon: 0.326 -> ") for line in found.lines)


def test_no_file_that_a_configuration_names_has_the_name_of_the_numbers(tmp_path):
    wrong = text(more=f", thresholds: {json.dumps(FILE)}")
    with pytest.raises(ConfigError, match="must not contain a NUL character"):
        parse_config(wrong, directory=tmp_path)


def test_only_a_monitor_with_detect_adds_a_file():
    plain = text().replace(f"detect: {{{DETECT}}}", "epsilon: 1, cutoff: 5, threshold: 500")
    assert parse_config(plain).bundle.files == {}
    assert config().bundle.files.keys() == {FILE}
    assert Held.by(config().bundle.files).numbers["many"] == SolvedRun(
        of=RunProblem(distance=200, sensitivity=1, cutoff=5, queries=2880),
        epsilon="163/500",
        split="17/5",
    )


def test_a_monitor_that_says_nothing_about_a_run_is_told_of_detect_alone():
    without = text().replace(f", detect: {{{DETECT}}}", "")
    with pytest.raises(ConfigError) as error:
        parse_config(without)
    [problem] = error.value.problems
    assert problem.field == "monitors[0].detect"
    assert problem.message.startswith("is required: what shall be found, such as {above: 500,")
    assert problem.message.endswith("; or write epsilon, cutoff and threshold")
    with pytest.raises(ConfigError) as error:
        parse_config(without.replace("measure: visitors}", "measure: visitors, epsilon: 1}"))
    assert {one.field for one in error.value.problems} == {"monitors[0].cutoff", "monitors[0].threshold"}
    example = problem.message.partition("such as {")[2].partition("}")[0]
    assert monitor(f"{example}, per: 30d", limit="9, per: 30d").detect is not None
