"""Tables of measurements, kept as CSV: what is measured once is plotted, judged and written about from the file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

Value = str | int | float
Row = dict[str, Value]

ERROR = "_se"
"""Ending of the column that holds a measurement's standard error."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of named values, in the order in which they were measured."""

    name: str
    rows: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, of which every row has all."""
        return tuple(self.rows[0])

    def where(self, **wanted: Value) -> Table:
        """Return the rows that have these values."""
        return Table(
            self.name, tuple(row for row in self.rows if all(row[name] == v for name, v in wanted.items()))
        )

    def one(self, **wanted: Value) -> Row:
        """Return the only row that has these values."""
        rows = self.where(**wanted).rows
        if len(rows) != 1:
            raise LookupError(f"{self.name} has {len(rows)} rows with {wanted}, one was expected")
        return rows[0]

    def number(self, column: str, **wanted: Value) -> float:
        """Return the number in the only row that has these values."""
        return float(self.one(**wanted)[column])

    def distinct(self, column: str) -> list[Value]:
        """Return the values of a column, each once, in their order."""
        return list(dict.fromkeys(row[column] for row in self.rows))

    def numbers(self, column: str) -> list[float]:
        """Return a column of numbers."""
        return [float(row[column]) for row in self.rows]

    def write(self, directory: Path) -> None:
        """Write the table as `name`.csv."""
        with (directory / f"{self.name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows([_text(row[column]) for column in self.columns] for row in self.rows)


def read(directory: Path, name: str) -> Table:
    """Read the table `name`.csv."""
    with (directory / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return Table(
            name, tuple({key: _value(text) for key, text in row.items()} for row in csv.DictReader(file))
        )


def cell(**names: Value) -> Row:
    """Return the columns that name a row's measurements."""
    return names


def measured(name: str, samples: ArrayLike) -> Row:
    """Return the mean of independent samples and its standard error, as two columns; NaN samples do not count."""
    known = np.asarray(samples, dtype=float)
    known = known[~np.isnan(known)]
    mean = float(known.mean()) if len(known) else float("nan")
    error = float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else float("nan")
    return {name: mean, name + ERROR: error}


def middle(name: str, samples: ArrayLike) -> Row:
    """Return the median of independent samples and its standard error, from the order statistics around it."""
    ordered = np.sort(np.asarray(samples, dtype=float))
    size = len(ordered)
    reach = np.sqrt(size) / 2  # one standard deviation of the rank
    low, high = max(0, int(size / 2 - reach)), min(size - 1, int(size / 2 + reach))
    return {name: float(np.median(ordered)), name + ERROR: float(ordered[high] - ordered[low]) / 2}


def paired_ratio(name: str, numerator: ArrayLike, denominator: ArrayLike) -> Row:
    """Return mean over mean of samples that belong together, and its standard error by linearisation.

    NaN where the denominator is 0 throughout.
    """
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if not bottom.any():
        return {name: float("nan"), name + ERROR: float("nan")}
    value = float(top.mean() / bottom.mean())
    residual = (top - value * bottom) / bottom.mean()
    return {name: value, name + ERROR: float(residual.std(ddof=1) / np.sqrt(len(residual)))}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown: the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def shown(row: Row, column: str, digits: int = 3) -> str:
    """Return a measurement for the page, with its standard error where it has one."""
    number = float(row[column])
    error = row.get(column + ERROR, float("nan"))
    text = f"{number:.{digits}f}"
    return text if np.isnan(float(error)) else f"{text} ±{float(error):.{digits}f}"


def _text(value: Value) -> str:
    """Return five significant digits of a float; they outlast every standard error here."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
