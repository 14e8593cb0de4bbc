"""Every benchmark in a tiny form: it runs and prints its figures, whatever they are on a busy machine."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import costs, latency, peers, planner, takeover
from benchmarks.application import Worker
from benchmarks.scale import __main__ as scale
from benchmarks.scale.loop_lag import Lag
from benchmarks.service import columns, messages, values, workers
from benchmarks.service.reading import datasets
from benchmarks.sources import close, events, outage
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.logs import TEXT, TextFormatter
from stream_svt.mechanisms import noise

ROOT = Path(__file__).parents[2]

SOAK = (pytest.mark.kafka, pytest.mark.soak)


@pytest.fixture
def shared_broker(broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmarks that start a broker of their own use the session's."""
    for module in (columns, latency, messages, values, workers, close, events, outage):
        monkeypatch.setattr(module, "EmbeddedKafka", lambda: contextlib.nullcontext(broker))
    monkeypatch.chdir(ROOT)  # the peers' processes import from it


READING = "--messages 40000 --repetitions 1 --look-every 10"
TINY = {
    "engine": (
        "--datasets 300 --rows 500 --batches 2 --repetitions 1 --held 300",
        "datasets_300_vs_1 ns_per_query muted_ns alert_us slot_bytes dataset_bytes digest_bytes",
    ),
    "kanon": (
        "--runs 2000",
        (
            "width published_width published_again width_one_alert published_calendar_weeks width_1000_groups "
            "silent_up_to told_from wrongly_told wrongly_silent"
        ),
    ),
    "questions": (
        "--weeks 8 --years 2 --events 50000",
        (
            "true_alerts true_alerts.plain true_alerts.for_4_of_5 true_alerts.mean_5 share_distance_vs_count "
            "usual_gain_over_thresholds usual_found.thresholds usual_found.factor_1 usual_found.factor_1.05 "
            "usual_found.factor_1.1 usual_found.factor_1.2 excess_delay_525 excess_delay_600 excess_delay_550 "
            "excess_delay_550.found excess_delay_550.plain_found rolling_alerts_per_year detect_error "
            "detect_seconds counter_cost"
        ),
    ),
    "sources.tally": (
        "--pairs 200000 --piece 5000 --cells 100 --repetitions 2",
        "bytes_per_pair rebuild_seconds_per_10m longest_step_ms",
    ),
    "sources.events": (
        "--events 400000 --pages 100 --repetitions 1 --look-every 5",
        " ".join(
            f"{prefix}{name}"
            for prefix in ("", "avro_")
            for name in ("events_vs_getmany", "events_cpu_vs_getmany", "million_events")
        ),
    ),
    "sources.outage": ("--rate 40000 --seconds 8 --pages 100 --look-every 5", "catch_up_vs_live"),
    "sources.close": ("--pairs 50000 --pages 100 --repetitions 1", "close_seconds"),
    "sampler": ("--count 2000 --repetitions 3", "exact_vs_numpy_exponential test_ns_vs_numpy_exponential"),
    "planner": (
        "--workloads 4 --runs 12 --engine 2 --engine-runs 2 --real-runs 1 --choices 1 --choice-runs 5",
        "mean_absolute_error worst_error after_look_mean_error",
    ),
    "year": ("--names 20 --days 95", "state_ratio restore_ratio rss_ratio violations"),
    "service.messages": (
        f"{READING} --agent-messages 500 --commit-records 100",
        "json_vs_getmany json_vs_tuned_getmany json_vs_quix json_vs_faust_agent json_mqueries",
    ),
    "service.columns": (
        "--messages 1000 --rows 100 --repetitions 1 --commit-records 10 --look-every 10",
        "columnar_vs_fetch columnar_mrows",
    ),
    "service.values": (
        f"{READING} --commit-records 100 --rows 200 --batches 3",
        "decimals_vs_integers odd_value_cost",
    ),
    "service.workers": (f"{READING} --commit-records 200", "workers_2_vs_1 workers_4_vs_1"),
    "latency": (
        "--queries 5 --turns 1 --messages 40000 --commit-records 100 --look-every 10",
        " ".join(f"{name}_vs_bare_relay{load}" for load in latency.LOADS for name in ("p50", "p99")),
    ),
}
"""Small sizes of each benchmark, and the figures that it prints."""
DIFFERENCES = ("_cost", "muted_ns", "violations", "bytes_per_pair", "factor_1", "factor_1.05")
"""Ends of the names of figures that may be 0 or negative."""
LIMITS = {
    "engine.slot_bytes": 150,
    "engine.dataset_bytes": 400,
    "kanon.width": 18,
    "questions.share_distance_vs_count": 1.02,
    "planner.after_look_mean_error": 0.1,  # 0.05 with more than one run
    "questions.detect_error": 0.03,
    "year.state_ratio": 1.2,  # what is over leaves nothing
    "year.violations": 0,
}
"""Largest values of figures that no machine changes."""
LEAST = {"questions.true_alerts": 9, "questions.usual_gain_over_thresholds": 1.5}
"""Smallest values of such figures."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=SOAK if re.match("service|latency|sources.[^t]", name) else ())
        for name in TINY
    ],
)
def test_a_benchmark_prints_its_figures(measured, request, name):
    sizes, figures = TINY[name]
    benchmark, program = importlib.import_module(f"benchmarks.{name}"), name.split(".")[0]
    if hasattr(benchmark, "EmbeddedKafka"):
        request.getfixturevalue("shared_broker")
    if "json_vs_quix" in figures and not find_spec("quixstreams"):
        pytest.skip("needs the extra `benchmarks`")
    printed = measured(benchmark, sizes, name=program)
    assert list(printed) == [f"{program}.{figure}" for figure in figures.split()]
    assert all(printed[figure] > 0 for figure in printed if not figure.endswith(DIFFERENCES))
    assert {name: limit for name, limit in LIMITS.items() if printed.get(name, 0) > limit} == {}
    assert {name: least for name, least in LEAST.items() if printed.get(name, least) < least} == {}


def test_the_time_of_a_takeover_is_read_from_a_worker_s_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    events = (
        ("event=assigned shards=2", 1.5),
        ("event=shard_opened shard=0", 2),
        ("event=shard_opened shard=1", 2.75),
    )
    lines = []
    for text, created in events:
        record = logging.LogRecord("stream_svt", logging.INFO, "", 0, text, None, None)
        record.created, record.msecs = created, created % 1 * 1000
        lines.append(TextFormatter(TEXT).format(record))
    log.write_text("\n".join(lines))
    with subprocess.Popen(["true"]) as process:
        assert Worker(process, 0, log, log).takeover() == 1.25


@pytest.mark.kafka
@pytest.mark.soak
def test_the_takeover_benchmark_gives_the_time_of_a_restore_and_of_a_takeover() -> None:
    found = takeover.figures(datasets=40, restores=1, kills=1)
    assert set(found) == {"restore_100k_seconds", "kill_to_ready_minus_session_timeout"}
    assert found["restore_100k_seconds"] > 0
    # Kafka waits for the session to end; a worker that was not killed would not have been missed at all.
    assert found["kill_to_ready_minus_session_timeout"] > -takeover.SESSION


def test_the_datasets_of_the_service_benchmark_are_spread_evenly():
    names = datasets(16)
    assert len(set(names)) == 64
    homes = [peers.home(name.encode(), 4) for name in names]
    assert [homes.count(place) for place in range(4)] == [16] * 4


def test_the_planner_is_told_quantiles_and_never_the_family():
    case = next(planner.cases(seed=9))
    drawn = case.above(np.random.default_rng(1), 20_000)
    told = case.workload.above
    assert len(told) == 200
    for level in (0.1, 0.5, 0.9):
        assert np.mean(drawn < np.quantile(told, level)) == pytest.approx(level, abs=0.02)


def test_stratified_thresholds_have_the_law_of_the_mechanism():
    mechanism = next(planner.cases(seed=9)).spec().mechanism()
    drawn = planner.Noises(mechanism, np.random.default_rng(2)).thresholds(4000)
    for scales in (0.2, 1, 3):
        steps = round(scales / mechanism.threshold_rate)
        expected = noise.tail(mechanism.threshold_noise, mechanism.threshold_rate, steps)
        assert np.mean(drawn >= steps) == pytest.approx(expected, abs=0.002)


def test_a_hold_of_the_loop_belongs_to_the_phase_in_which_it_began_and_a_rebalance_is_no_loss(tmp_path):
    one, other, log = (tmp_path / name for name in ("one", "other", "log"))
    one.write_text("105.0 0.2\n112.0 0.4\n")
    other.write_text("112.5 0.3\n121.5 2.0\n")
    log.write_text(
        "WARNING Heartbeat failed for group x because it is rebalancing\n"
        "WARNING Heartbeat session expired - marking coordinator dead\n"
    )
    lag = Lag([(100.0, "start"), (110.0, "pages"), (120.0, "end")], [one, other], [log])
    assert lag.worst() == {"start": 0.2, "pages": 2.0, "end": 0.0}
    assert lag.losses() == 1


def test_the_costs_benchmark_measures_every_axis_and_what_is_held_and_written(measured, monkeypatch):
    axes = {
        "datasets": (1, 10),
        "monitors": (1, 2),
        "waiting": (8, 16),
        "batch": (1, 30),
        "message": (60, 300),
    }
    monkeypatch.setattr(costs, "AXES", axes | {"tops": (1e-5, 0.5)})
    monkeypatch.setattr(costs, "BASE", costs.Point(datasets=10, batch=30))
    monkeypatch.setattr(costs, "ROWS", 15)
    monkeypatch.setattr(costs, "process_mib", lambda: 1.0)
    printed = measured(costs, "--datasets 100 --queries 120 --turns 1")
    known = json.loads(costs.DATA.read_text())["figures"]
    assert list(printed) == [f"costs.{name}" for name in known]
    assert all(printed[f"costs.{name}"] > 0 for name in known if name.endswith(("_bytes", "_us")))


def test_every_benchmark_is_listed_by_the_command_that_runs_them():
    listed = subprocess.run(
        ["bash", "benchmarks/run"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    files = "accuracy costs engine kanon ladder latency mechanisms planner questions reproduction sampler "
    names = f"{files}selective stream takeover timing year scale service sources".split()
    assert [line.split()[0] for line in listed.splitlines()[1:]] == names


@pytest.mark.parametrize("name", scale.FIGURES)
def test_each_figure_at_a_users_size_is_that_of_a_program_which_can_be_imported(name):
    assert importlib.import_module(f"benchmarks.scale.{name}").measure
