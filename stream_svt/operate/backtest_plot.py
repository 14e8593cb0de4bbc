"""A picture of a backtest: what became of incidents, and the budget spent, over time.

It shows raw events, as the report does, and is as sensitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.grid import Floats, Integers
from stream_svt.settings.fields import duration_text
from stream_svt.settings.periods import DAY_MS
from stream_svt.sources.replay import Replay, Track, window_numbers
from stream_svt.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST: Final = 20
"""Monitors of a picture."""
_BARS: Final = 60
"""Most bars of a plot."""
_IDLE: Final = "#f0c05a"
_COLOURS: Final = {"found": "#56b4e9", "muted": "#c9c9c9", "budget spent": _IDLE, "missed": "#d55e00"}
_BUDGET: Final = "#0072b2"
_RANGE: Final = (0.1, 0.9)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty picture, in inches; MisuseError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MisuseError(
            "a plot needs matplotlib, which is not installed: pip install 'stream-svt[plot]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def draw(played: Sequence[tuple[Replay, Sequence[str]]], title: str) -> Figure:
    """Return a picture with two plots of each monitor."""
    rows = [(replay, name) for replay, names in played for name in names]
    figure = new_figure(10, 0.8 + 3.6 * len(rows))
    figure.suptitle(title, fontsize="medium")
    for part, (replay, name) in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        upper, lower = part.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _incidents(upper, replay, name)
        _budget(lower, replay, name)
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
        _dates(lower, replay)
    return figure


def _incidents(axes: Axes, replay: Replay, name: str) -> None:
    """Draw incidents by their begins, and alerts and false alerts by their windows, as means of the draws."""
    from matplotlib.ticker import MaxNLocator

    track = replay.tracks[name]
    outcomes = [*track.outcomes(replay.windows)]
    size = -(-replay.windows // _BARS)
    edges = np.arange(0, replay.windows + size, size)

    def counts(places: list[Integers]) -> Floats:
        return np.array([np.histogram(window_numbers(one), edges)[0] for one in places], float)

    middles, width = _time(replay, edges[:-1] + size / 2), size * replay.source.window / DAY_MS
    parts = {
        "found": [one.begins[one.found] for one in outcomes],
        "muted": [one.begins[one.muted] for one in outcomes],
        "budget spent": [one.begins[one.idle] for one in outcomes],
        "missed": [one.begins[~(one.found | one.muted | one.idle)] for one in outcomes],
    }
    base = np.zeros(len(middles))
    for word, places in parts.items():
        heights = counts(places).mean(axis=0)
        axes.bar(middles, heights, 0.9 * width, bottom=base, color=_COLOURS[word], label=f"incidents: {word}")
        base += heights
    alerts = counts([one.alerts for one in outcomes])
    false = counts([one.alerts[one.false] for one in outcomes])
    shown, (low, high) = alerts.any(axis=0), np.quantile(alerts, _RANGE, axis=0)
    axes.vlines(middles[shown], low[shown], high[shown], color="black", lw=0.8)
    axes.plot(
        middles[shown], alerts.mean(axis=0)[shown], "o", color="black", ms=3, label="alerts (8 draws in 10)"
    )
    axes.bar(middles, -false.mean(axis=0), 0.9 * width, color="black", alpha=0.6, label="false alerts")
    axes.axhline(0, color="black", lw=0.8)
    lowest, highest = axes.get_ylim()
    axes.set_ylim(min(lowest, 0), 1.06 * max(highest, 1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.set_ylabel(f"incidents in {duration_text(size * replay.source.window)}")
    incidents, found = len(outcomes[0].begins), fmean(int(one.found.sum()) for one in outcomes)
    head = f"{name}: {counted(incidents, 'incident')} of {float(track.levels[0]):,.12g} or more"
    axes.set_title(f"{head}, {found:.3g} found on average", loc="left", fontsize="medium")


def _budget(axes: Axes, replay: Replay, name: str) -> None:
    """Draw the part of the limit that the monitor, and all, have spent in each period, and when it had no run."""
    tracks = [*replay.tracks.values()]
    own = [one for one in tracks if name in (one.monitor.name, one.monitor.ends)]
    times = _time(replay, np.arange(replay.windows + 1))

    def shown(windows: Floats) -> Floats:
        return np.append(windows, windows[..., -1:], axis=-1)  # the last one until its end

    idle = 100 * shown(_idle(replay, replay.tracks[name]))
    axes.fill_between(times, 0, idle, step="post", lw=0, color=_IDLE, alpha=0.6, label="draws without a run")
    spent = shown(_spent(replay, own))
    low, high = np.quantile(spent, _RANGE, axis=0)
    axes.fill_between(times, low, high, step="post", lw=0, color=_BUDGET, alpha=0.3)
    axes.step(times, spent.mean(axis=0), where="post", color=_BUDGET, label="limit spent (8 draws in 10)")
    if len(own) < len(tracks):
        every = shown(_spent(replay, tracks)).mean(axis=0)
        axes.step(times, every, where="post", color="0.3", ls=":", label="by all monitors")
    for begin in _time(replay, np.array(replay.periods)):
        axes.axvline(begin, color="0.8", lw=0.8, zorder=0)
    axes.set(ylim=(0, 104), ylabel="%")


def _spent(replay: Replay, tracks: Sequence[Track]) -> Floats:
    """Return the part of their limits, in %, that the datasets of each window have spent by its close, by draw."""
    charged = np.zeros((len(tracks[0].draws), replay.windows))
    for track in tracks:
        for row, one in zip(charged, track.draws, strict=True):
            for number, part in one.charges:
                row[min(number, replay.windows - 1)] += part
    begins = np.array(replay.periods)
    period = begins[begins.searchsorted(np.arange(replay.windows), side="right") - 1]
    spent = np.cumsum(charged, axis=1)
    return 100 * (spent - (spent - charged)[:, period]) / len(replay.source.dataset_names)


def _idle(replay: Replay, track: Track) -> Floats:
    """Return the part of the draws in which a monitor had no run of the datasets of each window."""
    idle = np.zeros(replay.windows + 1)
    for one in track.draws:
        for span in one.idle:
            begin, end = np.minimum(window_numbers(np.array(span) // track.series), replay.windows)
            idle[begin] += 1
            idle[end] -= 1
    return np.cumsum(idle)[:-1] / len(track.draws) / len(replay.source.dataset_names)


def _time(replay: Replay, numbers: NDArray[Any]) -> Floats:
    """Return when windows begin, in days as matplotlib counts them."""
    return (replay.first_ms + numbers * replay.source.window) / DAY_MS


def _dates(axes: Axes, replay: Replay) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axes.set_xlim(*_time(replay, np.array([0, replay.windows])))
    axes.xaxis_date()
    axes.set_xlabel("UTC", loc="left")
    locator = AutoDateLocator(maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
