"""Columnar query records: an Arrow IPC stream whose rows are queries of one dataset.

Columns have the names of the JSON fields; other columns are ignored. A record is rejected as a whole, and never for the
content of the column `value`. Reading takes no more memory than the record allows for: compressed bodies are refused,
bytes are neither swapped nor copied, dictionaries are not expanded, and the total length of all texts is bounded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream_svt.monitor.texts import TextList
from stream_svt.service import exact
from stream_svt.service.reasons import MAX_TEXT, Reason

if TYPE_CHECKING:
    from stream_svt.monitor.batch import QueryBatch

_Arrow: TypeAlias = Any  # pyarrow has no types

MAX_ROWS: Final = 1 << 20
"""Maximum rows of a record: row numbers must fit the identity that keys a test's noise."""

MAX_TEXT_IN_ALL: Final = 16 << 20
"""Maximum characters in the texts of all rows: a dictionary repeats a long text at the cost of one byte."""

_TINY: Final = 1e-300
"""Smallest absolute value of a threshold other than 0, as in JSON."""

_DIGITS: Final = 18
"""Digits of a decimal that fits 64 bits."""

_ERRORS: Final = (
    pa.ArrowException,
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, NotImplementedError),
)
"""Exceptions that pyarrow raises."""


class MalformedColumns(Exception):
    """A malformed columnar record; the argument is the `Reason`."""


def read(message: bytes, batch: QueryBatch, monitors: Collection[str]) -> None:
    """Fill the columns of an empty batch with the content of a message, or raise MalformedColumns."""
    parts = _parts(message)
    rows = sum(part.num_rows for part in parts)
    closed = _gather(parts, "closed", Reason.BAD_SET, pa.types.is_boolean)
    ids = _texts(parts, "id", Reason.BAD_ID)
    if rows and True not in closed and ids.count(None) == rows:
        raise MalformedColumns(Reason.MISSING_ID)  # before the loop: such rows cost the sender nothing
    series = _texts(parts, "series", Reason.BAD_SERIES)
    sets = _texts(parts, "set", Reason.BAD_SET)
    names = _texts(parts, "monitor", Reason.UNKNOWN_MONITOR)
    if sum(len(text) for texts in (ids, series, sets, names) for text in texts if text) > MAX_TEXT_IN_ALL:
        raise MalformedColumns(Reason.TOO_LARGE)
    for row in range(rows):
        name = names[row]
        if closed[row]:
            if (set_id := sets[row]) is None:
                raise MalformedColumns(Reason.BAD_SET)
            batch.markers[row] = set_id
            series[row] = None
        elif ids[row] is None:
            raise MalformedColumns(Reason.MISSING_ID)
        elif name is not None:
            if name not in monitors:
                raise MalformedColumns(Reason.UNKNOWN_MONITOR)
            batch.monitor[row] = name
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    limits = _gather(parts, "threshold", Reason.BAD_THRESHOLD, *kinds)
    # Each limit is converted once: a dictionary can repeat it at the cost of one byte.
    fractions = {limit: _limit(limit) for limit in set(limits) if limit is not None}
    given = ((row, limit) for row, limit in enumerate(limits) if limit is not None and not closed[row])
    batch.threshold = {row: fractions[limit] for row, limit in given}
    batch.whole, batch.fraction = _values(parts)
    markers = list(batch.markers)
    batch.whole[markers] = batch.fraction[markers] = 0
    batch.series = TextList(series)
    batch.set_id = sets if sets.count(None) != rows else None
    batch.query_id = TextList(ids)


# The stream


def _parts(message: bytes) -> list[_Arrow]:
    """Return the record batches of a stream; their columns are not validated yet."""
    parts: list[_Arrow] = []
    rows = 0
    try:
        # The reader checks that the messages are well formed.
        for header in pa.ipc.MessageReader.open_stream(message):
            if _inflates(header.type, header.metadata.to_pybytes()):
                raise MalformedColumns(Reason.NOT_ARROW)
        with pa.ipc.open_stream(message) as reader:
            for part in reader:
                rows += part.num_rows
                if rows > MAX_ROWS:
                    raise MalformedColumns(Reason.TOO_LARGE)
                parts.append(part)
    except (struct.error, *_ERRORS) as error:
        raise MalformedColumns(Reason.NOT_ARROW) from error
    return parts


