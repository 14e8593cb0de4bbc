"""The specification read from YAML: exact values, their meaning, and the effect of changes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Annotated, Any

import pytest
from msgspec.structs import replace

from stream_svt.errors import ConfigError
from stream_svt.mechanisms.correction import Annealed, Explicit, Exposure, Mean, Optimal, Uncorrected
from stream_svt.mechanisms.noise import Noise
from stream_svt.monitor.state.plan import Plan
from stream_svt.privacy.loss import Kind, zcdp_general, zcdp_monotone
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import NOTHING, Carried, MonitorPosition, MutedSeries, parse
from stream_svt.settings.datasets import Balance
from stream_svt.settings.fields import Mute, Retry, Sweep, duration_ms, duration_text
from stream_svt.settings.monitors import Change, Declared, MonitorSpec, changed_fields, ends_runs
from tests.support.settings import FULL, monitor


@pytest.fixture(scope="module")
def full() -> ApplicationSpec:
    return load_spec(FULL, "full.yaml")


def test_numbers_are_taken_from_their_text(full):
    hot, plain = full.monitors
    assert hot.epsilon == plain.epsilon == Fraction(1, 10)
    assert hot.threshold == Fraction(2501, 5)
    assert hot.beta == Fraction(1, 100)
    assert hot.reserve_units(Kind.PURE) == 200_000_000
    assert hot.expected_queries == 1_000_000
    assert full.dataset("other-b").terms.limit == 333_333_333


def test_every_field_of_a_monitor_is_read_and_has_the_default_that_is_described(full):
    hot, plain = full.monitors
    assert (hot.form, plain.form) == ("adaptive", "svt")
    assert (hot.query_noise, hot.threshold_noise) == (Noise.LAPLACE, Noise.EXPONENTIAL)
    assert hot.append == Retry(attempts=5, lifetime="10m", capacity=1000, every=100)
    assert (hot.mute, hot.max_mutes) == (5_400_000, 5)
    assert (hot.on_halt, hot.resample_every) == ("stop", 86_400_000)
    assert (plain.monotonic, plain.granularity, plain.append) == (False, 1, None)
    assert {monitor(append=written).append for written in ("off", None, False)} == {None}
    assert (plain.mute, plain.on_halt) == (Mute.PERIOD, "resample")
    assert plain.correction_rule() == Exposure(expected_queries=100, false_alerts=Fraction(1, 10), attempts=1)


def test_the_grid_rounds_sensitivity_and_threshold_up_and_bounds_down(full):
    hot, plain = full.monitors
    assert (hot.grid_sensitivity, hot.grid_bounds) == (2, (0, 200_000))
    assert Plan.of(hot).grid.threshold(hot.threshold) == 1001
    assert (plain.grid_sensitivity, plain.grid_bounds) == (2, (-5, 5))


def test_monitors_are_found_by_dataset_and_topics_are_listed_once(full):
    for name, covering in {"retail-2026-w01": ["hot-items", "plain"], "other-a": ["plain"]}.items():
        assert [one.name for one in full.monitors if one.covers(name)] == covering
    assert full.topics() == ("other.counts", "retail.counts")
    assert full.topics_with_broker_time() == ("retail.counts",)


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("exposure", Exposure(expected_queries=1000, false_alerts=Fraction(1), attempts=1)),
        ({"exposure": {"false_alerts": "1/2"}}, Exposure(expected_queries=1000, false_alerts=Fraction(1, 2))),
        ({"exposure": None}, Exposure(expected_queries=1000, false_alerts=Fraction(1))),
        ("optimal", Optimal(queries=1000, cutoff=10)),
        ("mean", Mean()),
        ("none", Uncorrected()),
        (7, Explicit((7,))),
        ("2.5", Explicit((3,))),
        ({"table": [9, 3, "1/2"]}, Explicit((9, 3, 1))),
    ],
)
def test_corrections_have_short_and_long_forms(written, rule):
    assert monitor(correction=written).correction_rule() == rule


def test_passes_of_a_sweep_are_counted_and_retries_are_part_of_the_exposure():
    swept = monitor(correction={"annealed": {"start": 12, "end": 3}}, append="sweep")
    assert swept.correction_rule() == Annealed(start=Fraction(12), end=Fraction(3), step=Fraction(1))
    assert (swept.append, swept.attempts) == (Sweep(), 10)
    retried = monitor(append={"retry": {"attempts": 4}})
    assert retried.attempts == retried.correction_rule().attempts == 4


@pytest.mark.parametrize(("form", "branches"), [("svt", 1), ("adaptive", 2), ("ladder", 4)])
def test_the_mechanism_has_the_branches_and_the_price_declared(form, branches):
    spec = monitor(mechanism=form)
    mechanism = spec.mechanism()
    assert len(mechanism.branches) == branches
    assert mechanism.epsilon_units == spec.run_price(Kind.PURE) == 10**9
    assert mechanism.cutoff == 10


def test_a_split_sets_the_share_of_the_threshold():
    assert monitor(split=4).mechanism().threshold_units == 200_000_000
    adaptive = monitor(split="0.3", mechanism="adaptive").mechanism()
    assert adaptive.threshold_units == pytest.approx(3e8, rel=1e-6)


def test_the_zcdp_price_is_that_of_the_mechanism_and_direction():
    plain, several, general = monitor(), monitor(mechanism="adaptive"), monitor(monotonic=False)
    one = plain.mechanism()
    epsilon = one.threshold_units + 10 * one.branches[0].charge_units
    assert plain.run_price(Kind.ZCDP) == zcdp_monotone(epsilon, one.threshold_units)
    assert several.run_price(Kind.ZCDP) == zcdp_monotone(10**9, several.mechanism().threshold_units)
    assert general.run_price(Kind.ZCDP) == zcdp_general(10**9)


def test_a_specification_survives_json():
    for append in ("off", "sweep", {"retry": {"lifetime": "10m"}}, {"retry": {"lifetime": 7}}):
        for correction in ("exposure", 7, {"table": ["1/3", 2]}):
            spec = monitor(append=append, correction=correction, mute="10m", split="1/3", resample_every="1h")
            assert MonitorSpec.from_json(spec.to_json()) == spec


# --- identity


def test_the_hash_is_stable_across_processes_and_versions():
    """A changed digest closes open runs at full price, so it must not change by accident."""
    assert monitor().hash() == "27a48fed84dbca87"


def test_how_a_number_is_written_and_what_decides_no_outcome_leave_the_hash_alone():
    same = monitor(epsilon="1.0", threshold="1000/2", beta="0.1", name="n", datasets=["m*"])
    assert same.hash() == monitor().hash()
    assert changed_fields(monitor(), same) == ["name", "datasets", "beta"]


def test_a_key_that_a_release_adds_leaves_the_hash_alone_at_its_default():
    class Next(MonitorSpec):
        extra: Annotated[int, Change.ADDED_LATER] = 3

    class Careless(MonitorSpec):
        extra: int = 3

    given = monitor().model_dump(mode="json", by_alias=True)
    assert Next.model_validate(given).hash() == monitor().hash()
    hashes = {monitor().hash(), Next.model_validate(given | {"extra": 4}).hash()}
    assert len(hashes | {Careless.model_validate(given).hash()}) == 3


@pytest.mark.parametrize(("old", "new"), [("{epsilon: 4}", "{epsilon: 5}"), ("beta: 0.01", "beta: 0.02")])
def test_applications_that_differ_anywhere_have_different_hashes(full, old, new):
    assert load_spec(FULL.replace(old, new)).hash() != full.hash() == load_spec(FULL).hash()


# --- changes


AT_ONCE = [
    {"threshold": 1},
    {"mute": "none"},
    {"on_halt": "stop"},
    {"resample_every": "1h"},
    {"append": "retry"},
]
NUMBERS = ("epsilon", "cutoff", "sensitivity", "granularity", "expected_queries", "split")
NEXT_RUN = [
    *({name: 2} for name in NUMBERS),
    {"bounds": (0, 1)},
    {"monotonic": False},
    {"correction": "mean"},
    {"record": {"value": "n"}},
]
NEXT_RUN += [{"query_noise": "laplace"}, {"threshold_noise": "laplace"}, {"mechanism": "ladder"}]


@pytest.mark.parametrize("change", [*AT_ONCE, *NEXT_RUN, {"topic": "u"}], ids=str)
def test_whatever_decides_an_outcome_has_its_time_and_changes_the_hash(change):
    changed = monitor(**change)
    assert changed_fields(monitor(), changed) == list(change)
    assert ends_runs(monitor(), changed) is (change in NEXT_RUN)
    assert changed.hash() != monitor().hash()


# --- layouts of records


def test_all_monitors_of_a_topic_declare_the_same_layout():
    one = (
        "{{name: {}, topic: {}, record: {{value: {}}}, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9],"
    )
    one += " threshold: 5, correction: mean}}"
    text = "application: a\ndatasets: [{name: d, limit: 9, unit: x}]\nmonitors:\n"
    same = text + "".join(
        f"  - {one.format(*each)}\n" for each in (("m", "t", "a"), ("n", "t", "a"), ("o", "u", "b"))
    )
    assert len(load_spec(same).monitors) == 3
    with pytest.raises(ConfigError, match=r"monitors\[2\]\.record: differs from the monitor at line 4"):
        load_spec(same.replace("topic: u", "topic: t"))


# --- datasets

SHORT = """
application: a
monitors:
  - {name: m, topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5, correction: mean}
