"""Pages say what the data files of docs/ say, and compute from it what they promise to compute."""

from __future__ import annotations

import copy
import re
from datetime import date

import msgspec
import pytest

from benchmarks import command
from benchmarks import costs as measuring
from docs.generator import capacity, costs, performance
from docs.generator.outputs import DOCS, TOP
from stream_svt.settings.datasets import MAX_DATASETS

DAY = date(2026, 11, 30)


def test_the_curves_are_those_of_the_benchmark_and_pass_its_base_point():
    found = costs.measured()
    assert list(found["curves"]) == list(measuring.AXES)
    for axis, curve in found["curves"].items():
        sizes = [size for size, _ in curve]
        assert sizes == sorted(set(sizes))
        assert axis == "waiting" or found["base"][axis] in sizes


def test_the_picture_is_drawn_from_the_data_file(tmp_path, monkeypatch):
    changed = copy.deepcopy(costs.measured())
    changed["curves"]["monitors"][0][1] *= 3
    drawn = {}
    for name, content in (("as it is", costs.measured()), ("changed", changed)):
        monkeypatch.setattr(costs, "measured", lambda content=content: content)
        costs.draw(tmp_path / "costs.svg")
        drawn[name] = (tmp_path / "costs.svg").read_text()
    assert drawn["as it is"] == (DOCS / "pictures" / "costs.svg").read_text() != drawn["changed"]


def test_what_a_benchmark_prints_replaces_its_figures_and_misses_are_told():
    old = performance.document()
    lines = ["service.json_vs_getmany 1.512", "engine.alert_us 31", "engine.unheard_of 3"]
    new, said = performance.renewed(old, lines, DAY)
    assert said == [
        "service.json_vs_getmany 1.51",
        "engine.alert_us 31, not at most 30",
        "engine.unheard_of is not in performance.json: add it with what it says and its goal, or leave it out",
    ]
    figure = new.figures["service.json_vs_getmany"]
    assert (figure.value, figure.spread, figure.measured) == (1.512, "", DAY)
    assert figure.what == old.figures["service.json_vs_getmany"].what
    others = new.figures.keys() - {"service.json_vs_getmany", "engine.alert_us"}
    assert all(new.figures[name] == old.figures[name] for name in others)
    assert msgspec.json.decode(performance.encoded(new), type=performance.Document) == new


def test_figures_of_other_sizes_are_not_taken(capsys):
    def figures(queries: int = 100, turns: int = 3, *, draw: bool = False) -> dict[str, float]:
        return {"alert_us": float(queries + turns + draw)}

    old = performance.document()
    for options, is_taken in (
        ([], True),
        (["--queries", "100"], True),
        (["--turns", "1"], False),
        (["--draw"], False),
    ):
        command.show(figures, options, name="engine")
        new, said = performance.renewed(old, capsys.readouterr().out.splitlines(), DAY)
        assert (new.figures["engine.alert_us"].value == 103.0) is is_taken
        assert (new.figures == old.figures) is not is_taken
        assert ("its figures are not taken" in said[0]) is not is_taken


@pytest.mark.parametrize("size", ["--datasets", "--queries", "--turns"])
def test_costs_of_other_sizes_are_not_drawn(size, monkeypatch):
    monkeypatch.setattr(measuring, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit, match="--draw needs the usual sizes"):
        command.show(measuring.figures, ["--draw", size, "4"])


def test_the_figures_are_those_of_benchmarks_and_stand_in_the_file_as_it_is_written_again():
    found = performance.document()
    assert performance.DATA.read_text() == performance.encoded(found)
    for name, figure in found.figures.items():
        place = TOP / "benchmarks" / name.partition(".")[0]
        assert place.is_dir() or place.with_suffix(".py").exists()
        assert (figure.value is None) == (figure.measured is None)


def test_the_numbers_of_the_readme_are_figures():
    [section] = re.findall(
        r"^## How fast\n(.*?)^## ", (TOP / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    values = [figure.value for figure in performance.document().figures.values() if figure.value is not None]
    numbers = re.findall(r"\d+(?:\.\d+)?", section)
    assert numbers
    for text in numbers:
        decimals = len(text.partition(".")[2])
        assert any(round(value, decimals) == float(text) for value in values), text


@pytest.mark.parametrize("name", capacity.constants())
def test_a_constant_that_changes_changes_what_is_needed(name):
    known = capacity.constants()
    changed = {**known, name: known[name]._replace(value=100 * known[name].value)}
    if name.endswith("waiting_bytes"):
        return  # what waits comes on top, as the page says

    def table(constants):
        three = capacity.sizes(constants)
        many_workers = capacity.Size("many queries", 1e11, 10**6, 2, 1e3, three[0].c)
        return [[show(size) for size in (*three, many_workers)] for show in capacity._ROWS.values()]

    assert table(changed) != table(known)


def test_the_memory_of_ten_million_datasets_is_what_its_parts_add_up_to():
    c = {name: constant.value for name, constant in capacity.constants().items()}
    _, many, _ = capacity.sizes()
    assert many.applications == 10**7 // MAX_DATASETS
    own = MAX_DATASETS / (many.workers - 1)
    each = c["memory_dataset_bytes"] + 2 * c["memory_run_bytes"]
    others = (MAX_DATASETS - own) * c["memory_name_bytes"]
    assert many.memory == pytest.approx(c["process_mib"] * 2**20 + own * each + others)


def test_what_the_page_says_breaks_first_is_what_the_constants_say():
    c = {name: constant.value for name, constant in capacity.constants().items()}
    small, many, monitors = capacity.sizes()
    assert f"at most {MAX_DATASETS:,} datasets" in (DOCS / "capacity.md").read_text()
    assert small.queries / (1e6 * c["json"]) < 60
    assert small.partitions == 4
    assert many.memory > 2 * c["process_mib"] * 2**20
    assert many.cores / many.applications < 1
    assert monitors.monitors * c["state_run_bytes"] > 0.9 * monitors.state / monitors.datasets
    assert monitors.cores_of(1e3 / c["json"]) > 1.5 * monitors.peak / (1e6 * c["json"])


def test_what_is_written_to_the_state_grows_with_the_monitors_as_the_page_says():
    c = {name: constant.value for name, constant in capacity.constants().items()}
    few, many = (capacity.Size("", 1e8, 10**5, monitors, 1e4, c) for monitors in (2, 40))
    alerts = capacity.PEAK * 1e4 / capacity.DAY
    assert many.transactions == few.transactions
    more = few.transactions * c["commit_monitor_bytes"] + alerts * c["state_run_bytes"]
    assert many.state_rate - few.state_rate == pytest.approx(38 * more)
