"""Figures, tables and claims on Durfee (2023)."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from benchmarks.papers import drawing
from benchmarks.papers.drawing import Look
from benchmarks.papers.report import Claim, Report, Tables, Verdict, graded
from benchmarks.papers.table import Table
from benchmarks.papers.unbounded_quantile import SOURCES

_QUANTILE_LOOKS = {
    "unbounded, Laplace": Look(drawing.ORANGE, "s"),
    "unbounded, Gumbel": Look(drawing.GREEN, "^"),
    "unbounded, exponential": Look(drawing.BLUE, "o"),
    "intervals, tight": Look(drawing.GREY, "x", ":"),
    "bounded, tight": Look(drawing.PURPLE, "D", "--"),
    "bounded, 100 times": Look(drawing.VERMILION, "v", "--"),
}
_SUM_LOOKS = {
    "unbounded, exponential": Look(drawing.BLUE, "o"),
    "bounded, tight": Look(drawing.PURPLE, "D", "--"),
    "bounded, 10 times": Look(drawing.GREEN, "^", "--"),
    "bounded, 100 times": Look(drawing.VERMILION, "v", "--"),
    "the bound itself, tight": Look(drawing.GREY, "x", ":"),
}


def draw(tables: Tables, directory: Path) -> None:
    """Draw all figures of this paper."""
    quantiles, sums = tables["durfee-quantiles"], tables["durfee-sums"]
    _draw(quantiles, "median absolute error", _QUANTILE_LOOKS, directory / "durfee-quantiles.svg")
    _draw(sums, "median relative error", _SUM_LOOKS, directory / "durfee-sums.svg")


def _draw(table: Table, title: str, looks: dict[str, Look], path: Path) -> None:
    """Draw a panel for each source; levels are spaced evenly, for they crowd towards 1."""
    levels = [f"{level:g}".lstrip("0") for level in table.distinct("level")]
    with drawing.figure(path, (1, 4), (9.6, 3.6)) as (drawn, panels):
        for axes, (name, source) in zip(panels, SOURCES.items(), strict=True):
            for method, look in looks.items():
                part = table.where(data=name, method=method)
                drawing.curve(
                    axes,
                    look,
                    range(len(levels)),
                    part.numbers("error"),
                    part.numbers("error_se"),
                    method,
                )
            # Some quantiles of whole numbers are met without any error.
            if min(table.where(data=name).numbers("error")) < 0.001:
                axes.set_yscale("symlog", linthresh=0.1)
            else:
                axes.set_yscale("log")
            axes.minorticks_off()
            axes.set_xticks(range(len(levels)), levels)
            axes.set_title(source.title)
            axes.set_xlabel("quantile")
        panels[0].set_ylabel(title)
        drawing.legend_below(drawn, [panels[0]], 3)


def _errors(
    table: Table, method: str, levels: tuple[float, ...], measure: str = "error"
) -> dict[tuple[str, float], float]:
    return {
        (name, level): table.number(measure, data=name, method=method, level=level)
        for name, level in product(SOURCES, levels)
    }


def _no_bound(tables: Tables) -> tuple[Verdict, str]:
    table = tables["durfee-quantiles"]
    ours = _errors(table, "unbounded, exponential", (0.99, 0.999))
    loose = _errors(table, "bounded, 100 times", (0.99, 0.999))
    ratios = [loose[cell] / ours[cell] for cell in ours]
    return graded(min(ratios) > 1), (
        f"Levels 0.99 and 0.999: the peer's median error with a bound 100 times too large is {min(ratios):,.0f} to "
        f"{max(ratios):,.0f} times the unbounded one's, which no bound enters."
    )


def _inner(tables: Tables) -> tuple[Verdict, str]:
    table = tables["durfee-quantiles"]
    inner = (0.1, 0.25, 0.5, 0.75)
    ours = _errors(table, "unbounded, exponential", inner, "mean_error")
    counts = dict[str, int]()
    for method in ("intervals, tight", "bounded, tight"):
        peer = _errors(table, method, inner, "mean_error")
        counts[method] = sum(ours[cell] < peer[cell] for cell in ours if cell[0] in {"baskets", "sales"})
    return graded(counts["intervals, tight"] >= 4, counts["bounded, tight"] >= 4), (
        f"Real data, levels 0.1 to 0.75: smaller mean error in {counts['intervals, tight']} of 8 cells against "
        "the mechanism on "
        f"intervals, in {counts['bounded, tight']} of 8 against the one on whole numbers."
    )


def _highest(tables: Tables) -> tuple[Verdict, str]:
    table = tables["durfee-quantiles"]
    ours = _errors(table, "unbounded, exponential", (0.99, 0.999))
    tight = _errors(table, "bounded, tight", (0.99, 0.999))
    better = {cell for cell in ours if ours[cell] < tight[cell]}
    heavy = {cell for cell in ours if cell[0] in {"sales", "lognormal"}}
    text = "; ".join(
        f"{source.title} {ours[name, 0.99]:.3g} against {tight[name, 0.99]:.3g}"
        for name, source in SOURCES.items()
    )
    return graded(
        heavy <= better, better == set(ours)
    ), f"Median error at 0.99, the peer with a tight bound: {text}."


def _clipped(tables: Tables) -> tuple[Verdict, str]:
    table = tables["durfee-sums"]
    figures, better = list[str](), dict[str, bool]()
    for name, source in SOURCES.items():
        ours, tight, loose = (
            min(table.where(data=name, method=method).numbers("error"))
            for method in ("unbounded, exponential", "bounded, tight", "bounded, 10 times")
        )
        better[name] = ours < tight / 1.25
        figures.append(f"{source.title} {ours:.2g} against {tight:.2g} and {loose:.2g}")
    return graded(better["sales"] and better["lognormal"], all(better.values())), (
        "Relative error at each method's best level, the peer with a tight bound and one 10 times as large: "
        f"{'; '.join(figures)}."
    )


def _noises(tables: Tables) -> tuple[Verdict, str]:
    table = tables["durfee-quantiles"]
    means, errors = dict[str, float](), dict[str, float]()
    for family in ("Laplace", "Gumbel", "exponential"):
        part = table.where(method=f"unbounded, {family}")
        means[family] = sum(part.numbers("rank_error")) / len(part.rows)
        errors[family] = sum(error**2 for error in part.numbers("rank_error_se")) ** 0.5 / len(part.rows)
    text = ", ".join(f"{family} {means[family]:.2f} ±{errors[family]:.2f}" for family in means)
    spread = 2 * max(errors.values())
    return graded(means["exponential"] <= min(means["Laplace"], means["Gumbel"]) + spread), (
        f"Records between answer and level, mean over all cells: {text}."
    )


CLAIMS = (
    Claim(
        "No upper bound on the data is needed.",
        Verdict.CONFIRMED,
        _no_bound,
    ),
    Claim(
        "The highest quantiles are estimated far better than by the exponential mechanism.",
        Verdict.IN_PART,
        _highest,
    ),
    Claim(
        "Inner quantiles are often better too, on data that are not synthetic.",
        Verdict.IN_PART,
        _inner,
    ),
    Claim(
        "Sums clipped at the estimated quantile are far more accurate.",
        Verdict.IN_PART,
        _clipped,
    ),
    Claim(
        "*Ours:* exponential noise in AboveThreshold is no less accurate than Laplace or Gumbel noise.",
        Verdict.CONFIRMED,
        _noises,
    ),
)

REPORT = Report(draw=draw, claims=CLAIMS)
