"""The specification as it is read from YAML: exact values, what they mean, and what a change does."""

from __future__ import annotations

from fractions import Fraction

import pytest

from stream_svt.errors import ConfigError
from stream_svt.mechanisms.correction import Annealed, Explicit, Exposure, Mean, Optimal, Uncorrected
from stream_svt.mechanisms.noise import Noise
from stream_svt.monitor.plan import Plan
from stream_svt.privacy.loss import Kind, zcdp_general, zcdp_monotone
from stream_svt.settings import monitors
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.fields import (
    MechanismForm,
    Mute,
    OnHalt,
    Retry,
    Sweep,
    duration_ms,
    duration_text,
)
from stream_svt.settings.monitors import MonitorSpec, changed_fields, ends_runs

FULL = """
application: retail-watch
kafka: {bootstrap_servers: "127.0.0.1:9092"}
datasets:
  - name: retail-2026-w01
    limit: {epsilon: 4}
    unit: one basket
  - names: [other-a, other-b]
    limit: "1/3"
    unit: one user
monitors:
  - name: hot-items
    topic: retail.counts
    datasets: ["retail-*"]
    mechanism: adaptive
    epsilon: 0.1
    cutoff: 10
    sensitivity: 1
    monotonic: true
    granularity: 0.5
    bounds: [0, 100000]
    threshold: 500.2
    query_noise: laplace
    threshold_noise: exponential
    split: null
    correction: {exposure: {false_alerts: 2}}
    expected_queries: 1e6
    append: {retry: {attempts: 5, lifetime: 10m, capacity: 1000, every: 100}}
    mute: 1h30m
    max_mutes: 5
    on_halt: stop
    resample_every: 1d
    reserve: 0.2
    beta: 0.01
  - name: plain
    topic: other.counts
    epsilon: 1/10
    cutoff: 1
    sensitivity: 1.5
    bounds: [-5, 5]
    threshold: 1
    expected_queries: 100
"""


def monitor(**changes) -> MonitorSpec:
    fields = {
        "name": "m",
        "topic": "t",
        "epsilon": 1,
        "cutoff": 10,
        "sensitivity": 1,
        "monotonic": True,
        "bounds": (0, 1000),
        "threshold": 500,
        "expected_queries": 1000,
    }
    return MonitorSpec.model_validate(fields | changes)


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
    assert full.dataset("other-b").limit == 333_333_333


def test_every_field_of_a_monitor_is_read_and_has_the_default_that_is_described(full):
    hot, plain = full.monitors
    assert (hot.form, plain.form) == (MechanismForm.ADAPTIVE, MechanismForm.SVT)
    assert (hot.query_noise, hot.threshold_noise) == (Noise.LAPLACE, Noise.EXPONENTIAL)
    assert hot.append == Retry(attempts=5, lifetime="10m", capacity=1000, every=100)
    assert (hot.mute, hot.max_mutes) == (5_400_000, 5)
    assert (hot.on_halt, hot.resample_every) == (OnHalt.STOP, 86_400_000)
    assert (plain.monotonic, plain.granularity, plain.append) == (False, 1, None)
    assert (plain.mute, plain.on_halt) == (Mute.PERIOD, OnHalt.RESAMPLE)
    assert plain.correction_rule() == Exposure(expected_queries=100, false_alerts=Fraction(1, 10), attempts=1)


def test_the_grid_rounds_sensitivity_and_threshold_up_and_bounds_down(full):
    hot, plain = full.monitors
    assert (hot.grid_sensitivity, hot.grid_bounds) == (2, (0, 200_000))
    assert Plan.of(hot).grid.threshold(hot.threshold) == 1001
    assert (plain.grid_sensitivity, plain.grid_bounds) == (2, (-5, 5))


def test_monitors_are_found_by_dataset_and_topics_are_listed_once(full):
    covering = [
        [one.name for one in full.monitors if one.covers(name)] for name in ("retail-2026-w01", "other-a")
    ]
    assert covering == [["hot-items", "plain"], ["plain"]]
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
    retried, one = monitor(append={"retry": {"attempts": 4}}), Fraction(1)
    assert retried.attempts == 4
    assert retried.correction_rule() == Exposure(expected_queries=1000, false_alerts=one, attempts=4)


def test_append_can_be_switched_off():
    assert {monitor(append=written).append for written in ("off", None, False)} == {None}


