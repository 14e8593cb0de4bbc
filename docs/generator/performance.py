"""The figures of performance.md and README, with their goals: docs/data/performance.json, and how to renew it.

    benchmarks/run NAME | .venv/bin/python -m docs.generator.performance

takes what a benchmark prints (lines ``NAME.figure VALUE``) into the file, and says which goals are missed. Figures of
other sizes than the benchmark's defaults are not taken. Then `docs/generate` writes the pages.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from docs.generator.markdown import day_of, number, table

DATA: Final = Path(__file__).parent.parent / "data" / "performance.json"
_COMPARE: Final[Mapping[str, tuple[str, Callable[[float, float], bool]]]] = {
    ">=": ("at least ", operator.ge),
    "<=": ("at most ", operator.le),
    "==": ("", operator.eq),
}


class Figure(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A figure of a benchmark.

    Attributes:
        what: What it says, for the page.
        goal: A comparison (>=, <= or ==) and a number; None for a figure that is only shown.
        value: None until it is measured; the page leaves it out.
        spread: Of the turns, in words.
        measured: The day.
    """

    what: str
    goal: tuple[str, float] | None = None
    value: float | None = None
    spread: str = ""
    measured: date | None = None

    @property
    def is_missed(self) -> bool:
        """Whether it was measured and misses its goal."""
        return self.goal is not None and self.value is not None and not self._meets(*self.goal, self.value)

    @property
    def wanted(self) -> str:
        """The goal in words."""
        return "" if self.goal is None else f"{_COMPARE[self.goal[0]][0]}{self.goal[1]:g}"

    @staticmethod
    def _meets(comparison: str, goal: float, value: float) -> bool:
        return _COMPARE[comparison][1](value, goal)


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """All figures, in the order of the page, and the machine that they were measured on."""

    machine: str
    figures: dict[str, Figure]


@cache
def document() -> Document:
    """Return what the file holds."""
    return msgspec.json.decode(DATA.read_bytes(), type=Document)


def value_of(name: str) -> float:
    """Return a measured figure; raises ValueError if it was not measured yet."""
    value = document().figures[name].value
    if value is None:
        raise ValueError(f"{name} was not measured yet")
    return value


def renewed(old: Document, lines: Iterable[str], day: date) -> tuple[Document, list[str]]:
    """Return the document with the figures that a benchmark printed, and what there is to say about them."""
    figures, said = dict(old.figures), []
    others: set[str] = set()
    for line in lines:
        name, _, text = line.strip().partition(" ")
        if name.endswith(":"):
            others.add(name[:-1])
            said.append(f"{name} {text}: its figures are not taken")
        if name.partition(".")[0] in others or name.endswith(":"):
            continue
        if (known := figures.get(name)) is None:
            said.append(
                f"{name} is not in {DATA.name}: add it with what it says and its goal, or leave it out"
            )
            continue
        figures[name] = now = msgspec.structs.replace(known, value=float(text), spread="", measured=day)
        said.append(f"{name} {number(float(text))}{f', not {now.wanted}' if now.is_missed else ''}")
    return Document(old.machine, figures), said


def encoded(content: Document) -> str:
    """Return the file's text, a figure a line."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(msgspec.to_builtins(figure))}"
        for name, figure in content.figures.items()
    ]
    return f'{{"machine": {json.dumps(content.machine)},\n "figures": {{\n' + ",\n".join(lines) + "\n }}\n"


def _rows() -> str:
    """Return a table of the figures that were measured."""
    rows = []
    for name, figure in document().figures.items():
        if figure.value is not None:
            spread = f" ({figure.spread})" if figure.spread else ""
            shown = f"**{number(figure.value)}**{spread}{': missed' if figure.is_missed else ''}"
            rows.append((f"`{name}`: {figure.what}", figure.wanted, shown))
    return table(["figure", "goal", "measured"], rows)


def _when() -> str:
    days = sorted({figure.measured for figure in document().figures.values() if figure.measured})
    first, last = day_of(days[0]), day_of(days[-1])
    when = f"on {first}" if first == last else f"between {first} and {last}"
    return f"Measured {when} on {document().machine}."


BLOCKS: Final = {"figures": _rows, "when": _when}


if __name__ == "__main__":
    content, words = renewed(document(), sys.stdin, datetime.now(UTC).date())
    DATA.write_text(encoded(content), encoding="utf-8")
    sys.stdout.write("".join(f"{word}\n" for word in words))
