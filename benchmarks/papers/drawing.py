"""How all figures look: one palette that colour-blind readers can tell apart, small SVG files, no surprises.

Text stays text and is set in the reader's own sans-serif font; the identifiers inside a file depend on a fixed
salt and no date is written, so that the same measurements give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.papers.table import ERROR, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "reproduction",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "xtick.minor.visible": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.2,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker and line of one method, the same in every panel."""

    colour: str
    marker: str = "o"
    line: str = "-"


@contextmanager
def figure(
    path: Path,
    grid: tuple[int, int],
    size: tuple[float, float],
    *,
    sharex: bool = False,
    sharey: bool | Literal["row"] = False,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Draw rows times columns of panels and save the figure at `path` as SVG."""
    import matplotlib as mpl  # not with the module: most that import it draw nothing, and it takes a second

    mpl.use("svg")  # no screen is needed
    import matplotlib.pyplot as plt

    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # whose names are literals
        drawn, axes = plt.subplots(
            *grid, figsize=size, squeeze=False, layout="constrained", sharex=sharex, sharey=sharey
        )
        try:
            yield drawn, list(axes.flat)
            _save(drawn, path)
        finally:
            plt.close(drawn)


def save(path: Path, draw: Callable[[], Figure]) -> None:
    """Save a figure that a function draws at `path` as SVG, in the same style."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # whose names are literals
        _save(draw(), path)


def _save(drawn: Figure, path: Path) -> None:
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(_rounded(text.getvalue()), encoding="utf-8")


def curve(
    axes: Axes,
    look: Look,
    x: Sequence[float],
    y: Sequence[float],
    errors: Sequence[float] | None = None,
    label: str | None = None,
) -> None:
    """Draw a line with markers; error bars are two standard errors to either side."""
    axes.errorbar(
        x,
        y,
        yerr=None if errors is None else [2 * error for error in errors],
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        markerfacecolor="white" if look.line != "-" else look.colour,
        elinewidth=0.9,
        label=label,
    )


def measured(axes: Axes, look: Look, part: Table, x: str, y: str, label: str) -> None:
    """Draw a measurement of a table over one of its columns, with its standard errors."""
    curve(axes, look, part.numbers(x), part.numbers(y), part.numbers(y + ERROR), label)


def log_axis(axes: Axes, ticks: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def legend_below(drawn: Figure, panels: Sequence[Axes], columns: int) -> None:
    """Put one legend for all panels under the figure, made of what these panels show."""
    shown = dict[str, Any]()
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    drawn.legend(
        shown.values(),
        shown.keys(),
        loc="outside lower center",
        ncols=columns,
        handlelength=2.6,
        columnspacing=1.4,
    )


def _rounded(svg: str) -> str:
    """Return the file with coordinates to a hundredth of a point and no blanks at the ends of lines."""
    short = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), svg)
    return "\n".join(line.strip() for line in short.splitlines()) + "\n"
