"""The pictures of what-epsilon-buys.md: figures of the planner and of the definition itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from matplotlib.patches import Rectangle

from docs.generator.drawing import BLUE, GREEN, ORANGE, SHARES, SOFT, Drawing, Point, say
from docs.generator.epsilon_figures import CUTOFFS, EPSILONS, believed, most_certain, sure_margin
from stream_svt.mechanisms import Exposure, sparse_vector

_PRIORS: Final = (0.5, 0.1, 0.01)
_COLOURS: Final = (BLUE, GREEN, ORANGE)
_EPSILON: Final[dict[str, Any]] = {
    "xscale": "log",
    "xlim": (0.1, 10),
    "xticks": (0.1, 0.3, 1, 3, 10),
    "xticklabels": ("0.1", "0.3", "1", "3", "10"),
}


def _odds() -> str:
    drawing = Drawing(
        720,
        340,
        "How far a reader's belief can move",
        "The most that a reader, who believed with probability 50, 10 or 1 % that somebody is in the "
        "data, can believe it after everything that was published, by the epsilon of the dataset's limit.",
    )
    labels = {"xlabel": "epsilon of the limit", "ylabel": "belief afterwards, at most"}
    axes = drawing.field(66, 24, 560, 250, xlim=(0, 4), xticks=range(5), **labels, **SHARES)
    steps = [step / 25 for step in range(101)]
    for prior, colour in zip(_PRIORS, _COLOURS, strict=True):
        beliefs = [most_certain(prior, epsilon) for epsilon in steps]
        axes.plot(steps, beliefs, color=colour, linewidth=2.2)
        say(axes, (4, beliefs[-1]), f"from {prior:.0%}", colour, shift=(8, -4), weight="bold")
    return drawing.svg()


def _margins() -> str:
    drawing = Drawing(
        720,
        360,
        "How far above the threshold a value is reported for sure",
        "The distance above the threshold at which a single test reports 19 times in 20, by the epsilon "
        "of a run, for runs of 1, 10 and 100 alerts over a million queries. Twice the epsilon halves the "
        "distance; ten times the alerts make it three to seven times as long.",
    )
    ticks = [10**power for power in range(6)]
    distances: dict[str, Any] = {"yscale": "log", "ylim": (1, 100_000), "yticks": ticks}
    labels = {"xlabel": "epsilon of one run", "ylabel": "distance, in units of sensitivity"}
    axes = drawing.field(
        80, 24, 540, 270, **distances, yticklabels=map("{:,}".format, ticks), **labels, **_EPSILON
    )
    for cutoff, colour in zip(CUTOFFS, _COLOURS, strict=True):
        margins = [float(sure_margin(epsilon, cutoff)) for epsilon in EPSILONS]
        axes.plot(list(map(float, EPSILONS)), margins, color=colour, linewidth=2.2)
        words = f"{cutoff} alert{'s' if cutoff > 1 else ''}"
        say(axes, (float(EPSILONS[-1]), margins[-1]), words, colour, shift=(8, -4), weight="bold")
    return drawing.svg()


def _found() -> str:
    epsilons = [0.1 * 10 ** (step / 8) for step in range(17)]
    found = [believed(epsilon) for epsilon in epsilons]
    drawing = Drawing(
        720,
        360,
        "What a run finds, by its epsilon",
        "The share of twenty positives among a million queries that a run of twenty alerts reports, if "
        "positives lie 800 above the threshold and the others 600 below it. The band is what happens if "
        "the distances are up to twice as small or large, or otherwise spread.",
    )
    labels = {"xlabel": "epsilon of the run", "ylabel": "positives found"}
    axes = drawing.field(66, 24, 560, 270, **labels, **_EPSILON, **SHARES)
    low, high = [one.low for one in found], [one.high for one in found]
    axes.fill_between(epsilons, low, high, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(epsilons, [one.middle for one in found], color=BLUE, linewidth=2.2)
    say(axes, (4.5, 0.78), "as believed", BLUE, weight="bold")
    say(axes, (1, 0.3), "if distances are otherwise", SOFT, shift=(10, 0))
    return drawing.svg()


def _price() -> str:
    svt = sparse_vector(
        epsilon=10**9,
        cutoff=10,
        monotonic=True,
        correction=Exposure(expected_queries=10**6, false_alerts=Fraction(1), attempts=1),
    )
    threshold, top = svt.threshold_charge / 10**9, svt.branches[0].charge / 10**9
    drawing = Drawing(
        720,
        230,
        "What the epsilon of a dataset is spent on",
        f"A limit of 4 pays for four runs of epsilon 1. One run: the threshold costs {threshold:.3f}, "
        f"once, and each of ten alerts {top:.3f}. Queries that are not reported cost nothing.",
    )
    sheet, left, width = drawing.sheet(), 30.0, 660.0

    def box(start: float, share: float, row: Point, words: str, colour: str, opacity: float) -> None:
        corner, size = (left + start * width, row[0]), (share * width, row[1])
        sheet.add_patch(Rectangle(corner, *size, facecolor=colour, alpha=opacity))
        sheet.add_patch(Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=1.5))
        say(sheet, (corner[0] + size[0] / 2, row[0] + row[1] / 2), words, shift=(0, -5), ha="center")

    say(sheet, (left, 26), "A limit of 4: four runs", weight="bold")
    for run in range(4):
        box(run / 4, 1 / 4, (38, 34), f"run {run + 1}: epsilon 1", GREEN, 0.14 + 0.2 * (run == 0))
    sheet.plot((left, left), (72, 118), color=SOFT, linewidth=1, linestyle="--")
    sheet.plot((left + width / 4, left + width), (72, 118), color=SOFT, linewidth=1, linestyle="--")
    box(0, threshold, (118, 40), "threshold", ORANGE, 0.3)
    for alert in range(10):
        box(threshold + alert * top, top, (118, 40), str(alert + 1), BLUE, 0.2)
    for start, share, words, colour in (
        (0.0, threshold, f"{threshold:.3f}, at its start", ORANGE),
        (threshold, 10 * top, f"ten alerts, {top:.3f} each, when they happen", BLUE),
    ):
        middle = left + (start + share / 2) * width
        say(sheet, (middle, 178), words, colour, size=12, ha="center", weight="bold")
    say(sheet, (left, 212), "Queries that are not reported: nothing, however many.", SOFT)
    return drawing.svg()


PICTURES: Final = {"belief": _odds, "detectable": _margins, "found": _found, "price": _price}
