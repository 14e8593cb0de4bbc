"""What a columnar record means, row by row: the rules of `stream_svt.queries.columnar` in Python objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import pyarrow as pa

from stream_svt.columns import decimals
from stream_svt.queries.columnar import _ERRORS, MAX_TEXT_IN_ALL, MalformedColumns, _column, _parts
from stream_svt.queries.reasons import MAX_TEXT, Reason

_Arrow: TypeAlias = Any
_IS_NUMBER = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


@dataclass
class Rows:
    """The content of a record, and why it is rejected."""

    reason: Reason | None = None
    ids: list[str | None] = field(default_factory=list)
    series: list[str | None] = field(default_factory=list)
    sets: list[str | None] = field(default_factory=list)
    threshold: dict[int, Fraction] = field(default_factory=dict)
    monitor: dict[int, str] = field(default_factory=dict)
    markers: dict[int, str] = field(default_factory=dict)
    values: list[tuple[int, int]] = field(default_factory=list)


def read(message: bytes, monitors: Collection[str]) -> Rows:
    """Return the rows of a record."""
    found = Rows()
    try:
        _fill(found, _parts(message), monitors)
    except MalformedColumns as refused:
        return Rows(refused.args[0])
    return found


def _fill(found: Rows, parts: Sequence[_Arrow], monitors: Collection[str]) -> None:
    rows = sum(part.num_rows for part in parts)
    closed = _gather(parts, "closed", Reason.BAD_SET, pa.types.is_boolean)
    found.ids = _texts(parts, "id", Reason.BAD_ID)
    if rows and True not in closed and found.ids.count(None) == rows:
        raise MalformedColumns(Reason.MISSING_ID)
    found.series = _texts(parts, "series", Reason.BAD_SERIES)
    found.sets = _texts(parts, "set", Reason.BAD_SET)
    names = _texts(parts, "monitor", Reason.UNKNOWN_MONITOR)
    given = (found.ids, found.series, found.sets, names)
    if sum(len(text) for texts in given for text in texts if text) > MAX_TEXT_IN_ALL:
        raise MalformedColumns(Reason.TOO_LARGE)
    for row, name in enumerate(names):
        if closed[row]:
            if (set_id := found.sets[row]) is None:
                raise MalformedColumns(Reason.BAD_SET)
            found.markers[row] = set_id
            found.series[row] = None
        elif found.ids[row] is None:
            raise MalformedColumns(Reason.MISSING_ID)
        elif name is not None:
            if name not in monitors:
                raise MalformedColumns(Reason.UNKNOWN_MONITOR)
            found.monitor[row] = name
    limits = [
        None if limit is None else _limit(limit)
        for limit in _gather(parts, "threshold", Reason.BAD_THRESHOLD, *_IS_NUMBER)
    ]
    found.threshold = {
        row: limit for row, limit in enumerate(limits) if limit is not None and not closed[row]
    }
    found.values = [value for part in parts for value in _values(part)]
    for row in found.markers:
        found.values[row] = (0, 0)


def _gather(
    parts: Sequence[_Arrow], name: str, reason: Reason, *kinds: Callable[[_Arrow], bool]
) -> list[Any]:
    gathered: list[Any] = []
    for part in parts:
        try:
            column = _column(part, name)
            if column is None:
                gathered += [None] * part.num_rows
                continue
            column.validate(full=True)
            gathered += _rows(column, reason, kinds)
        except _ERRORS as error:
            raise MalformedColumns(Reason.NOT_ARROW) from error
    return gathered


def _rows(column: _Arrow, reason: Reason, kinds: Collection[Callable[[_Arrow], bool]]) -> Sequence[Any]:
    if pa.types.is_dictionary(column.type):
        entries = _rows(column.dictionary, reason, kinds)
        return [None if index is None else entries[index] for index in column.indices.to_pylist()]
    if not any(is_kind(column.type) for is_kind in kinds):
        raise MalformedColumns(reason)
    return [*column.to_pylist()]


def _texts(parts: Sequence[_Arrow], name: str, reason: Reason) -> list[str | None]:
    texts = _gather(parts, name, reason, pa.types.is_string, pa.types.is_large_string)
    if any(text is not None and not 0 < len(text) <= MAX_TEXT for text in texts):
        raise MalformedColumns(reason)
    return texts


def _limit(value: float | Decimal) -> Fraction:
    if isinstance(value, float):
        is_number = math.isfinite(value) and (not value or abs(value) > 1e-300)
        found = Fraction(value) if is_number else None
    else:
        found = decimals.threshold(str(value).encode())
    if found is None:
        raise MalformedColumns(Reason.BAD_THRESHOLD)
    return found


def _values(part: _Arrow) -> list[tuple[int, int]]:
    nothing = [decimals.NO_NUMBER] * part.num_rows
    column = _column(part, "value")
    try:
        if column is None or column.validate() is not None:
            return nothing
        codes: Sequence[int | None] = range(len(column))
        if pa.types.is_dictionary(column.type):
            codes, column = column.indices.to_pylist(), column.dictionary
        if not any(is_kind(column.type) for is_kind in _IS_NUMBER):
            return nothing
        entries = [*map(_split, column.to_pylist())]
    except _ERRORS:
        return nothing
    known = range(len(entries))
    return [entries[code] if code in known else decimals.NO_NUMBER for code in codes]


def _split(value: float | Decimal | None) -> tuple[int, int]:
    """Return the parts of a number."""
    if value is None:
        return decimals.NO_NUMBER
    number = Decimal(value if isinstance(value, int | Decimal) else float(value))
    return decimals.NO_NUMBER if number.is_nan() else decimals.split(number)
