"""The benchmark of a step in a tiny form."""

from __future__ import annotations

import pytest

pytest.importorskip("opendp")

from benchmarks import mechanisms
from benchmarks.command import show


def test_the_mechanisms_benchmark_prints_its_figures(capsys):
    show(mechanisms.figures, ["--tests", "3000", "--draws", "300", "--repetitions", "3"])
    printed = dict(line.split(" ") for line in capsys.readouterr().out.splitlines())
    assert list(printed)[:2] == [
        "mechanisms.step_vs_numpy_exponential",
        "mechanisms.step_vs_opendp_laplace",
    ]
    assert min(float(figure) for figure in printed.values()) > 0


def test_a_tenth_of_the_tests_are_tops_where_that_is_measured():
    plain = mechanisms.sparse_vector(
        epsilon=mechanisms.EPSILON, cutoff=3000, monotonic=True, correction=mechanisms.STREAM
    )
    side = mechanisms.Side(plain, 3000, tops=0.1)
    side.step()
    assert side.tops == int((side.values == mechanisms.FAR_ABOVE).sum()) > 200
