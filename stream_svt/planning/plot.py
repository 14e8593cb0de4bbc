"""A recommendation as a picture: what is reported, when the budget is used, and what the other settings would do.

Needs the extra `plot` (matplotlib), which is loaded when a picture is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.planning.advice import correction_in_words
from stream_svt.planning.model import course, report_chances
from stream_svt.planning.recommending import Candidate, Recommendation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TRUE, _FALSE, _OTHER, _LIMIT = "#2a6f97", "#d1495b", "#8d99ae", "#222222"


def draw(recommendation: Recommendation) -> Figure:
    """Return the picture.

    Raises:
        MisuseError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MisuseError(
            "a plot needs matplotlib, which is not installed: pip install 'stream-svt[plot]'"
        ) from None
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    margins, alerts, choices = figure.subplots(1, 3)
    _draw_margins(margins, recommendation)
    _draw_alerts(alerts, recommendation)
    _draw_choices(choices, recommendation)
    for axes, locator in ((margins, MaxNLocator(5)), (alerts, MaxNLocator(4, integer=True))):
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_major_locator(locator)
    return figure


def _draw_margins(axes: Axes, recommendation: Recommendation) -> None:
    """Chance of a report by distance from the threshold, above where values are believed to lie."""
    workload, monitor = recommendation.workload, recommendation.best.monitor
    reach = 1.2 * max(float(np.quantile(workload.above, 0.9)), float(np.quantile(workload.below, 0.5)))
    distance = np.linspace(-reach, reach, 241)
    chances = report_chances(monitor, distance)
    low, middle, high = np.quantile(chances, (0.1, 0.5, 0.9), axis=0)
    axes.fill_between(distance, low, high, color=_LIMIT, alpha=0.15, lw=0, label="8 runs in 10")
    axes.plot(distance, middle, color=_LIMIT, label="half of the runs")
    for values, colour, kind in (
        (workload.above, _TRUE, "positives"),
        (-workload.below, _FALSE, "negatives"),
    ):
        counts, edges = np.histogram(values, np.linspace(-reach, reach, 49))
        heights, label = 0.45 * counts / max(counts.max(), 1), f"{kind} (no scale)"
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.45, label=label)
    axes.axvline(0, color=_OTHER, lw=0.8)
    axes.set(title="What is reported", xlabel="distance from the threshold", ylabel="chance of a report")
    axes.set(xlim=(-reach, reach), ylim=(0, 1.02))
    axes.legend(loc="upper left", fontsize="small")


def _draw_alerts(axes: Axes, recommendation: Recommendation) -> None:
    """Alerts so far, true and false, up to the cutoff."""
    best, workload = recommendation.best, recommendation.workload
    run = course(best.monitor, workload)
    true, false = run.true_alerts.mean(axis=0), run.false_alerts.mean(axis=0)
    labels, colours = ("true alerts", "false alerts"), (_TRUE, _FALSE)
    axes.stackplot(run.time, true, false, labels=labels, colors=colours, alpha=0.75)
    low, high = np.quantile(run.true_alerts + run.false_alerts, (0.1, 0.9), axis=0)
    axes.plot(run.time, low, color=_LIMIT, lw=0.8, ls=":", label="8 runs in 10")
    axes.plot(run.time, high, color=_LIMIT, lw=0.8, ls=":")
    axes.axhline(best.monitor.cutoff, color=_LIMIT, lw=1, ls="--", label="cutoff")
    most = 1.3 * max(best.monitor.cutoff, float((true + false)[-1]))
    axes.set(title="When the alerts of a run come", ylabel="alerts so far", xlim=(0, run.time[-1]))
    axes.set(xlabel="passes over the set" if workload.finite else "queries", ylim=(0, most))
    axes.legend(loc="upper left", fontsize="small", ncols=2)


def _draw_choices(axes: Axes, recommendation: Recommendation) -> None:
    """Precision and recall of the candidates, with the ranges of what margins may be."""
    best, present = recommendation.best, recommendation.present
    now = [] if present is None else [present]
    kinds: list[tuple[str, str, Sequence[Candidate]]] = [
        ("other settings", _OTHER, recommendation.candidates[1:]),
        ("as it is now", _FALSE, now),
        (f"recommended: {correction_in_words(best)}", _TRUE, [best]),
    ]
    for label, colour, candidates in kinds:
        width, alpha = (1.5, 1.0) if colour == _TRUE else (0.7, 0.7)
        spans = [[one.range(figure) for one in candidates] for figure in ("recall", "precision")]
        x, y = ([span.middle for span in each] for each in spans)
        xerr, yerr = (
            np.array([(span.middle - span.low, span.high - span.middle) for span in each]).T for each in spans
        )
        if candidates:
            axes.errorbar(
                x,
                y,
                xerr=xerr,
                yerr=yerr,
                color=colour,
                marker="o",
                ls="",
                label=label,
                lw=width,
                alpha=alpha,
            )
    axes.set(title="Settings, with the ranges of margins", xlabel="recall", ylabel="precision")
    axes.set(xlim=(-0.02, 1.04), ylim=(-0.22, 1.04), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.legend(loc="lower left", fontsize="small")
