"""Every benchmark in a tiny form: it runs and prints its figures, whatever they are on a busy machine."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from benchmarks import engine, latency, sampler, service, year
from benchmarks.command import show
from stream_svt.service.embedded import EmbeddedKafka

ROOT = Path(__file__).parents[2]


def figures_in(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split(" ") for line in text.splitlines())}


@pytest.fixture
def shared_broker(broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmarks that start a broker of their own use the session's."""
    for module in (service, latency):
        monkeypatch.setattr(module, "EmbeddedKafka", lambda: contextlib.nullcontext(broker))
    monkeypatch.chdir(ROOT)  # the peers' processes import from it


def test_the_engine_benchmark_prints_its_figure(capsys):
    show(engine.figures, ["--datasets", "300", "--rows", "500", "--batches", "2", "--repetitions", "1"])
    printed = figures_in(capsys.readouterr().out)
    assert list(printed) == ["engine.datasets_100k_vs_1"]
    assert printed["engine.datasets_100k_vs_1"] > 0


def test_the_sampler_benchmark_prints_its_figure(capsys):
    show(sampler.figures, ["--count", "2000", "--repetitions", "3"])
    printed = figures_in(capsys.readouterr().out)
    assert list(printed) == ["sampler.exact_vs_numpy_exponential"]
    assert printed["sampler.exact_vs_numpy_exponential"] > 0


@pytest.mark.kafka
@pytest.mark.soak
def test_the_service_benchmark_prints_its_figures(shared_broker, capsys):
    size = {
        "messages": 40_000,
        "agent-messages": 500,
        "repetitions": 1,
        "commit-records": 100,
        "look-every": 10,
    }
    show(service.figures, [word for name, value in size.items() for word in (f"--{name}", str(value))])
    printed = figures_in(capsys.readouterr().out)
    assert list(printed) == ["service.json_vs_getmany", "service.json_vs_faust_agent"]
    assert min(printed.values()) > 0


@pytest.mark.kafka
@pytest.mark.soak
def test_the_latency_benchmark_prints_its_figure(shared_broker, capsys):
    show(latency.figures, ["--queries", "5", "--turns", "2"])
    printed = figures_in(capsys.readouterr().out)
    assert list(printed) == ["latency.p50_vs_bare_relay"]
    assert printed["latency.p50_vs_bare_relay"] > 0


def test_the_year_benchmark_finds_that_what_is_over_leaves_nothing(capsys):
    show(year.figures, ["--names", "20", "--days", "95"])
    printed = figures_in(capsys.readouterr().out)
    assert list(printed) == ["year.state_ratio", "year.restore_ratio", "year.rss_ratio", "year.violations"]
    assert printed["year.state_ratio"] < 1.2
    assert printed["year.violations"] == 0


def test_the_datasets_of_the_service_benchmark_are_spread_evenly():
    names = service.datasets(16)
    assert len(set(names)) == 64
    homes = [service.peers.home(name.encode(), 4) for name in names]
    assert [homes.count(place) for place in range(4)] == [16] * 4


def test_every_benchmark_is_listed_by_the_command_that_runs_them():
    listed = subprocess.run(
        ["bash", "benchmarks/run"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [
        "accuracy",
        "engine",
        "ladder",
        "latency",
        "mechanisms",
        "planner",
        "reproduction",
        "sampler",
        "selective",
        "service",
        "stream",
        "takeover",
        "timing",
        "year",
        "scale",
    ]
