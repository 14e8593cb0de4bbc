"""Small pictures by Matplotlib whose bytes depend on what they show and on nothing else.

Colours become variables: alone, a picture follows the reader's system (light or dark); inside a page of the site it
follows the page. Text is text, in the reader's own font. Every picture has a title and a description for those who
cannot see it.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path

Point = tuple[float, float]

INK: Final = "#1f2328"
SOFT: Final = "#57606a"
GRID: Final = "#d8dee4"
PAPER: Final = "#ffffff"
BLUE: Final = "#0860ca"
ORANGE: Final = "#bc4c00"
GREEN: Final = "#1a7f37"
PURPLE: Final = "#8250df"
_NAMES: Final = {
    "ink": (INK, "#e6edf3"),
    "soft": (SOFT, "#a5adb6"),
    "grid": (GRID, "#444c56"),
    "paper": (PAPER, "#1e2129"),
    "blue": (BLUE, "#58a6ff"),
    "orange": (ORANGE, "#f0883e"),
    "green": (GREEN, "#56d364"),
    "purple": (PURPLE, "#bc8cff"),
}
"""Each colour in light and in dark."""

SHARES: Final[dict[str, Any]] = {
    "ylim": (0, 1),
    "yticks": (0, 0.25, 0.5, 0.75, 1),
    "yticklabels": ("0%", "25%", "50%", "75%", "100%"),
}
"""A scale of probabilities, as properties of a field."""

_LIGHT, _DARK = ("".join(f"--{name}:{pair[at]};" for name, pair in _NAMES.items()) for at in (0, 1))
_FONTS: Final = "-apple-system,'Segoe UI',Roboto,'DejaVu Sans','Helvetica Neue',Arial,sans-serif"
_STYLE: Final = f"""<style>
svg.drawn{{{_LIGHT}}}
@media (prefers-color-scheme:dark){{svg.drawn{{{_DARK}}}}}
svg.drawn text{{font-family:{_FONTS}}}
svg.drawn path{{stroke-linejoin:round}}
</style>"""


class Drawing(Figure):
    """A picture under construction; places on it are pixels, from the upper left.

    Args:
        width, height: Size at which text has its natural height.
        title: What is shown, in a few words.
        description: What there is to see, in sentences.
    """

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        super().__init__(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
        self._pixels = width, height
        self._words = title, description

    def field(self, left: float, top: float, width: float, height: float, **properties: Any) -> Axes:
        """Return axes for numbers, with lines across at each tick of y; ``properties`` are those of ``Axes.set``."""
        across, down = self._pixels
        place = (left / across, 1 - (top + height) / down, width / across, height / down)
        axes = self.add_axes(place, facecolor="none")
        axes.spines[["left", "top", "right"]].set_visible(False)
        axes.spines["bottom"].set(color=SOFT, linewidth=1)
        axes.set(**properties)
        axes.minorticks_off()
        axes.tick_params(labelsize=12, labelcolor=SOFT, color=SOFT, width=1, length=5)
        axes.tick_params("y", length=0, pad=8)
        axes.grid(axis="y", color=GRID, linewidth=1)
        axes.set_axisbelow(True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.labelpad = 8
            axis.label.set(color=INK, size=13)
        return axes

    def sheet(self) -> Axes:
        """Return axes whose numbers are pixels of the picture."""
        across, down = self._pixels
        axes = self.add_axes((0, 0, 1, 1), xlim=(0, across), ylim=(down, 0))
        axes.axis("off")
        return axes

    def svg(self) -> str:
        """Return the file."""
        title, description = self._words
        key = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
        for part in self.findobj(include_self=False):
            part.set_clip_on(False)
        file = io.StringIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
            self.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        # What Matplotlib would say of its own: names that other pictures have, too, and styles for the whole page.
        body = re.sub(r"<g id=\"[^\"]*\">", "<g>", file.getvalue().partition("</defs>\n")[2])
        body = re.sub(
            r"\d+\.\d{4,}", lambda match: f"{float(match[0]):.2f}", body
        )  # no words have so many digits
        body = re.sub(r"font-family: [^;]*; ", "", body)
        for name, (colour, _) in _NAMES.items():
            body = body.replace(colour, f"var(--{name})")
        width, height = self._pixels
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="drawn" '
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-labelledby="{key}-t {key}-d">\n<title id="{key}-t">{escape(title)}</title>\n'
            f'<desc id="{key}-d">{escape(description)}</desc>\n{_STYLE}\n{body}'
        )


def say(
    axes: Axes,
    at: Point,
    words: str,
    colour: str = INK,
    *,
    shift: Point = (0, 0),
    size: float = 13,
    **look: Any,
) -> None:
    """Write one line at a pair of numbers, shifted by pixels to the right and up."""
    axes.annotate(
        words, at, shift, textcoords="offset pixels", color=colour, size=size, annotation_clip=False, **look
    )


def arrow(axes: Axes, *points: Point, colour: str = INK) -> None:
    """Draw an arrow from the first to the last of two points, or of three, pulled towards the one between."""
    codes = [Path.MOVETO, Path.LINETO] if len(points) == 2 else [Path.MOVETO, Path.CURVE3, Path.CURVE3]
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 11, "linewidth": 1.5, "color": colour}
    axes.add_patch(FancyArrowPatch(path=Path(points, codes), fill=True, **look))
