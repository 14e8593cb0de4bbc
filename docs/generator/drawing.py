"""Small SVG pictures whose bytes depend on what they show and on nothing else.

Colours are variables: alone, a picture follows the reader's system (light or dark); inside a page of the site it
follows the page. Text is text, in the reader's own font. Every picture has a title and a description for those who
cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
Colour = Literal["ink", "soft", "grid", "paper", "blue", "orange", "green", "purple"]

_LIGHT: Final = {
    "ink": "#1f2328",
    "soft": "#57606a",
    "grid": "#d8dee4",
    "paper": "#ffffff",
    "blue": "#0860ca",
    "orange": "#bc4c00",
    "green": "#1a7f37",
    "purple": "#8250df",
}
_DARK: Final = {
    "ink": "#e6edf3",
    "soft": "#a5adb6",
    "grid": "#444c56",
    "paper": "#1e2129",
    "blue": "#58a6ff",
    "orange": "#f0883e",
    "green": "#56d364",
    "purple": "#bc8cff",
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_FONTS: Final = "-apple-system,'Segoe UI',Roboto,'DejaVu Sans','Helvetica Neue',Arial,sans-serif"
_STYLE: Final = "\n".join(
    [
        f"svg.drawn{{{_variables(_LIGHT)}}}",
        f"@media (prefers-color-scheme:dark){{svg.drawn{{{_variables(_DARK)}}}}}",
        f"svg.drawn text{{font-family:{_FONTS}}}",
        *(
            f"svg.drawn .f-{name}{{fill:var(--{name})}}svg.drawn .s-{name}{{stroke:var(--{name})}}"
            for name in _LIGHT
        ),
    ]
)


@dataclass
class Drawing:
    """A picture under construction; coordinates are pixels, from the upper left.

    Parameters
    ----------
    width, height
        Size at which text has its natural height.
    title
        What is shown, in a few words.
    description
        What there is to see, in sentences.
    """

    width: int
    height: int
    title: str
    description: str
    _parts: list[str] = field(default_factory=list)

    def line(self, *points: Point, colour: Colour = "ink", width: float = 1.5, dash: str = "") -> None:
        """Draw a line through points."""
        text = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline points="{text}" fill="none" class="s-{colour}" stroke-width="{_number(width)}"'
            f' stroke-linejoin="round"{dashes}/>'
        )

    def arrow(
        self, start: Point, end: Point, *, colour: Colour = "ink", width: float = 1.5, both: bool = False
    ) -> None:
        """Draw an arrow that points at ``end``, or with ``both`` at either."""
        self.line(start, end, colour=colour, width=width)
        self._head(start, end, colour)
        if both:
            self._head(end, start, colour)

    def curve(
        self, start: Point, middle: Point, end: Point, *, colour: Colour = "ink", width: float = 1.5
    ) -> None:
        """Draw a bent arrow, pulled towards ``middle``."""
        path = f"M{_pair(start)} Q{_pair(middle)} {_pair(end)}"
        self._parts.append(
            f'<path d="{path}" fill="none" class="s-{colour}" stroke-width="{_number(width)}"/>'
        )
        self._head(middle, end, colour)

    def area(self, points: Iterable[Point], *, colour: Colour, opacity: float = 0.18) -> None:
        """Fill a polygon."""
        text = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(f'<polygon points="{text}" class="f-{colour}" fill-opacity="{opacity:g}"/>')

    def box(
        self,
        corner: Point,
        width: float,
        height: float,
        *,
        fill: Colour | None = None,
        stroke: Colour | None = None,
        opacity: float = 1,
        radius: float = 0,
    ) -> None:
        """Draw a rectangle."""
        x, y = corner
        classes = " ".join([f"f-{fill}" if fill else "", f"s-{stroke}" if stroke else ""]).strip()
        look = "" if fill else ' fill="none"'
        look += f' fill-opacity="{opacity:g}"' if fill and opacity < 1 else ""
        look += f' rx="{_number(radius)}"' if radius else ""
        look += ' stroke-width="1.5"' if stroke else ""
        self._parts.append(
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}" '
            f'class="{classes}"{look}/>'
        )

    def dot(self, at: Point, *, colour: Colour, radius: float = 3.5, hollow: bool = False) -> None:
        """Draw a dot or a ring."""
        look = f'class="f-paper s-{colour}" stroke-width="1.5"' if hollow else f'class="f-{colour}"'
        self._parts.append(
            f'<circle cx="{_number(at[0])}" cy="{_number(at[1])}" r="{_number(radius)}" {look}/>'
        )

    def triangle(self, at: Point, *, colour: Colour, size: float = 7) -> None:
        """Draw a triangle that points upwards."""
        x, y = at
        self.area(
            ((x - size, y + size * 0.8), (x + size, y + size * 0.8), (x, y - size)), colour=colour, opacity=1
        )

    def text(
        self,
        at: Point,
        words: str,
        *,
        colour: Colour = "ink",
        size: float = 13,
        anchor: Anchor = "start",
        bold: bool = False,
        turned: bool = False,
    ) -> None:
        """Write one line; ``at`` is on its base line, ``turned`` runs it upwards."""
        x, y = _number(at[0]), _number(at[1])
        turn = f' transform="rotate(-90 {x} {y})"' if turned else ""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" class="f-{colour}" font-size="{_number(size)}" text-anchor="{anchor}"'
            f"{weight}{turn}>"
            f"{escape(words)}</text>"
        )

    def svg(self) -> str:
        """Return the file."""
        key = "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawn" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" aria-labelledby="{key}-t {key}-d">'
        )
        words = [
            f'<title id="{key}-t">{escape(self.title)}</title>',
            f'<desc id="{key}-d">{escape(self.description)}</desc>',
        ]
        return "\n".join([head, *words, f"<style>\n{_STYLE}\n</style>", *self._parts, "</svg>"]) + "\n"

    def _head(self, start: Point, end: Point, colour: Colour, size: float = 7) -> None:
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        wings = [
            (end[0] - size * math.cos(angle + turn), end[1] - size * math.sin(angle + turn))
            for turn in (0.45, -0.45)
        ]
        self.area([end, *wings], colour=colour, opacity=1)


@dataclass(frozen=True)
class Axes:
    """A field of a drawing with scales: from numbers to pixels.

    Attributes
    ----------
    left, top, width, height
        Where it lies.
    x, y
        Least and largest number of either scale.
    log_x, log_y
        Whether a scale is logarithmic.
    """

    drawing: Drawing
    left: float
    top: float
    width: float
    height: float
    x: Point
    y: Point
    log_x: bool = False
    log_y: bool = False

    def at(self, x: float, y: float) -> Point:
        """Return the place of a pair of numbers."""
        across = _share(x, self.x, logarithmic=self.log_x)
        up = _share(y, self.y, logarithmic=self.log_y)
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def frame(
        self,
        *,
        x_ticks: Sequence[float] = (),
        y_ticks: Sequence[float] = (),
        x_label: str = "",
        y_label: str = "",
        x_text: Callable[[float], str] = "{:g}".format,
        y_text: Callable[[float], str] = "{:g}".format,
        room: float = 46,
    ) -> None:
        """Draw grid lines, numbers and labels; ``room`` is what the numbers at the left take up."""
        drawing, bottom = self.drawing, self.top + self.height
        for tick in y_ticks:
            _, y = self.at(self.x[0], tick)
            drawing.line((self.left, y), (self.left + self.width, y), colour="grid", width=1)
            drawing.text((self.left - 8, y + 4), y_text(tick), colour="soft", size=12, anchor="end")
        for tick in x_ticks:
            x, _ = self.at(tick, self.y[0])
            drawing.line((x, bottom), (x, bottom + 5), colour="soft", width=1)
            drawing.text((x, bottom + 19), x_text(tick), colour="soft", size=12, anchor="middle")
        drawing.line((self.left, bottom), (self.left + self.width, bottom), colour="soft", width=1)
        if x_label:
            drawing.text((self.left + self.width / 2, bottom + 40), x_label, anchor="middle")
        if y_label:
            drawing.text(
                (self.left - room, self.top + self.height / 2), y_label, anchor="middle", turned=True
            )

    def graph(
        self, xs: Iterable[float], ys: Iterable[float], *, colour: Colour, width: float = 2.2, dash: str = ""
    ) -> None:
        """Draw a line through pairs of numbers."""
        self.drawing.line(
            *(self.at(x, y) for x, y in zip(xs, ys, strict=True)), colour=colour, width=width, dash=dash
        )

    def band(
        self,
        xs: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
        *,
        colour: Colour,
        opacity: float = 0.18,
    ) -> None:
        """Fill what lies between two lines."""
        upper = [self.at(x, y) for x, y in zip(xs, high, strict=True)]
        lower = [self.at(x, y) for x, y in zip(xs, low, strict=True)]
        self.drawing.area([*upper, *reversed(lower)], colour=colour, opacity=opacity)


def _share(value: float, ends: Point, *, logarithmic: bool) -> float:
    low, high = ends
    if logarithmic:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _pair(point: Point) -> str:
    return f"{_number(point[0])},{_number(point[1])}"


def _number(value: float) -> str:
    """Return a coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 0.05 else "0"
