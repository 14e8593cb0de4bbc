"""Every key of the configuration is in the difference of two versions, or is listed with the reason why it is not."""

from __future__ import annotations

import re

import pytest

from stream_svt.planning.budget import explain
from stream_svt.planning.difference import difference
from stream_svt.settings.application import ApplicationSpec, Carried, load_spec
from stream_svt.settings.datasets import DatasetDeclaration
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.records import RecordLayout
from stream_svt.settings.sections import ConfigDocument, ServiceDocument

HOT = (
    "name: hot, topic: counts, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, bounds: [0, 1000], "
    "threshold: 500, expected_queries: 1000"
)
NAMED = "names: [a, b], limit: 40, unit: one basket, new: false"
WEEKS = "generate: 'w-{iso_week}', from: 2026-01-05, until: 2026-01-19, limit: 4, unit: one stay"
DAYS = "generate: 'd-{date}', from: 2036-01-05, lateness: 1h, limit: 4, unit: one stay"
ROLLING = DAYS.replace("limit: 4", "every: 15d, limit: {epsilon: 4, per: 30d}")
NOW_MS = 1_767_800_000_000
"""In the first of the weeks."""


def spec(monitor: str = HOT, datasets: str = NAMED, carried: str | None = None) -> ApplicationSpec:
    head = "application: shop\n" + (f"carried_over: {carried}\n" if carried else "")
    text = f"{head}datasets:\n  - {{{datasets}}}\nmonitors:\n  - {{{monitor}}}\n"

    def read(name: str) -> list[str]:
        return [*FILES[name].lines()] if name in FILES else name.removesuffix(".txt").split("-")

    return load_spec(text, read_names=read)


FILES = {
    f"{cluster}.jsonl": Carried("old", cluster, "old.alerts", "shop", True, {}, {}, {}, {})
    for cluster in ("one", "two")
}

MONITOR_KEYS = {
    "name": ("warm", "+ monitor warm"),
    "topic": ("others", "topic: counts -> others"),
    "record": ("{value: n}", "record: none -> "),
    "datasets": ("[a]", "datasets: "),
    "mechanism": ("adaptive", "mechanism: svt -> adaptive"),
    "epsilon": ("2", "epsilon: 1 -> 2"),
    "cutoff": ("9", "cutoff: 10 -> 9"),
    "sensitivity": ("2", "sensitivity: 1 -> 2"),
    "monotonic": ("false", "monotonic: true -> false"),
    "granularity": ("1/2", "granularity: "),
    "bounds": ("[0, 2000]", "bounds: "),
    "threshold": ("600", "threshold: 500 -> 600"),
    "query_noise": ("laplace", "query_noise: exponential -> laplace"),
    "threshold_noise": ("laplace", "threshold_noise: exponential -> laplace"),
    "split": ("2", "split: none -> 2"),
    "correction": ("mean", "correction: "),
    "expected_queries": ("2000", "expected_queries: 1000 -> 2000"),
    "append": ("retry", "append: "),
    "mute": ("1d", "mute: period -> 1d"),
    "max_mutes": ("9", "max_mutes: 10000 -> 9"),
    "on_halt": ("stop", "on_halt: resample -> stop"),
    "resample_every": ("1d", "resample_every: none -> 1d"),
    "max_runs": ("2 per 1d", "max_runs: auto -> 2 per 1d"),
    "reserve": ("1", "reserve: 0 -> 1"),
    "beta": ("1/10", "beta: "),
    "severity": ("{page: 800}", "severity: "),
    "maintenance": ("[{every: Sun 02:00-04:00}]", "maintenance: "),
}
"""Another value of each key of a monitor, and how the difference begins a line about it."""


@pytest.mark.parametrize("key", MONITOR_KEYS)
def test_another_value_of_each_key_of_a_monitor_is_named(key: str) -> None:
    value, says = MONITOR_KEYS[key]
    kept = re.sub(rf"(^|, ){key}: (\[.*?\]|[^,]*)", "", HOT).lstrip(", ")
    found = difference(spec(), spec(f"{kept}, {key}: {value}"), 4, now_ms=NOW_MS)
    assert any(line.strip().startswith(says) for line in found.lines), found.lines