def _inflates(kind: str, metadata: bytes) -> bool:
    """Tell whether reading a message would need extra memory: it is compressed, or has the other byte order."""
    if b"ARROW:experimental_compression" in metadata:  # how files of 2020 mark it
        return True
    path = (2, 1) if kind == "dictionary" else (2,)
    if _field(metadata, *path) is None:
        return True
    if kind == "schema":
        order = _field(metadata, *path, 0)
        return order is not None and struct.unpack_from("<h", metadata, order)[0] != 0
    return _field(metadata, *path, 3) is not None


def _field(metadata: bytes, *path: int) -> int | None:
    """Return the offset of a field in nested FlatBuffers tables, given the field's number in each; None if absent."""
    offset = 0
    for number in path:
        table = offset + struct.unpack_from("<I", metadata, offset)[0]
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
            return None
        if not (distance := struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]):
            return None
        offset = table + distance
    return offset


# Columns


def _column(part: _Arrow, name: str) -> _Arrow:
    """Return a column of a record batch, None if it is absent or has the type null."""
    indices = part.schema.get_all_field_indices(name)
    if not indices:
        return None
    column = part.column(indices[0])
    return None if pa.types.is_null(column.type) else column


def _gather(
    parts: Sequence[_Arrow], name: str, reason: Reason, *kinds: Callable[[_Arrow], bool]
) -> list[Any]:
    """Return a column of all batches; one that is malformed or has none of these types rejects the record."""
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
    """Return the value of each row; entries of a dictionary are converted once and shared."""
    if pa.types.is_dictionary(column.type):
        entries = _rows(column.dictionary, reason, kinds)
        known = range(len(entries))
        return [entries[index] if index in known else None for index in column.indices.to_pylist()]
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
        is_number = math.isfinite(value) and (not value or abs(value) > _TINY)
        found = Fraction(value) if is_number else None
    else:
        found = exact.threshold(str(value).encode())
    if found is None:
        raise MalformedColumns(Reason.BAD_THRESHOLD)
    return found


def _values(parts: Sequence[_Arrow]) -> exact.Columns:
    columns = [_no_numbers(0)]
    for part in parts:
        found = _no_numbers(part.num_rows)
        with suppress(*_ERRORS):
            if (column := _column(part, "value")) is not None:
                # Checks the lengths of the buffers only: a rejection must not depend on values.
                column.validate()
                found = _value(column)
        columns.append(found)
    whole, fraction = zip(*columns, strict=True)
    return np.concatenate(whole), np.concatenate(fraction)


def _value(column: _Arrow) -> exact.Columns:
    if not pa.types.is_dictionary(column.type):
        return _numbers(column)
    entries = _numbers(column.dictionary)
    size = len(column.dictionary)
    index = _filled(column.indices)
    known = _valid(column.indices) & (index >= 0) & (index < size)
    # `NO_NUMBER` is appended to the entries.
    index = np.where(known, index, size)
    whole, fraction = (np.append(*pair)[index] for pair in zip(entries, exact.NO_NUMBER, strict=True))
    return whole, fraction


def _no_numbers(rows: int) -> exact.Columns:
    whole, fraction = exact.NO_NUMBER
    return np.full(rows, whole, np.int64), np.full(rows, fraction, np.int64)


def _valid(column: _Arrow) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(column: _Arrow) -> exact.Columns:
    """Return whole parts and fractions of a column of numbers, converted by its type."""
    kind = column.type
    if pa.types.is_integer(kind):
        found = exact.integers(_filled(column))
    elif pa.types.is_floating(kind):
        found = exact.doubles(_filled(column).astype(np.float64))
    elif pa.types.is_decimal128(kind) and kind.precision <= _DIGITS and 0 <= kind.scale <= _DIGITS:
        found = exact.scaled(_low_words(column), kind.scale)
    elif pa.types.is_decimal(kind):
        # The text of None is not a number.
        numbers = [exact.number(str(value).encode()) for value in column.to_pylist()]
        whole, fraction = np.array(list(map(exact.split, numbers)), np.int64).reshape(-1, 2).T
        return whole, fraction
    else:
        return _no_numbers(len(column))
    valid, nothing = _valid(column), exact.NO_NUMBER
    return np.where(valid, found[0], nothing[0]), np.where(valid, found[1], nothing[1])


def _filled(column: _Arrow) -> NDArray[Any]:
    """Return a column of numbers as an array, 0 for null."""
    array: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return array


def _low_words(column: _Arrow) -> NDArray[np.int64]:
    """Return decimals of at most 18 digits as integers without the point: the lower of their two words."""
    words = np.frombuffer(column.buffers()[1], "<i8")
    return words[2 * column.offset : 2 * (column.offset + len(column)) : 2]