@pytest.mark.parametrize(("form", "branches"), [("svt", 1), ("adaptive", 2), ("ladder", 4)])
def test_the_mechanism_has_the_branches_and_the_price_declared(form, branches):
    spec = monitor(mechanism=form)
    mechanism = spec.mechanism()
    assert len(mechanism.branches) == branches
    assert mechanism.epsilon == spec.run_price(Kind.PURE) == 10**9
    assert mechanism.cutoff == 10


def test_a_split_sets_the_share_of_the_threshold():
    assert monitor(split=4).mechanism().threshold_charge == 200_000_000
    adaptive = monitor(split="0.3", mechanism="adaptive").mechanism()
    assert adaptive.threshold_charge == pytest.approx(3e8, rel=1e-6)


def test_the_zcdp_price_is_that_of_the_mechanism_and_direction():
    plain, several, general = (monitor(), monitor(mechanism="adaptive"), monitor(monotonic=False))
    one = plain.mechanism()
    assert plain.run_price(Kind.ZCDP) == zcdp_monotone(
        one.threshold_charge + 10 * one.branches[0].charge, one.threshold_charge
    )
    assert several.run_price(Kind.ZCDP) == zcdp_monotone(10**9, several.mechanism().threshold_charge)
    assert general.run_price(Kind.ZCDP) == zcdp_general(10**9)


def test_a_specification_survives_json():
    for append in ("off", "sweep", {"retry": {"lifetime": "10m"}}, {"retry": {"lifetime": 7}}):
        for correction in ("exposure", 7, {"table": ["1/3", 2]}):
            spec = monitor(append=append, correction=correction, mute="10m", split="1/3", resample_every="1h")
            assert MonitorSpec.from_json(spec.to_json()) == spec


# --- identity


def test_the_hash_is_stable_across_processes_and_versions():
    """Open runs are bound to it: a change closes them at full price, so it must not come by accident."""
    assert monitor().hash() == "135c1e9264c0f8aa"


def test_how_a_number_is_written_and_what_decides_no_outcome_leave_the_hash_alone():
    same = monitor(epsilon="1.0", threshold="1000/2", beta="0.1", name="n", datasets=["m*"])
    assert same.hash() == monitor().hash()
    assert changed_fields(monitor(), same) == ["name", "datasets", "beta"]


def test_a_key_that_a_release_adds_leaves_the_hash_alone_at_its_default(monkeypatch):
    monkeypatch.setattr(monitors, "ADDED_LATER", frozenset({"on_halt"}))
    added = monitor().hash()
    assert added != "135c1e9264c0f8aa"
    assert monitor(on_halt="stop").hash() != added
    monkeypatch.setattr(monitors, "ADDED_LATER", frozenset())
    assert monitor().hash() == "135c1e9264c0f8aa"


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
]
NEXT_RUN += [{"query_noise": "laplace"}, {"threshold_noise": "laplace"}, {"mechanism": "ladder"}]


@pytest.mark.parametrize("change", [*AT_ONCE, *NEXT_RUN, {"topic": "u"}], ids=str)
def test_whatever_decides_an_outcome_has_its_time_and_changes_the_hash(change):
    changed = monitor(**change)
    assert changed_fields(monitor(), changed) == list(change)
    assert ends_runs(monitor(), changed) is (change in NEXT_RUN)
    assert changed.hash() != monitor().hash()


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
    """Workers and stored states agree whatever it says, for it bears on no outcome."""
    declared = "  - {{name: a, {}limit: 1, unit: x}}"
    plain, long = (load_spec(SHORT + declared.format(said)) for said in ("", "horizon: 90d, "))
    assert (plain.datasets[0].horizon_ms, long.datasets[0].horizon_ms) == (None, 90 * 86_400_000)
    assert plain == long
    assert plain.hash() == long.hash()
    assert plain.datasets[0].declaration == long.datasets[0].declaration


def test_names_can_stand_in_a_file():
    declared = "  - {file: regions.txt, limit: 1, unit: x}"
    read = {"regions.txt": ["# regions", "north", "", "  south  "]}.__getitem__
    assert [one.name for one in datasets(declared, read_names=read)] == ["north", "south"]
    with pytest.raises(ConfigError, match="write the names out"):
        datasets(declared)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["north", "sou th"], "line 2: expected a dataset name"),
        (["# nothing"], "holds no names"),
        (FileNotFoundError(2, "No such file or directory"), "No such file"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "not UTF-8"),
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
