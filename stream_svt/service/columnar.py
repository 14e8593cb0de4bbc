"""Columnar query records: an Arrow IPC stream whose rows are queries of one dataset.

Needs pyarrow (extra `arrow`). Columns carry the names of the JSON fields: `id` and `value`, and `series`,
`set`, `closed`, `threshold` and `monitor` where used. One record is accepted or refused as a whole.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_svt.service import exact

if TYPE_CHECKING:
    from stream_svt.monitor.batch import QueryBatch

_Arrow: TypeAlias = Any  # pyarrow is optional and has no types

MAX_ROWS: Final = 1 << 20
"""Rows of one record: a row number has to fit the identity that keys a test's noise."""


class Refused(Exception):
    """A columnar record that is malformed; ``reason`` is the word that is counted."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@cache
def available() -> bool:
    """Tell whether columnar records can be read here."""
    return importlib.util.find_spec("pyarrow") is not None


def read(message: bytes, batch: QueryBatch, monitors: Collection[str], max_text: int) -> None:
    """Fill the columns of an empty batch that come from the message itself.

    Raises
    ------
    Refused
        The message is malformed; its values play no part in that.
    """
    table = _table(message)
    rows = table.num_rows
    ids = _text(table, "id", "bad-id", max_text)
    series = _text(table, "series", "bad-series", max_text)
    sets = _text(table, "set", "bad-set", max_text)
    names = _text(table, "monitor", "unknown-monitor", max_text)
    closed = _closed(table)
    for row in range(rows):
        if closed[row]:
            set_id = sets[row]
            if set_id is None:
                raise Refused("bad-set")
            batch.markers[row] = set_id
            series[row] = None
        elif ids[row] is None:
            raise Refused("missing-id")
        else:
            name = names[row]
            if name is not None:
                if name not in monitors:
                    raise Refused("unknown-monitor")
                batch.monitor[row] = name
    batch.threshold = {row: limit for row, limit in _thresholds(table).items() if not closed[row]}
    batch.whole, batch.other = _values(table)
    for row in batch.markers:
        batch.whole[row] = 0
        batch.other.pop(row, None)
    batch.series = series
    batch.set_id = sets if sets.count(None) != rows else None
    batch.query_id = [name or "" for name in ids]


def _table(message: bytes) -> _Arrow:
    import pyarrow as pa

    batches = []
    rows = 0
    try:
        with pa.ipc.open_stream(message) as reader:
            for part in reader:
                part.validate(full=True)
                rows += part.num_rows
                if rows > MAX_ROWS:
                    raise Refused("too-large")
                batches.append(part)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise Refused("not-arrow") from error


def _column(table: _Arrow, name: str) -> _Arrow:
    """Return a column without dictionary encoding; None where it is absent."""
    import pyarrow as pa

    at = table.schema.get_all_field_indices(name)
    if not at:
        return None
    column = table.column(at[0])
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _text(table: _Arrow, name: str, reason: str, max_text: int) -> list[str | None]:
    import pyarrow as pa

    column = _column(table, name)
    if column is None or pa.types.is_null(column.type):
        return [None] * table.num_rows
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise Refused(reason)
    try:
        texts: list[str | None] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise Refused("invalid-utf8") from error
    if any(text is not None and not 0 < len(text) <= max_text for text in texts):
        raise Refused(reason)
    return texts


def _closed(table: _Arrow) -> list[bool]:
    import pyarrow as pa

    column = _column(table, "closed")
    if column is None or pa.types.is_null(column.type):
        return [False] * table.num_rows
    if not pa.types.is_boolean(column.type):
        raise Refused("bad-set")
    return [bool(flag) for flag in column.to_pylist()]


def _thresholds(table: _Arrow) -> dict[int, Fraction]:
    column = _column(table, "threshold")
    if column is None:
        return {}
    whole, other = _numbers(column)
    absent = {row for row, valid in enumerate(column.is_valid().to_pylist()) if not valid}
    limits: dict[int, Fraction] = {}
    for row in range(len(whole)):
        if row in absent:
            continue
        limit = other.get(row, int(whole[row]))
        if limit is None:
            raise Refused("bad-threshold")
        limits[row] = Fraction(limit)
    return limits


def _values(table: _Arrow) -> tuple[NDArray[np.int64], dict[int, Decimal | None]]:
    column = _column(table, "value")
    if column is None:
        return np.zeros(table.num_rows, np.int64), dict.fromkeys(range(table.num_rows))
    return _numbers(column)


def _numbers(column: _Arrow) -> tuple[NDArray[np.int64], dict[int, Decimal | None]]:
    """Return a column's whole numbers, and the others, or None for what is no finite number, by row."""
    import pyarrow as pa

    rows = len(column)
    other: dict[int, Decimal | None] = {}
    if pa.types.is_signed_integer(column.type) and not column.null_count:
        whole: NDArray[np.int64] = column.to_numpy().astype(np.int64)
        large = np.flatnonzero((whole >= exact.WHOLE_LIMIT) | (whole <= -exact.WHOLE_LIMIT)).tolist()
        for row in large:
            other[row] = Decimal(int(whole[row]))
            whole[row] = 0
        return whole, other
    whole = np.zeros(rows, np.int64)
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not any(is_kind(column.type) for is_kind in kinds):
        return whole, dict.fromkeys(range(rows))
    for row, value in enumerate(column.to_pylist()):
        number = _number(value)
        if isinstance(number, int):
            whole[row] = number
        else:
            other[row] = number
    return whole, other


def _number(value: object) -> int | Decimal | None:
    """Return what `exact.number` returns for the same number; a float is the fraction it stands for."""
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    number = Decimal(value)  # type: ignore[arg-type]
    if number.copy_abs() < exact.WHOLE_LIMIT and number == number.to_integral_value():
        return int(number)
    return number
