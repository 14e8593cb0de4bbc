"""The text about a new configuration's changes, and the memory model compared with the memory of an engine."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import yaml

from stream_svt.monitor.engine import Engine
from stream_svt.planning.difference import (
    DATASET,
    OBJECT,
    RECORD,
    RUN,
    STORED,
    difference,
    limits_changed,
    memory,
)
from stream_svt.protocol.state_records import hashing
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.support.engine_play import Query, batch_of
from tests.support.monitor_forms import spec_of

HOT = (
    "{name: hot, topic: counts, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, bounds: [0, 1000], "
    "threshold: 500, expected_queries: 1000}"
)
DATASETS = "{names: [a, b], limit: 4, unit: one basket}"


def spec(*monitors: str, datasets: str = DATASETS) -> ApplicationSpec:
    listed = "".join(f"  - {monitor}\n" for monitor in monitors or (HOT,))
    return load_spec(f"application: shop\ndatasets:\n  - {datasets}\nmonitors:\n{listed}")


def lines_of(new: ApplicationSpec, old: ApplicationSpec | None = None) -> list[str]:
    return [*difference(old or spec(), new, 4).lines]


def test_a_first_configuration_is_all_new() -> None:
    assert [*difference(None, spec(), 4).lines] == [
        "+ monitor hot on topic counts",
        "    a run costs epsilon 1",
        "+ query topic counts",
        "    sensitivity 1, monotonic; later versions cannot declare less",
        "+ 2 datasets (a, b): epsilon 4 each, for one basket",
        "A worker takes up to about 200 MiB with all shards.",
    ]


def test_a_new_monitor_on_generated_datasets_has_a_price() -> None:
    assert difference(None, spec(datasets=DAILY), 4, now_ms=NOW_MS).lines[1] == "    a run costs epsilon 1"


def test_the_same_configuration_changes_nothing() -> None:
    assert lines_of(spec()) == ["No change."]


RUNS_END = "its open runs end: epsilon that they did not spend is released"


DROPPED = "waiting queries are dropped: their values are on the old grid"


@pytest.mark.parametrize(
    ("old", "new", "effects"),
    [
        ("threshold: 500", "threshold: 600", ["threshold: 500 -> 600"]),
        (
            "epsilon: 1",
            "epsilon: 2",
            ["epsilon: 1 -> 2", RUNS_END, "max_runs: auto: 2 per 6h -> 1 per 6h on 2 datasets (a, b)"],
        ),
        (
            "topic: counts",
            "topic: counts, record: {value: n}",
            [
                "record: none -> {format: json, value: n, id: offset}",
                RUNS_END,
                "waiting queries are dropped: they were read with the old layout",
            ],
        ),
        ("1000]", "2000]", ["bounds: [0, 1000] -> [0, 2000]", RUNS_END, DROPPED]),
    ],
)
def test_a_changed_field_says_whether_it_ends_runs(old: str, new: str, effects: list[str]) -> None:
    lines = [f"    {effect}" for effect in effects]
    assert lines_of(spec(HOT.replace(old, new))) == ["~ monitor hot", *lines]


def test_maintenance_that_is_added_and_removed_is_written_as_in_a_file() -> None:
    first, *others = ("{every: Sun 02:00-03:00}", "{every: Mon 02:00-03:00}", "{every: Tue 02:00-03:00}")
    was, now = (
        HOT.replace("threshold: 500", f"threshold: 500, maintenance: [{first}, {one}]") for one in others
    )
    assert lines_of(spec(now), spec(was)) == [
        "~ monitor hot",
        f"    maintenance: adds {others[1]}; removes {others[0]}",
    ]


def test_ratios_are_decimals_and_rho_stays_spent_where_datasets_count_it() -> None:
    was, now = (HOT.replace("threshold: 500", f"threshold: 500, split: {one}") for one in ("71/25", "3.27"))
    rho = "{name: a, limit: {rho: 0.5}, unit: one user}"
    assert lines_of(spec(now), spec(was))[:3] == [
        "~ monitor hot",
        "    split: 2.84 -> 3.27",
        f"    {RUNS_END}",
    ]
    lines = lines_of(spec(now, datasets=rho), spec(was, datasets=rho))
    assert lines[2] == f"    {RUNS_END}, rho stays spent"


def test_a_rise_of_the_sensitivity_says_when_producers_may_switch() -> None:
    found = difference(spec(), spec(HOT.replace("sensitivity: 1", "sensitivity: 2")), 4)
    assert "~ query topic counts: sensitivity 1, monotonic -> sensitivity 2, monotonic" in found.lines
    assert "    switch the producers only after every shard has adopted this version" in found.lines
    assert not found.refused


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"sensitivity: 2": "sensitivity: 1"}, "monitors.hot.sensitivity"),
        ({"topic: counts": "topic: others"}, "monitors.hot.topic"),
        # A monitor of another name declares no less than its topic.
        ({"sensitivity: 2": "sensitivity: 1", "name: hot": "name: cold"}, "monitors.cold.sensitivity"),
    ],
)
def test_what_cannot_change_is_refused(changed: dict[str, str], field: str) -> None:
    before = after = HOT.replace("sensitivity: 1", "sensitivity: 2")
    for old, new in changed.items():
        after = after.replace(old, new)
    assert [problem.field for problem in difference(spec(before), spec(after), 4).refused] == [field]


def test_datasets_and_monitors_are_added_and_removed() -> None:
    names = ", ".join(f"d{number}" for number in range(3_000))
    cold = HOT.replace("name: hot", "name: cold").replace("topic: counts", "topic: others")
    lines = lines_of(spec(cold, datasets=f"{{names: [{names}], limit: {{rho: 0.5}}, unit: one user}}"))
    assert lines[:2] == ["+ monitor cold on topic others", "    a run costs rho 0.420138887362"]
    assert "- monitor hot" in lines
    assert {"+ query topic others", "- query topic counts"} < set(lines)
    assert "+ 3000 datasets (d0, d1, d2 and 2997 more): rho 0.5 each, for one user" in lines
    assert "before 200 MiB" in lines[-1]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("limit: 5, unit: one basket", "raise-budget"),
        ("limit: 3, unit: one basket", "raise-budget"),
        ("limit: {rho: 5}, unit: one basket", "declare another dataset"),
        ("limit: 5, unit: one user", "declare another dataset"),
    ],
)
def test_a_changed_declaration_of_a_dataset_is_refused(changed: str, why: str) -> None:
    found = difference(spec(), spec(datasets=f"{{names: [a, b], {changed}}}"), 4)
    assert [problem.field.removesuffix(".limit") for problem in found.refused] == ["datasets.a", "datasets.b"]
    assert all(why in problem.message for problem in found.refused)


def test_the_command_that_raises_a_limit_is_one_for_a_shell() -> None:
    old, new = (
        spec(datasets=f'{{names: ["it\'s;$(id)"], limit: {limit}, unit: one basket}}') for limit in (4, 5)
    )
    [problem] = difference(old, new, 4).refused
    assert "raise-budget -c FILE 'it'\"'\"'s;$(id)' --limit 5" in problem.message


def test_a_limit_that_an_operator_raised_may_be_written_down() -> None:
    new = spec(datasets="{names: [a, b], limit: 5, unit: one basket}")
    assert limits_changed(spec(), new) == ["a", "b"]
    raised = {"a": new.dataset("a").terms.limit, "b": new.dataset("b").terms.limit + 1}
    found = difference(spec(), new, 4, raised=raised)
    assert [problem.field for problem in found.refused] == ["datasets.b.limit"]


def test_a_dataset_that_is_removed_is_retired_permanently() -> None:
    fewer = spec(datasets="{names: [a], limit: 4, unit: one basket}")
    lines = lines_of(fewer)
    assert lines[:2] == ["- dataset b", "    permanently: no later version can declare the name again"]
    (removed,) = difference(spec(), fewer, 4).removals
    assert removed.startswith(
        "- dataset b: permanently: no later version can declare the name again; open runs"
    )
    (problem,) = difference(fewer, spec(), 4, retired=["b"]).refused
    assert problem.message == "dataset b retired by an earlier version: choose an unused name"


DAILY = "{generate: '{name}-{date}', names: [a, b], from: 2026-01-05, lateness: 1h, limit: 4, unit: one stay}"
WARDS, OPEN = "generator {name}-{date}", "    permanently; in periods not yet over, open runs end"
NOW_MS = 1_780_000_000_000
"""In May 2026."""


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (
            DATASETS,
            DAILY,
            ["- 2 datasets (a, b)", f"+ {WARDS}: 2 datasets a day, epsilon 4 each, for one stay"],
        ),
        (DAILY, DATASETS, [f"- {WARDS}", OPEN]),
        (
            DAILY,
            DAILY.replace("[a, b]", "[b, c, d]"),
            [f"~ {WARDS}", "    adds 2 names (c, d): 3 datasets a day", f"- {WARDS}: name a", OPEN],
        ),
        (DAILY, DAILY.replace("[a, b]", "[a, b, c]"), [f"~ {WARDS}", "    adds name c: 3 datasets a day"]),
        (
            DAILY,
            DAILY.replace("[a, b]", "[a]") + "\n  - " + DAILY.replace("[a, b]", "[b, c]").replace("1h", "2h"),
            [f"~ {WARDS}", "    adds name c: 2 datasets a day", "    another lateness"],
        ),
        (DAILY, DAILY.replace("1h", "2h"), [f"~ {WARDS}", "    another lateness: periods that are"]),
        (DAILY, DAILY.replace("2026-01-05", "2026-01-06"), [f"~ {WARDS}", "    another first day: "]),
    ],
)
def test_changes_of_a_generator_are_listed(old: str, new: str, lines: list[str]) -> None:
    found = difference(spec(datasets=old), spec(datasets=new), 4, now_ms=NOW_MS)
    for line in lines:
        assert any(one.startswith(line) for one in found.lines), found.lines
    assert bool(found.retired) == any(line.startswith("- ") for line in lines)
    assert not found.refused


def test_the_limit_of_a_period_that_has_begun_never_changes() -> None:
    old = spec(datasets=DAILY)
    other = DAILY.replace("limit: 4", "limit: 5")
    (problem,) = difference(old, spec(datasets=other), 4, now_ms=NOW_MS).refused
    assert "give the generator an until" in problem.message
    until, later = (
        DAILY.replace("lateness", "until: 2026-06-05, lateness"),
        other.replace("2026-01", "2026-06"),
    )
    assert not difference(old, spec(datasets=f"{until}\n  - {later}"), 4, now_ms=NOW_MS).refused


ROOT = Path(__file__).parents[2]
FACTOR = 1.5
"""Largest ratio of the model to the measurement; the smallest is 1."""
FIGURES = {"DATASET": DATASET, "RUN": RUN, "RECORD": RECORD, "STORED": STORED}


def _counts(datasets: int, monitors: int) -> ApplicationSpec:
    names = ", ".join(f"ward-{number:05}" for number in range(datasets))
    form = "topic: t, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, expected_queries: 1000000"
    forms = (f"{form}, bounds: [0, 100000], threshold: {5000 + number}" for number in range(monitors))
    return spec_of(*forms, datasets=f"{{names: [{names}], limit: 100, unit: u}}")


def _held(datasets: int, monitors: int) -> tuple[int, int]:
    """Return the bytes of an engine with all runs open and its records' hashes, and those of datasets' records."""
    spec = _counts(datasets, monitors)
    names = [dataset.name for dataset in spec.datasets]
    gc.collect()
    tracemalloc.start()
    try:
        engine = Engine(spec, shard=0, datasets=names, key=bytes(32), entropy=os.urandom)
        engine.begin("t", 0)
        batch = batch_of(
            "t", [Query(number, 0, time_ms=1_767_571_200_000) for number in range(datasets)], 0, datasets
        )
        hashes, sizes = dict[bytes, int](), dict[str, int]()
        done = False
        while not done:
            done = engine.step(batch).done
            for key, record in engine.take_commit().records.items():
                hashes[key] = hashing(bytes(32))(key, record or b"")
                sizes[key.decode()] = len(record or b"")
            engine.committed()
        stored = sum(size for key, size in sizes.items() if key.startswith("d/"))
        del batch, record, sizes
        gc.collect()
        return tracemalloc.get_traced_memory()[0], stored
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """Return the memory of a further dataset with one monitor, and of a further monitor on it."""
    few, many, wide = (np.array(_held(*size)) for size in ((200, 1), (600, 1), (600, 9)))
    run, stored = (wide - many) / (600 * 8)
    dataset, record = (many - few) / 400 - (run, stored)
    return {"RUN": run, "STORED": stored, "DATASET": dataset, "RECORD": record}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_the_model_is_what_is_measured(measured: dict[str, float], name: str) -> None:
    assert measured[name] <= FIGURES[name] <= FACTOR * measured[name], measured


def test_a_worker_needs_most_with_every_shard_and_the_same_with_one_where_there_is_one() -> None:
    (all_of_four, one_of_four), (all_of_one, one_of_one) = (
        memory(_counts(30, 2), shards) for shards in (4, 1)
    )
    assert one_of_four < all_of_four < all_of_one == one_of_one
    assert all_of_one - all_of_four == 3 * 2 * (30 * (RECORD + OBJECT) + 60 * STORED) // 4


def test_the_limits_that_are_shipped_are_enough_for_800_000_runs_and_a_fifth_more() -> None:
    wanted = memory(_counts(20_000, 40), 1)[0] * 1.2
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "stream-svt" / "values.yaml").read_text())
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert values["workers"]["resources"]["limits"]["memory"] == "1Gi"
    assert {stack["services"][name]["mem_limit"] for name in ("worker-1", "worker-2")} == {"1g"}
    assert 2**29 < wanted <= 2**30
