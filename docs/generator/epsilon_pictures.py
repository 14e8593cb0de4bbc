"""The pictures of what-epsilon-buys.md: figures of the planner and of the definition itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from docs.generator.drawing import Axes, Colour, Drawing
from docs.generator.epsilon_figures import CUTOFFS, EPSILONS, believed, most_certain, sure_margin
from stream_svt.mechanisms import Exposure, sparse_vector

_PRIORS: Final = (0.5, 0.1, 0.01)
_COLOURS: Final[tuple[Colour, ...]] = ("blue", "green", "orange")


def _odds() -> str:
    drawing = Drawing(
        720,
        340,
        "How far a reader's belief can move",
        "The most that a reader, who believed with probability 50, 10 or 1 % that somebody is in the "
        "data, can believe it after everything that was published, by the epsilon of the dataset's limit.",
    )
    axes = Axes(drawing, 66, 24, 560, 250, (0, 4), (0, 1))
    axes.frame(
        x_ticks=range(5),
        y_ticks=(0, 0.25, 0.5, 0.75, 1),
        x_label="epsilon of the limit",
        y_label="belief afterwards, at most",
        y_text="{:.0%}".format,
    )
    steps = [step / 25 for step in range(101)]
    for prior, colour in zip(_PRIORS, _COLOURS, strict=True):
        beliefs = [most_certain(prior, epsilon) for epsilon in steps]
        axes.graph(steps, beliefs, colour=colour)
        end = axes.at(4, beliefs[-1])
        drawing.text((end[0] + 8, end[1] + 4), f"from {prior:.0%}", colour=colour, bold=True)
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
    axes = Axes(
        drawing,
        80,
        24,
        540,
        270,
        (float(EPSILONS[0]), float(EPSILONS[-1])),
        (1, 100_000),
        log_x=True,
        log_y=True,
    )
    axes.frame(
        x_ticks=(0.1, 0.3, 1, 3, 10),
        y_ticks=(1, 10, 100, 1000, 10_000, 100_000),
        x_label="epsilon of one run",
        y_label="distance, in units of sensitivity",
        y_text="{:,.0f}".format,
        room=66,
    )
    for cutoff, colour in zip(CUTOFFS, _COLOURS, strict=True):
        margins = [float(sure_margin(epsilon, cutoff)) for epsilon in EPSILONS]
        axes.graph(map(float, EPSILONS), margins, colour=colour)
        end = axes.at(float(EPSILONS[-1]), margins[-1])
        drawing.text(
            (end[0] + 8, end[1] + 4), f"{cutoff} alert{'s' if cutoff > 1 else ''}", colour=colour, bold=True
        )
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
    axes = Axes(drawing, 66, 24, 560, 270, (epsilons[0], epsilons[-1]), (0, 1), log_x=True)
    axes.frame(
        x_ticks=(0.1, 0.3, 1, 3, 10),
        y_ticks=(0, 0.25, 0.5, 0.75, 1),
        x_label="epsilon of the run",
        y_label="positives found",
        y_text="{:.0%}".format,
    )
    axes.band(epsilons, [one.low for one in found], [one.high for one in found], colour="blue")
    axes.graph(epsilons, [one.middle for one in found], colour="blue")
    drawing.text(axes.at(4.5, 0.78), "as believed", colour="blue", bold=True)
    drawing.text((axes.at(1, 0)[0] + 10, axes.at(1, 0.3)[1]), "if distances are otherwise", colour="soft")
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
    left, width = 30.0, 660.0
    drawing.text((left, 26), "A limit of 4: four runs", bold=True)
    for run in range(4):
        drawing.box(
            (left + run * width / 4, 38),
            width / 4,
            34,
            fill="green",
            stroke="green",
            opacity=0.14 + 0.2 * (run == 0),
        )
        drawing.text((left + (run + 0.5) * width / 4, 60), f"run {run + 1}: epsilon 1", anchor="middle")
    for start, end in (((left, 72), (left, 118)), ((left + width / 4, 72), (left + width, 118))):
        drawing.line(start, end, colour="soft", width=1, dash="3 3")
    at = left + threshold * width
    drawing.box((left, 118), threshold * width, 40, fill="orange", stroke="orange", opacity=0.3)
    drawing.text((left + threshold * width / 2, 143), "threshold", anchor="middle")
    drawing.text(
        (left + threshold * width / 2, 178),
        f"{threshold:.3f}, at its start",
        colour="orange",
        anchor="middle",
        size=12,
        bold=True,
    )
    for alert in range(10):
        drawing.box((at + alert * top * width, 118), top * width, 40, fill="blue", stroke="blue", opacity=0.2)
        drawing.text((at + (alert + 0.5) * top * width, 143), str(alert + 1), anchor="middle")
    drawing.text(
        (at + 5 * top * width, 178),
        f"ten alerts, {top:.3f} each, when they happen",
        colour="blue",
        anchor="middle",
        size=12,
        bold=True,
    )
    drawing.text((left, 212), "Queries that are not reported: nothing, however many.", colour="soft")
    return drawing.svg()


PICTURES: Final = {"belief": _odds, "detectable": _margins, "found": _found, "price": _price}