DATASET_KEYS = {
    "name": (NAMED, NAMED.replace("names: [a, b]", "name: c"), "+ dataset c"),
    "names": (NAMED, NAMED.replace("b]", "c]"), "+ dataset c"),
    "file": (
        NAMED.replace("names: [a, b]", "file: a-b.txt"),
        NAMED.replace("names: [a, b]", "file: a-c.txt"),
        "+ dataset c",
    ),
    "generate": (DAYS, DAYS.replace("d-", "e-"), "+ generator e-{date}"),
    "from": (DAYS, DAYS.replace("01-05", "01-07"), "another first day"),
    "until": (WEEKS, WEEKS.replace("until: 2026-01-19", "until: 2026-01-26"), "+ dataset w-2026-w04"),
    "lateness": (WEEKS, f"{WEEKS}, lateness: 2h", "~ 2 datasets (w-2026-w02, w-2026-w03)"),
    "every": (DAYS, f"{DAYS}, every: 2d", "+ generator d-{date}: one dataset each 2 days"),
    "looks_back": (
        ROLLING,
        f"{ROLLING}, looks_back: 7d",
        "epsilon 1.333333333 each, for one stay (any 30 days: at most epsilon 4) -> epsilon 1 each",
    ),
    "horizon": (NAMED, f"{NAMED}, horizon: 90d", "~ 2 datasets (a, b)"),
    "limit": (DAYS, DAYS.replace("limit: 4", "limit: 5"), "epsilon 4 each, for one stay -> epsilon 5 each"),
    "unit": (
        DAYS,
        DAYS.replace("one stay", "one visit"),
        "epsilon 4 each, for one stay -> epsilon 4 each, for one visit",
    ),
}
"""Two declarations that differ in a key, and how the difference begins a line about it."""
NO_EFFECT_OF_DATASETS = {"new": "allows a declaration beside a carried-over file, and changes no dataset"}


@pytest.mark.parametrize("key", DATASET_KEYS)
def test_another_value_of_each_key_of_datasets_is_named(key: str) -> None:
    old, new, says = DATASET_KEYS[key]
    found = difference(spec(datasets=old), spec(datasets=new), 4, now_ms=NOW_MS)
    assert any(line.strip().startswith(says) for line in found.lines), found.lines


@pytest.mark.parametrize(
    ("old", "new"), [(None, "one.jsonl"), ("one.jsonl", "two.jsonl"), ("one.jsonl", None)]
)
def test_another_carried_over_file_is_refused_before_any_shard_sees_it(
    old: str | None, new: str | None
) -> None:
    before, after = (spec(carried=name) for name in (old, new))
    assert "carried_over" in {
        problem.field for problem in difference(before, after, 4, now_ms=NOW_MS).refused
    }


TOP_KEYS = {"application", "sources", "datasets", "monitors", "maintenance", "carried_over"}
WITH_SOURCES = {"source", "measure"}
"""Keys of monitors that `test_sources.py` changes, as it does with each key of a source.

`detect` is changed by `tests/settings/test_detection.py`.
"""


SOURCE = (
    "name: s, topic: raw, unit: user, window: 1m, dataset: a, series: {field: page, names: [/, /a]}, "
    "measures: [{name: all}, {name: errors, where: {status: [500]}}]"
)
QUESTION_KEYS = {
    "thresholds": "t.txt",
    "share": "{of: errors, above: 1%}",
    "usual": "{every: 2m}",
    "mean": "3",
    "over": "[1m, 5m]",
    "excess": "{over: 5, windows: 3}",
    "for": "{windows: 3, at_least: 2}",
}
"""A value of each key of a question."""


def asking(more: str) -> ApplicationSpec:
    monitor = f"name: hot, source: s, measure: all, epsilon: 1, cutoff: 3, threshold: 5{more}"
    parts = f"sources: [{{{SOURCE}}}], datasets: [{{name: a, limit: 9}}], monitors: [{{{monitor}}}]"
    return load_spec(f"{{application: shop, {parts}}}", read_names=lambda _: ["3 /", "4 /a"])


def test_another_number_of_windows_is_named() -> None:
    found = difference(asking(", mute: 1h"), asking(", mute: 1h, not_renewed: 3"), 4, now_ms=NOW_MS)
    assert any(line.strip().startswith("not_renewed: none -> 3") for line in found.lines), found.lines
    assert not found.refused


@pytest.mark.parametrize("key", QUESTION_KEYS)
def test_another_question_is_refused(key: str) -> None:
    found = difference(asking(""), asking(f", {key}: {QUESTION_KEYS[key]}"), 4, now_ms=NOW_MS)
    assert any(line.strip().startswith(f"{key}: none -> ") for line in found.lines), found.lines
    assert f"monitors.hot.{key}" in {one.field for one in found.refused}


