"""The stream benchmark in a tiny form, and what its streams promise the engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import stream


def test_the_stream_benchmark_prints_a_figure_for_every_row_and_the_farthest_one(measured):
    printed = measured(stream, "--runs 2 --queries 3000")
    for row in stream.rows():
        assert f"stream.{row.workload}.{row.name}.recall" in printed
    assert list(printed)[-1] == "stream.worst_standard_errors"
    assert all(map(math.isfinite, printed.values()))


def test_rows_to_compare_have_the_same_exposure():
    alike = [row for row in stream.rows() if row.name in ("none", "append", "annealed") or row.drifts]
    assert len(alike) == 14
    for row in alike:
        assert sum(math.exp(-bar) for bar in row.bars) == pytest.approx(stream.EXPOSURE)


def test_news_of_a_rising_series_comes_just_before_each_of_its_sweeps_and_never_else(monkeypatch):
    monkeypatch.setattr(stream, "POSITIVES", 0.01)
    row = stream.Row("row", "sep", stream.fixed(5), 1000, drifts=True)
    queries = stream.drifting(row, 20_000, seed=1)
    new = np.zeros(len(queries.query), dtype=bool)
    new[queries.row] = True
    assert (np.diff(queries.row) > 0).all()
    stretch = np.arange(len(new)) // row.every
    seen = 0
    for query in np.flatnonzero(queries.positive).tolist():
        news = np.flatnonzero((queries.query == query) & ~new)
        first = queries.row[query] // row.every
        sweeps = [first + k for k in range(row.attempts - 1) if (first + k + 1) * row.every <= len(new)]
        assert sorted(set(stretch[news].tolist()) & set(sweeps)) == sweeps
        assert set(stretch[news].tolist()) <= {*sweeps, stretch[-1]}
        for k in news.tolist():
            assert new[k + 1 : (stretch[k] + 1) * row.every].sum() == 0, "nothing new before the sweep"
        seen += len(sweeps)
    assert seen > 500


def test_the_delay_of_a_retry_ends_at_its_sweep(monkeypatch):
    monkeypatch.setattr(stream, "POSITIVES", 0.1)
    row = stream.Row("row", "sep", (200.0, 200.0, -200.0), 100)  # the third test reports, whatever it meets
    played = stream.play(row, 3000, seed=3)
    queries = stream.once(*stream.arrivals(stream.MARGINS["sep"], 3000, seed=3))
    arrived = np.arange(250)  # every query is reported at the second sweep after it, until the run is over
    delays = [(query // 50 + 2) * 50 - 1 - query for query in arrived[queries.positive[:250]].tolist()]
    assert played["wasted"] == 250 - len(delays) < 250
    assert played["recall"] == len(delays) / queries.positive[:300].sum()  # the last 50 still waited
    assert played["delay"] == pytest.approx(np.mean(delays))