datasets:
"""


def datasets(declaration: str, **options):
    return load_spec(SHORT + declaration, **options).datasets


def test_a_horizon_makes_no_other_specification():
    """Workers and stored states with different horizons agree, because it affects no outcome."""
    declared = "  - {{name: a, {}limit: 1, unit: x}}"
    plain, long = (load_spec(SHORT + declared.format(horizon)) for horizon in ("", "horizon: 90d, "))
    assert (plain.datasets[0].terms.horizon_ms, long.datasets[0].terms.horizon_ms) == (
        30 * 86_400_000,
        90 * 86_400_000,
    )
    assert plain == long
    assert plain.hash() == long.hash()
    assert plain.datasets[0].terms.declaration == long.datasets[0].terms.declaration


def test_names_can_stand_in_a_file():
    declared = "  - {file: regions.txt, limit: 1, unit: x}"
    read = {"regions.txt": ["# regions", "north", "", "  south  "]}.__getitem__
    assert [one.name for one in datasets(declared, read_names=read)] == ["north", "south"]
    with pytest.raises(ConfigError, match="list the names"):
        datasets(declared)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["north", "sou th"], "line 2: expected a dataset name"),
        (["# nothing"], "contains no names"),
        (FileNotFoundError(2, "No such file or directory"), "No such file"),
        (ValueError("it is not UTF-8 text"), "not UTF-8"),
    ],
)
def test_a_file_of_names_that_cannot_be_used_is_reported(lines, message):
    def read(path):
        if isinstance(lines, Exception):
            raise lines
        return lines

    with pytest.raises(ConfigError, match=message) as refusal:
        datasets("  - {file: regions.txt, limit: 1, unit: x}", read_names=read)
    assert [(problem.line, problem.field) for problem in refusal.value.problems] == [(6, "datasets[0].file")]


def test_durations_are_exact_and_can_be_written_again():
    texts = ["500ms", "1.5s", "10m", "1h 30m", "2d", "1w"]
    milliseconds = [500, 1500, 600_000, 5_400_000, 172_800_000, 604_800_000]
    assert [duration_ms(text) for text in texts] == milliseconds
    assert [duration_ms(duration_text(one)) for one in milliseconds] == milliseconds


EPSILON, RHO = Kind.PURE.units, Kind.ZCDP.units
CARRIED = Carried(
    application="shop",
    cluster="c1",
    alerts="shop.alerts",
    successor="next",
    complete=True,
    topics={"counts": Declared(Fraction(3, 2), monotonic=True)},
    watermarks={},
    begun={},
    datasets={
        "a": Balance("one basket", Kind.PURE, 4 * EPSILON, 6 * EPSILON, 17 * EPSILON // 10),
        "b": Balance("one basket", Kind.ZCDP, RHO, RHO, RHO),
    },
)
EVERYTHING = replace(
    CARRIED,
    positions={0: {"m": MonitorPosition("counts", 7, 2, 1_790_000_000_000)}, 3: {}},
    mutes=(*MutedSeries.of("a", "m", {f"s{number}": number for number in range(2_500)}),),
)
LINES = list(EVERYTHING.lines())


def test_a_file_reads_as_it_was_written() -> None:
    assert [json.loads(line).get("line") for line in LINES[1:]] == [
        *["dataset"] * 2,
        *["positions"] * 2,
        *["mutes"] * 3,
        "end",
    ]
    assert parse(LINES) == EVERYTHING
    assert parse(["", *LINES, " "]).digest == EVERYTHING.digest != CARRIED.digest
    assert [pair for line in EVERYTHING.mutes for pair in line.ends] == [(f"s{n}", n) for n in range(2_500)]
    assert NOTHING.digest == ""
    with pytest.raises(ValueError, match="the file is empty"):
        parse([])


def as_last(line: str) -> tuple[int, list[str]]:
    return 8, [line, LINES[8]]


AGAIN = "run 'stream-svt carry-over' again"
HEAD, FIRST = LINES[:2]


@pytest.mark.parametrize(
    ("at", "lines", "why"),
    [
        (0, ["{}"], "line 1: .*run 'stream-svt carry-over' of this version"),
        (0, ["not json"], "line 1"),
        (0, [HEAD.replace('"carry_over":1', '"carry_over":2')], "line 1: .*carry_over"),
        (0, [HEAD.replace("3/2", "-1")], "a sensitivity must be greater than 0"),
        (8, [], f"the file is cut off, its last line is missing: {AGAIN}"),
        (8, LINES[8:] * 2, f"line 10: it follows the last one: {AGAIN}"),
        (2, [], f"the file was changed after it was written: {AGAIN}"),
        (1, [FIRST.replace("17", "1")], "the file was changed"),
        (2, [FIRST], "line 3: a dataset occurs twice"),
        (1, ["{}"], "line 2: .*line"),
        (1, [FIRST.replace('"name"', '"nam"')], "line 2: .*nam"),
        (1, [FIRST.replace("epsilon", "delta")], "line 2: .*'delta'"),
        (1, [FIRST.replace("17", "61")], "line 2: expected spent <= limit"),
        (1, [FIRST.replace("17", "-17")], "line 2: .*>= 0"),
        (1, [FIRST.replace("1700000000", '"lots"')], "line 2: .*int"),
        (*as_last('{"line":"positions","shard":0,"monitors":{}}'), "line 9: a shard occurs twice"),
        (*as_last('{"line":"positions","shard":1,"monitors":{"m":[]}}'), "line 9: .*monitors"),
        (*as_last('{"line":"mutes","dataset":"a","monitor":"m","series":[["s"]]}'), "line 9: .*array"),
        (
            *as_last('{"line":"mutes","dataset":"a","monitor":"m","series":[["s",1]],"more":1}'),
            "line 9: .*more",
        ),
        (
            *as_last('{"line":"mutes","dataset":"z","monitor":"m","series":[["s",1]]}'),
            "line 9: no line .* 'z'",
        ),
    ],
)
def test_what_is_no_such_file_is_refused(at: int, lines: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse([*LINES[:at], *lines, *LINES[at + 1 :]])


def load(
    datasets: str = "{name: a, limit: 4, unit: one basket}",
    *,
    carried: Carried = CARRIED,
    application: str = "next",
    file: str = "left.jsonl",
    **declared: str,
) -> ApplicationSpec:
    said = {"topic": "counts", "sensitivity": "3/2", "monotonic": "true", **declared}
    monitor = "name: m, epsilon: 1, cutoff: 1, bounds: [0, 9], threshold: 5, expected_queries: 9"
    monitor += "".join(f", {key}: {value}" for key, value in said.items())
    text = f"application: {application}\ncarried_over: {file}\ndatasets: [{datasets}]\nmonitors: [{{{monitor}}}]\n"

    def read(name: str) -> list[str]:
        if name != "left.jsonl":
            raise FileNotFoundError(2, "No such file or directory")
        return list(carried.lines())

    return load_spec(text, read_names=read)


DAYS = "{generate: 'd-{date}', from: 2026-01-05, limit: 1, unit: x}"


@pytest.mark.parametrize(("spent", "noted"), [(5 * EPSILON, False), (5 * EPSILON + 1, True)])
def test_what_is_left_of_a_budget_is_noted_where_it_pays_no_run_of_each_monitor(
    spent: int, noted: bool
) -> None:
    balances = {"a": dataclasses.replace(CARRIED.datasets["a"], spent=spent)}
    found = [note.message for note in load(carried=replace(CARRIED, datasets=balances)).notes]
    assert (
        any("dataset 'a' has epsilon 0.999999999 left, which cannot pay: m 1 = 1" in one for one in found)
        is noted
    )


@pytest.mark.parametrize("limit", [4, 6])
def test_a_dataset_begins_with_what_was_spent_and_with_the_limit_as_it_was_raised(limit: int) -> None:
    dataset = load(f"{{name: a, limit: {limit}, unit: one basket}}").dataset("a")
    assert (dataset.terms.limit, dataset.terms.spent_before) == (6 * EPSILON, 17 * EPSILON // 10)
    assert load().hash() != dataclasses.replace(load(), carried=NOTHING).hash()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"application": "third"}, "is for application 'next': a second one would spend the balances twice"),
        ({"datasets": "{name: a, limit: 5, unit: one basket}"}, "must keep its limit epsilon 6"),
        ({"datasets": "{name: a, limit: {rho: 4}, unit: one basket}"}, "must keep its limit epsilon 6"),
        ({"datasets": "{name: a, limit: 4, unit: one user}"}, "must keep its privacy unit 'one basket'"),
        ({"datasets": "{name: a, limit: 4, unit: one basket, new: true}"}, "is not new"),
        ({"sensitivity": "1"}, "declared with sensitivity 1.5"),
        ({"file": "lost.jsonl"}, r"carried_over: cannot read 'lost\.jsonl': No such file"),
    ],
)
def test_what_contradicts_the_file_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(**options)


NASTY = "a\u2028b\x85c\x1bd\x9be\u200b\U0001f600\n"
"""Separators of lines, and what a terminal obeys."""


def test_names_from_outside_end_no_line_of_the_file_and_reach_no_terminal() -> None:
    carried = replace(
        CARRIED,
        datasets={"\u00e4": CARRIED.datasets["a"]},
        mutes=(*MutedSeries.of("\u00e4", "m", {NASTY: -1}),),
    )
    text = "\n".join(carried.lines())
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    found = parse(text.splitlines())
    assert found == carried
    assert found.digest == carried.digest
    assert (found.mutes[0].dataset, found.mutes[0].ends) == ("\u00e4", [(NASTY, -1)])


ODD = (None, True, -1, -2, 2**63, 10**400, 0.5, "", "1e30", "\ufeff", [], ["s"], {}, {"m": 1}, {"{date}": 1})
"""What a hand, or a program that knows another version, may write in any place."""


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all parts of a JSON document."""
    yield path
    for key in part if isinstance(part, dict) else range(len(part) if isinstance(part, list) else 0):
        yield from places(part[key], (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    parts = list(document.items()) if isinstance(document, dict) else list(enumerate(document))
    found = [(key, changed(part, path[1:], value) if key == path[0] else part) for key, part in parts]
    return dict(found) if isinstance(document, dict) else [part for _, part in found]


@pytest.mark.parametrize("resealed", [False, True])
def test_whatever_is_changed_in_the_file_is_refused_in_words(resealed: bool, monkeypatch) -> None:
    """Even if the digest fits, a number outside its range is."""
    begun = {"d-{date}": _FIRST + 2 * _DAY}
    mutes = (*MutedSeries.of("a", "m", {"s": -1, "t": 7}),)
    *lines, end = replace(EVERYTHING, watermarks=begun, begun=begun, mutes=mutes).lines()
    if resealed:
        monkeypatch.setattr(Carried, "digest", json.loads(end)["digest"])
    accepted = set()
    for number, line in enumerate(lines):
        document = json.loads(line)
        for path, value in product(places(document), ODD):
            text = json.dumps(changed(document, path, value))
            if text == json.dumps(document):
                continue
            try:
                found = parse([*lines[:number], text, *lines[number + 1 :], end])
            except ValueError as error:
                refusal = str(error)
            else:
                refusal = "line 0: "
                accepted.add([key for key in path if isinstance(key, str)][-1])
                with contextlib.suppress(ConfigError):
                    load(carried=found)
            assert re.match(r"line \d+: |the file was changed", refusal), (path, value, refusal)
    texts = {"application", "cluster", "alerts", "successor", "name", "unit", "topic", "monitor", "series"}
    others = {"complete", "topics", "watermarks", "begun", "monitors", "monotonic", "sensitivity", "topic_id"}
    assert accepted <= (texts | others if resealed else set())


# The first two days had begun when the application was closed, and `d-2026-01-06` goes on.
_DAY = 86_400_000
_FIRST = 1_767_571_200_000
RUNNING = replace(
    CARRIED,
    watermarks={"d-{date}": _FIRST + _DAY},
    begun={"d-{date}": _FIRST + 2 * _DAY},
    datasets={"d-2026-01-06": Balance("x", Kind.PURE, EPSILON, EPSILON, EPSILON // 4)},
)


def _days(spec: ApplicationSpec, count: int) -> dict[str, int]:
    """Return the datasets of the first days and what was spent of them before."""
    found = [
        *spec.datasets,
        *(one for each in spec.generators for one in each.periods(0, _FIRST + count * _DAY)),
    ]
    return {one.name: one.terms.spent_before for one in found}


UNTIL = DAYS.replace("limit", "until: 2026-01-09, limit")


@pytest.mark.parametrize("declared", [DAYS, UNTIL], ids=["endless", "with an end"])
def test_of_the_periods_that_had_begun_only_those_in_the_file_go_on_with_their_balance(declared: str) -> None:
    spec = load(declared, carried=RUNNING)
    days = {f"d-2026-01-0{number}": EPSILON // 4 * (number == 6) for number in (6, 7, 8)}
    assert _days(spec, 4) == days
    assert [name for name in ("d-2026-01-05", *days) if spec.find(name) is None] == ["d-2026-01-05"]
    assert load(declared, carried=replace(RUNNING, datasets={})).find("d-2026-01-06") is None, (
        "a line was deleted"
    )


@pytest.mark.parametrize("declared", [DAYS, UNTIL], ids=["endless", "with an end"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("limit: 1", "limit: 2"), "d-2026-01-06' must keep its limit epsilon 1.* declare it a second time"),
        (("unit: x", "unit: y"), "d-2026-01-06' must keep its privacy unit 'x'"),
        (("unit: x", "unit: x, new: true"), "d-2026-01-06' is not new"),
    ],
)
def test_a_generator_keeps_limit_and_unit_of_the_period_that_goes_on(declared, change, why):
    with pytest.raises(ConfigError, match=why):
        load(declared.replace(*change), carried=RUNNING)


def test_a_period_that_had_begun_is_not_opened_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"'d-2026-01-05' has the name of a period that had begun"):
        load("{name: d-2026-01-05, limit: 1, unit: x}", carried=RUNNING)


def test_a_limit_changes_behind_the_periods_that_had_begun() -> None:
    later = "{generate: 'd-{date}', from: 2026-01-07, limit: 2, unit: x}"
    spec = load(f"{DAYS.replace('limit', 'until: 2026-01-07, limit')}, {later}", carried=RUNNING)
    assert [dataset.terms.limit // EPSILON for dataset in map(spec.dataset, _days(spec, 3))] == [1, 2]


def test_new_names_of_a_period_that_had_begun_are_watched_where_they_are_declared_new() -> None:
    more = "{generate: '{name}-{date}', names: [e], from: 2026-01-05, limit: 1, unit: x}"
    carried = replace(RUNNING, watermarks={}, begun={"{name}-{date}": _FIRST + 2 * _DAY}, datasets={})
    assert "e-2026-01-06" not in _days(load(more, carried=carried), 3)
    assert "e-2026-01-06" in _days(load(more.replace("limit", "new: true, limit"), carried=carried), 3)


def test_a_generator_goes_on_with_a_dataset_that_was_declared_by_name() -> None:
    balances = {f"d-2026-01-0{k}": Balance("x", Kind.PURE, EPSILON, EPSILON, k) for k in (6, 7)}
    assert _days(load(DAYS, carried=replace(CARRIED, datasets=balances)), 3) == {
        "d-2026-01-05": 0,
        "d-2026-01-06": 6,
        "d-2026-01-07": 7,
    }


GAPPY = replace(CARRIED, complete=False)
"""A carried-over file with missing alerts."""


def test_behind_missing_alerts_a_topic_without_declaration_is_refused() -> None:
    assert load(topic="other").topics() == ("other",)
    with pytest.raises(ConfigError, match=r"'other' is not in the carried-over.* the largest sensitivity"):
        load(carried=GAPPY, topic="other")
    assert load(carried=GAPPY).topics() == ("counts",)


@pytest.mark.parametrize(
    ("unknown", "name"), [("{name: c, limit: 4, unit: x}", "c"), (DAYS, "d-2026-01-05")], ids=["name", "days"]
)
def test_behind_missing_alerts_what_is_unknown_must_be_declared_new(unknown: str, name: str) -> None:
    assert load(unknown).dataset(name).terms.spent_before == 0
    with pytest.raises(ConfigError, match=rf"'{name}' is not in the carried-over file.* Write new: true"):
        load(unknown, carried=GAPPY)
    assert load(unknown.replace("x}", "x, new: true}"), carried=GAPPY).dataset(name).terms.spent_before == 0
    # A generator goes on behind the last period that had begun.
    over = {"d-{date}": 1_767_830_400_000}
    assert load(DAYS, carried=replace(GAPPY, watermarks=over, begun=over)).generators


@pytest.mark.parametrize("until", ["", ", until: 2026-02-03"])
def test_two_generators_never_generate_one_dataset(until):
    first, second = (
        f'  - {{generate: "a-{{date}}", from: {day}, limit: 1, unit: x'
        for day in ("2026-01-05", "2026-02-01")
    )
    for one, other in ((f"{first}}}", f"{second}{until}}}"), (f"{second}{until}}}", f"{first}}}")):
        with pytest.raises(
            ConfigError, match=r"dataset 'a-2026-02-01' is declared at line \d+, too, which has no until"
        ):
            datasets(f"{one}\n{other}")
    assert datasets(f"{first}, until: 2026-02-01}}\n{second}}}")
