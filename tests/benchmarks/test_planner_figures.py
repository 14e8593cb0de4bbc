"""The planner's benchmark in a tiny form."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import planner
from benchmarks.command import show
from stream_svt.mechanisms import noise


def test_the_planner_benchmark_prints_its_figures(capsys):
    sizes = "--workloads 4 --runs 12 --engine 2 --engine-runs 2 --real-runs 1 --choices 1 --choice-runs 5"
    show(planner.figures, sizes.split(), digits=4)
    printed = {
        name: float(value)
        for name, value in (line.split(" ") for line in capsys.readouterr().out.splitlines())
    }
    assert list(printed) == ["planner.mean_absolute_error", "planner.worst_error"]
    assert 0 < printed["planner.mean_absolute_error"] <= printed["planner.worst_error"] < 0.5


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