def test_another_end_is_named_with_the_monitor_that_it_makes() -> None:
    def ending(end: str) -> ApplicationSpec:
        monitor = f"name: hot, source: s, measure: all, epsilon: 1, cutoff: 3, threshold: 500{end}"
        parts = f"sources: [{{{SOURCE}}}], datasets: [{{name: a, limit: 9}}], monitors: [{{{monitor}}}]"
        return load_spec(f"{{application: shop, {parts}}}")

    ends = ["", ", end: {below: 400}", ", end: {below: 300, longest: 2d, epsilon: 2}"]
    old, new, other = (ending(end) for end in ends)
    assert any("+ monitor hot.end" in line for line in difference(old, new, 4, now_ms=NOW_MS).lines)
    said = "\n".join(line for line in explain(new) if "hot.end: " in line)
    assert "3 ends a run" in said
    assert "4 whole runs: 12 ends, if" in said
    lines = difference(new, other, 4, now_ms=NOW_MS).lines
    assert any(line.strip().startswith("end: ") for line in lines), lines
    assert any(line.strip().startswith("threshold: -400 -> -300") for line in lines), lines
    assert any(line.strip().startswith("mute: 1w -> 2d") for line in lines), lines


def test_there_is_a_case_for_every_key() -> None:
    """A new key fails here until its change is named, or a reason is written down."""
    monitor = {info.alias or name for name, info in MonitorSpec.model_fields.items()}
    dataset = {info.alias or name for name, info in DatasetDeclaration.model_fields.items()}
    with_sources = WITH_SOURCES | QUESTION_KEYS.keys() | {"detect", "end", "not_renewed"}
    assert monitor == MONITOR_KEYS.keys() | with_sources
    assert dataset == DATASET_KEYS.keys() | NO_EFFECT_OF_DATASETS.keys()
    # The other sections stay in the file of each worker, which reads them at its start.
    assert (
        ConfigDocument.model_fields.keys() - ServiceDocument.model_fields.keys() | {"application"} == TOP_KEYS
    )


@pytest.mark.parametrize("key", RecordLayout.model_fields)
def test_each_key_of_a_layout_is_named(key: str) -> None:
    value = {"format": "avro"}.get(key, "other")
    more = "value: m" if key == "value" else f"value: n, {key}: {value}"
    old, new = (spec(f"{HOT}, record: {{{layout}}}") for layout in ("value: n", more))
    assert any(line.startswith("    record: ") for line in difference(old, new, 4, now_ms=NOW_MS).lines)


# -- what follows from other keys


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (NAMED, f"{NAMED}, horizon: 8h", "max_runs: auto: 20 per 6h -> 20 per 2h on 2 datasets (a, b)"),
        (
            f"{NAMED}, horizon: 8h",
            f"{NAMED}, horizon: 4h",
            "max_runs: auto: 20 per 2h -> 20 per 1h on 2 datasets (a, b)",
        ),
        (
            NAMED,
            NAMED.replace("limit: 40", "limit: 20"),
            "max_runs: auto: 20 per 6h -> 10 per 6h on 2 datasets (a, b)",
        ),
    ],
)
def test_the_maximum_of_runs_that_follows_from_other_keys_is_named(old: str, new: str, says: str) -> None:
    lines = difference(spec(datasets=old), spec(datasets=new), 4, now_ms=NOW_MS).lines
    at = lines.index("~ monitor hot")
    assert f"    {says}" in lines[at:]
    assert "No change." not in lines


def test_the_maximum_that_another_monitor_lowers_is_named() -> None:
    old = spec()
    text = f"{HOT}}}\n  - {{{HOT.replace('hot', 'cold')}, datasets: [b]"
    lines = difference(old, spec(text), 4, now_ms=NOW_MS).lines
    assert "    max_runs: auto: 20 per 6h -> 10 per 6h on dataset b" in lines


def test_a_maximum_in_numbers_depends_on_no_other_key() -> None:
    fixed = f"{HOT}, max_runs: 2 per 1d"
    lines = difference(spec(fixed), spec(fixed, f"{NAMED}, horizon: 8h"), 4, now_ms=NOW_MS).lines
    assert lines == ["~ 2 datasets (a, b)", "    horizon: 30d -> 8h, for burn rates"]
