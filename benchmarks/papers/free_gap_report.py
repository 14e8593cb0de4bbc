"""Figures, tables and claims on Ding et al. (2019, 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarks.datasets import COUNTS
from benchmarks.papers import drawing
from benchmarks.papers.drawing import Look
from benchmarks.papers.report import Claim, Report, Tables, Verdict, graded
from benchmarks.papers.table import Table, Value, shown

_DATA_LOOKS = {
    "t10i4d100k": Look(drawing.BLUE, "o"),
    "retail": Look(drawing.ORANGE, "s"),
    "kosarak": Look(drawing.GREEN, "^"),
    "zipf": Look(drawing.PURPLE, "D"),
}
_FAMILY_LINES = {"exponential": "-", "Laplace": ":"}
_FAMILY_LOOKS = {"Laplace": Look(drawing.ORANGE, "s"), "exponential": Look(drawing.BLUE, "o")}
_LEAST_SHOWN = -1.0


def draw(tables: Tables, directory: Path) -> None:
    """Draw all figures of this paper."""
    _draw_adaptive(tables["ding-adaptive"], directory / "ding-adaptive.svg")
    _draw_merges(tables["ding-merges"], directory / "ding-merges.svg")


def _draw_adaptive(table: Table, path: Path) -> None:
    titles = {
        "left": "share of epsilon left after k answers",
        "extra": "answers beyond k",
        "f_ratio": "F-measure / F-measure of SVT",
    }
    with drawing.figure(path, (1, 3), (9.6, 3.9)) as (drawn, panels):
        for axes, (measure, title) in zip(panels, titles.items(), strict=True):
            for data, look in _DATA_LOOKS.items():
                for family, line in _FAMILY_LINES.items():
                    part = table.where(data=data, noise=family)
                    drawn_as = Look(look.colour, look.marker, line)
                    drawing.measured(axes, drawn_as, part, "k", measure, f"{COUNTS[data]}, {family}")
            any_data = table.where(data="zipf", noise="exponential")
            k = any_data.numbers("k")
            most = {"left": any_data.numbers("ceiling"), "extra": k}
            if measure in most:
                axes.plot(k, most[measure], color=drawing.BLACK, label="most there can be")
            else:
                axes.axhline(1, color=drawing.GREY, linewidth=1)
            axes.set_title(title)
            axes.set_xlabel("k")
            axes.set_xticks([2, 8, 16, 24])
        panels[0].set_ylim(0, 0.48)
        panels[1].set_ylim(0, 25)
        panels[2].set_ylim(0.8, 1.6)
        drawing.legend_below(drawn, [panels[0]], 3)


def _draw_merges(table: Table, path: Path) -> None:
    with drawing.figure(path, (2, 4), (9.6, 5.2), sharex=True, sharey=True) as (drawn, panels):
        for row, selection in enumerate(("SVT", "top-k")):
            for column, data in enumerate(COUNTS):
                axes = panels[4 * row + column]
                for family, look in _FAMILY_LOOKS.items():
                    part = table.where(data=data, selection=selection, noise=family)
                    k = part.numbers("k")
                    axes.plot(k, part.numbers("theory"), color=look.colour, label=f"{family}, theory")
                    low = [max(value, _LEAST_SHOWN) for value in part.numbers("reduction")]
                    axes.errorbar(
                        k,
                        low,
                        yerr=[2 * error for error in part.numbers("reduction_se")],
                        color=look.colour,
                        marker=look.marker,
                        linestyle=":",
                        elinewidth=0.9,
                        label=f"{family}, all answers",
                    )
                    if selection == "SVT":
                        axes.plot(
                            k,
                            part.numbers("clear"),
                            color=look.colour,
                            marker=look.marker,
                            markerfacecolor="white",
                            linestyle="none",
                            label=f"{family}, clear positives",
                        )
                axes.axhline(0, color=drawing.GREY, linewidth=1)
                drawing.log_axis(axes, [2, 5, 10, 25, 50, 100])
                axes.set_ylim(_LEAST_SHOWN - 0.05, 0.8)
                if row == 0:
                    axes.set_title(COUNTS[data])
                else:
                    axes.set_xlabel("k")
            panels[4 * row].set_ylabel(f"{selection}: error taken away")
        drawing.legend_below(drawn, [panels[0]], 3)


def _cells(table: Table) -> Iterator[tuple[Value, Value]]:
    return product(COUNTS, table.distinct("k"))


def _left(tables: Tables) -> tuple[Verdict, str]:
    part = tables["ding-adaptive"].where(k=24, noise="exponential")
    left = {str(row["data"]): float(row["left"]) for row in part.rows}
    text = ", ".join(f"{COUNTS[data]} {100 * share:.1f} %" for data, share in left.items())
    return graded(*(share >= 0.37 for share in left.values())), (
        f"k = 24, exponential: {text}; at most {100 * part.numbers('ceiling')[0]:.1f} % is possible."
    )


def _extra(tables: Tables) -> tuple[Verdict, str]:
    part = tables["ding-adaptive"].where(k=24)
    extra = {(str(row["data"]), str(row["noise"])): float(row["extra"]) for row in part.rows}
    text = ", ".join(
        f"{COUNTS[data]} {extra[data, 'Laplace']:.1f} / {extra[data, 'exponential']:.1f}" for data in COUNTS
    )
    return graded(max(extra.values()) >= 17, min(extra.values()) >= 17), (
        f"k = 24, Laplace / exponential: {text}."
    )


def _f_measure(tables: Tables) -> tuple[Verdict, str]:
    table = tables["ding-adaptive"].where(noise="Laplace")
    best, worst = (pick(table.rows, key=lambda row: float(row["f_ratio"])) for pick in (max, min))
    figures = [
        f"{shown(row, 'f_ratio', 2)} ({COUNTS[str(row['data'])]}, k = {row['k']})" for row in (best, worst)
    ]
    return graded(float(best["f_ratio"]) >= 1.45, float(worst["f_ratio"]) >= 1.3), (
        f"Laplace: from {figures[1]} to {figures[0]}."
    )


def _precision(tables: Tables) -> tuple[Verdict, str]:
    loss = {
        (str(row["data"]), row["k"]): float(row["svt_precision"]) - float(row["precision"])
        for row in tables["ding-adaptive"].where(noise="Laplace").rows
    }
    worst = max(loss, key=loss.__getitem__)
    small = sum(value <= 0.02 for value in loss.values())
    return graded(2 * small > len(loss), small == len(loss)), (
        f"Within 0.02 of SVT's in {small} of {len(loss)} cells; worst {-loss[worst]:+.3f} "
        f"({COUNTS[worst[0]]}, k = {worst[1]})."
    )


def _families(tables: Tables) -> tuple[Verdict, str]:
    table = tables["ding-adaptive"]
    extra = {
        noise: [table.number("extra", data=data, k=k, noise=noise) for data, k in _cells(table)]
        for noise in ("exponential", "Laplace")
    }
    gains = [ours - theirs for ours, theirs in zip(*extra.values(), strict=True)]
    return graded(min(gains) > -0.05), (
        f"Answers beyond k, exponential less Laplace: from {min(gains):+.2f} to {max(gains):+.2f}."
    )


def _grid(tables: Tables) -> tuple[Verdict, str]:
    table = tables["ding-adaptive"]
    errors = list[float]()
    for data, k in _cells(table):
        rows = [table.one(data=data, k=k, noise=noise) for noise in ("geometric", "exponential")]
        spread = math.hypot(*(float(row["left_se"]) for row in rows))
        errors.append(abs(float(rows[0]["left"]) - float(rows[1]["left"])) / spread if spread else 0.0)
    return graded(max(errors) < 4), (
        f"Share left after k, grids of 1 and 1/1000: at most {max(errors):.1f} standard errors apart "
        f"in {len(errors)} cells."
    )


def _merged(tables: Tables, noise: str, promised: float) -> tuple[Verdict, str]:
    table = tables["ding-merges"].where(selection="SVT", noise=noise)
    clear = table.one(data="t10i4d100k", k=25)
    worst = min(table.rows, key=lambda row: float(row["reduction"]))
    best = max(float(row["reduction"]) for row in table.rows)
    right = abs(float(clear["clear"]) - float(clear["theory"])) < 4 * float(clear["clear_se"])
    return graded(right, best >= promised, float(worst["reduction"]) > 0), (
        f"k = 25: theory {float(clear['theory']):.3f}, clear positives on T10I4D100K {shown(clear, 'clear')}; "
        f"all answers down to {shown(worst, 'reduction', 2)} ({COUNTS[str(worst['data'])]}, k = {worst['k']})."
    )


def _top_k(tables: Tables) -> tuple[Verdict, str]:
    table = tables["ding-merges"].where(selection="top-k")
    off = {
        (str(row["data"]), row["k"], row["noise"]): (float(row["reduction"]) - float(row["theory"]))
        / float(row["reduction_se"])
        for row in table.rows
    }
    right = sum(abs(value) < 4 for value in off.values())
    worst = min(table.rows, key=lambda row: float(row["reduction"]))
    return graded(2 * right > len(off), right == len(off)), (
        f"As the formula says (within four standard errors) in {right} of {len(off)} cells; worst "
        f"{shown(worst, 'reduction', 2)} where it "
        f"says {float(worst['theory']):.2f} ({COUNTS[str(worst['data'])]}, k = {worst['k']}, "
        f"{worst['noise']})."
    )


def _bound(tables: Tables) -> tuple[Verdict, str]:
    table = tables["ding-bounds"]
    tests, alerts, ours = (
        min(table.numbers("paper_all_tests")),
        min(table.numbers("paper_alerts")),
        min(table.where(noise="exponential").numbers("ours_alerts")),
    )
    return graded(tests >= 0.94, alerts >= 0.94), (
        f"Least coverage in a cell: {tests:.3f} over all tests, {alerts:.3f} over alerts; of our bound "
        f"{ours:.3f} over alerts."
    )


CLAIMS = (
    Claim(
        "Adaptive SVT has about 40 % of the budget left after k answers.",
        Verdict.IN_PART,
        _left,
    ),
    Claim(
        "It gives up to 20 more answers at k = 24.",
        Verdict.IN_PART,
        _extra,
    ),
    Claim(
        "Its F-measure is 1.5 times that of SVT.",
        Verdict.IN_PART,
        _f_measure,
    ),
    Claim(
        "It is as precise as SVT.",
        Verdict.IN_PART,
        _precision,
    ),
    Claim(
        "Exponential noise saves more than Laplace noise.",
        Verdict.CONFIRMED,
        _families,
    ),
    Claim(
        "Geometric noise does as well as exponential noise.",
        Verdict.CONFIRMED,
        _grid,
    ),
    Claim(
        "A gap merged with a measurement has up to 50 % less squared error (Laplace).",
        Verdict.IN_PART,
        lambda tables: _merged(tables, "Laplace", 0.5),
    ),
    Claim(
        "Up to 66 % less with exponential noise.",
        Verdict.IN_PART,
        lambda tables: _merged(tables, "exponential", 0.66),
    ),
    Claim(
        "Gaps of noisy top-k take away 1 - (1 + lambda k)/(k + lambda k) of the squared error.",
        Verdict.IN_PART,
        _top_k,
    ),
    Claim(
        "The gap gives a 95 % lower bound.",
        Verdict.IN_PART,
        _bound,
    ),
)

REPORT = Report(draw=draw, claims=CLAIMS)
