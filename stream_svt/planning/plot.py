"""A recommendation as a picture: what is reported, when the budget is used, and what the other settings would do.

Needs the extra `plot` (matplotlib), which is loaded when a picture is wanted.
"""

from __future__ import annotations

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
    except ImportError:
        raise MisuseError(
            "a plot needs matplotlib, which is not installed: pip install 'stream-svt[plot]'"
        ) from None
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    margins, alerts, choices = figure.subplots(1, 3)
    _draw_margins(margins, recommendation)
    _draw_alerts(alerts, recommendation)
    _draw_choices(choices, recommendation)
    return figure


def _draw_margins(axes: Axes, recommendation: Recommendation) -> None:
    """Chance of a report by distance from the threshold, above where values are believed to lie."""
    from matplotlib.ticker import MaxNLocator

    workload, monitor = recommendation.workload, recommendation.best.monitor
    reach = 1.2 * max(float(np.quantile(workload.above, 0.9)), float(np.quantile(workload.below, 0.5)))
    distance = np.linspace(-reach, reach, 241)
    chances = report_chances(monitor, distance)
    low, middle, high = np.quantile(chances, (0.1, 0.5, 0.9), axis=0)
    axes.fill_between(distance, low, high, color=_LIMIT, alpha=0.15, lw=0, label="8 runs in 10")
    axes.plot(distance, middle, color=_LIMIT, label="half of the runs")
    bins = np.linspace(-reach, reach, 49)
    for values, colour, label in (
        (workload.above, _TRUE, "positives (no scale)"),
        (-workload.below, _FALSE, "negatives (no scale)"),
    ):
        counts, edges = np.histogram(values, bins)
        axes.stairs(
            0.45 * counts / max(counts.max(), 1), edges, fill=True, color=colour, alpha=0.45, label=label
        )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.axvline(0, color=_OTHER, lw=0.8)
    axes.set(title="What is reported", xlabel="distance from the threshold", ylabel="chance of a report")
    axes.set(xlim=(-reach, reach), ylim=(0, 1.02))
    axes.legend(loc="upper left", fontsize="small")


def _draw_alerts(axes: Axes, recommendation: Recommendation) -> None:
    """Alerts so far, true and false, up to the cutoff."""
    from matplotlib.ticker import MaxNLocator

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
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.legend(loc="upper left", fontsize="small", ncols=2)


def _draw_choices(axes: Axes, recommendation: Recommendation) -> None:
    """Precision and recall of the candidates, with the ranges of what margins may be."""
    best, present = recommendation.best, recommendation.present
    shown: list[tuple[Candidate, str, str]] = [
        (candidate, _OTHER, "other settings") for candidate in reversed(recommendation.candidates[1:])
    ]
    shown += [] if present is None else [(present, _FALSE, "as it is now")]
    shown.append((best, _TRUE, f"recommended: {correction_in_words(best)}"))
    labelled = set[str]()
    for candidate, colour, label in shown:
        precision, recall = map(candidate.range, ("precision", "recall"))
        axes.errorbar(
            recall.middle,
            precision.middle,
            xerr=[[recall.middle - recall.low], [recall.high - recall.middle]],
            yerr=[[precision.middle - precision.low], [precision.high - precision.middle]],
            color=colour,
            marker="o",
            lw=1.5 if candidate is best else 0.7,
            alpha=1 if candidate is best else 0.7,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.set(title="Settings, with the ranges of margins", xlabel="recall", ylabel="precision")
    axes.set(xlim=(-0.02, 1.04), ylim=(-0.22, 1.04), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.legend(loc="lower left", fontsize="small")
