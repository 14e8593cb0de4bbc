"""The picture of a backtest: what its bars, points and lines say about replays."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.application.config import parse_config
from stream_svt.columns.query_batch import Integers
from stream_svt.operate.backtest_plot import draw
from stream_svt.settings.periods import DAY_MS
from stream_svt.sources.questions import Values
from stream_svt.sources.replay import Replay, by_dataset
from tests.support.sources import WEB

HOUR_MS = 3_600_000
NAME = "many-users"
SERIES = 5


def replay(values: Integers, draws: int = 2) -> Replay:
    """Return a replay of visitors by window and page, without alerts; periods are days."""
    spec = parse_config(WEB).spec
    [source], levels = spec.sources, {one.name: Fraction(700) for one in spec.monitors}
    first_ms, windows = 20_000 * DAY_MS, len(values)
    made = Replay(spec, source, levels, first_ms, first_ms + (windows - 1) * HOUR_MS, draws, os.urandom)
    for number, row in enumerate(values):
        made.tracks[NAME].add(number, Values(row[None, :], np.ones((1, SERIES), np.bool_)))
    made.windows = windows
    return made


def cell(dataset: int, series: int, window: int) -> int:
    return dataset * SERIES + series << 32 | window


def heights(axes, label: str) -> list[float]:
    [bars] = [one for one in axes.containers if one.get_label() == label]
    return [one.get_height() for one in bars]


def line(axes, label: str) -> list[float]:
    [found] = [one for one in axes.lines if one.get_label() == label]
    return list(found.get_ydata())


def test_incidents_are_drawn_by_what_became_of_them_and_alerts_by_their_window():
    values = np.zeros((12, SERIES), np.int64)
    values[2, 0] = values[4, 1] = values[6, 2] = values[8, 3] = 800
    played = replay(values)
    one, other = played.tracks[NAME].draws
    for each in (one, other):
        each.mutes.append((cell(0, 1, 3), cell(0, 1, 9)))
        each.idle.append((by_dataset(cell(0, 0, 6), SERIES), by_dataset(cell(0, 0, 8), SERIES)))
    one.alerts += [cell(0, 0, 2), cell(0, 4, 10)]
    upper, _ = draw([(played, [NAME])], "title").subfigs[0].axes
    expected = {
        "incidents: found": {2: 0.5},
        "incidents: muted": {4: 1},
        "incidents: budget spent": {6: 1},
        "incidents: missed": {2: 0.5, 8: 1},
        "false alerts": {10: -0.5},
    }
    for label, found in expected.items():
        assert heights(upper, label) == [found.get(window, 0) for window in range(12)], label
    [points] = [each for each in upper.lines if each.get_label().startswith("alerts")]
    assert list(points.get_ydata()) == [0.5, 0.5]
    assert 24 * (points.get_xdata() - 20_000) == pytest.approx([2.5, 10.5])
    [missed] = [each for each in upper.containers if each.get_label() == "incidents: missed"]
    assert (missed[2].get_y(), missed[8].get_y()) == (0.5, 0), "on top of those found"
    assert upper.get_title(loc="left") == f"{NAME}: 4 incidents of 700 or more, 0.5 found on average"
    assert upper.get_ylabel() == "incidents in 1h"


def test_many_windows_share_a_bar():
    values = np.zeros((130, SERIES), np.int64)
    values[[0, 2, 3, 129], [0, 1, 2, 3]] = 900
    upper, _ = draw([(replay(values), [NAME])], "title").subfigs[0].axes
    found = heights(upper, "incidents: missed")
    assert (len(found), found[:2], found[-1], sum(found)) == (44, [2, 1], 1, 4)
    assert upper.get_ylabel() == "incidents in 3h"


def test_the_budget_begins_anew_with_each_period_and_a_time_without_a_run_is_marked():
    played = replay(np.zeros((30, SERIES), np.int64))
    assert played.periods == [0, 24]
    users, errors = played.tracks[NAME].draws, played.tracks["many-errors"].draws
    for each in users:
        each.charges += [(0, 0.2), (3, 0.2), (25, 0.1)]
    users[0].charges.append((99, 0.4))  # by a tick after the last window
    errors[0].charges.append((1, 0.5))
    users[0].idle.append((by_dataset(cell(0, 2, 4), SERIES), by_dataset(cell(0, 0, 24), SERIES)))
    _, lower = draw([(played, [NAME])], "title").subfigs[0].axes
    own = line(lower, "limit spent (8 draws in 10)")
    assert own == pytest.approx([20] * 3 + [40] * 21 + [0] + [10] * 4 + [30] * 2)
    every = np.array(line(lower, "by all monitors"))
    assert every - own == pytest.approx([0] + [25] * 23 + [0] * 7)
    [idle] = [each for each in lower.collections if each.get_label() == "draws without a run"]
    tops = {round(24 * (x - 20_000)): y for x, y in idle.get_paths()[0].vertices if y}
    assert set(tops.values()) == {50}
    assert (min(tops), max(tops)) == (4, 24)


def test_each_monitor_has_two_plots_and_the_picture_a_title(tmp_path):
    played = replay(np.zeros((3, SERIES), np.int64))
    figure = draw([(played, [NAME, "many-errors"])], "as sensitive as the raw events")
    assert [len(part.axes) for part in figure.subfigs] == [2, 2]
    assert figure.get_suptitle() == "as sensitive as the raw events"
    for suffix in ("svg", "pdf", "png"):
        figure.savefig(tmp_path / f"plot.{suffix}", dpi=40)
