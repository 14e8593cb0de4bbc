"""Columnar query records: an Arrow IPC stream whose rows are queries of one dataset.

Columns carry the names of the JSON fields; other columns are not looked at. A record is refused as a whole, and never
for what stands in the column `value`. A record cannot become more than it is: bodies must not be compressed, nothing
is swapped or copied on reading, dictionaries are never expanded, and the texts of all rows are bounded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream_svt.service import exact
from stream_svt.service.codec import MAX_TEXT, Reason

if TYPE_CHECKING:
    from stream_svt.monitor.batch import QueryBatch

_Arrow: TypeAlias = Any  # pyarrow has no types
_T = TypeVar("_T")

MAX_ROWS: Final = 1 << 20
"""Rows of one record: a row number has to fit the identity that keys a test's noise."""

MAX_TEXT_IN_ALL: Final = 16 << 20
"""Characters that the texts of all rows may have together: a dictionary repeats one text for the price of a byte."""

_TINY: Final = 1e-300
"""Size below which a threshold is refused, as in JSON."""

_DIGITS: Final = 18
"""Digits of a decimal that fit 64 bits."""

_BAD: Final = Fraction(-1, 3)
"""Stands for a threshold that is none: no decimal or binary number is this one."""

_ERRORS: Final = (
    pa.ArrowException,
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, NotImplementedError),
)
"""What pyarrow raises."""


class MalformedColumns(Exception):
    """A columnar record that is malformed, for a `Reason`."""


def read(message: bytes, batch: QueryBatch, monitors: Collection[str]) -> None:
    """Fill the columns of an empty batch that come from the message itself, or raise Refused."""
    parts = _parts(message)
    rows = sum(part.num_rows for part in parts)
    closed = _gather(
        parts, "closed", lambda column: _typed(column, pa.types.is_boolean, reason=Reason.BAD_SET)
    )
    ids = _gather(parts, "id", lambda column: _text(column, Reason.BAD_ID))
    if rows and True not in closed and ids.count(None) == rows:
        raise MalformedColumns(
            Reason.MISSING_ID
        )  # before rows that cost nothing to send are gone through one by one
    series = _gather(parts, "series", lambda column: _text(column, Reason.BAD_SERIES))
    sets = _gather(parts, "set", lambda column: _text(column, Reason.BAD_SET))
    names = _gather(parts, "monitor", lambda column: _text(column, Reason.UNKNOWN_MONITOR))
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
    limits = enumerate(_gather(parts, "threshold", _thresholds))
    batch.threshold = {row: limit for row, limit in limits if limit is not None and not closed[row]}
    batch.whole, batch.fraction = _values(parts)
    markers = list(batch.markers)
    batch.whole[markers] = batch.fraction[markers] = 0
    batch.series = series
    batch.set_id = sets if sets.count(None) != rows else None
    batch.query_id = [name or "" for name in ids]


# The stream


def _parts(message: bytes) -> list[_Arrow]:
    """Return the record batches of a stream, none of them looked into yet."""
    parts: list[_Arrow] = []
    rows = 0
    try:
        # What Arrow has checked to be well formed.
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
    """Tell whether a message would take more memory than it has bytes: compressed, or in the other byte order."""
    if b"ARROW:experimental_compression" in metadata:  # as files of 2020 say it
        return True
    message = struct.unpack_from("<I", metadata)[0]
    content = _field(metadata, message, 2)
    if content is None:
        return True
    content = _followed(metadata, content)
    if kind == "schema":
        order = _field(metadata, content, 0)
        return order is not None and struct.unpack_from("<h", metadata, order)[0] != 0
    if kind == "dictionary":
        data = _field(metadata, content, 1)
        if data is None:
            return True
        content = _followed(metadata, data)
    return _field(metadata, content, 3) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return where a field of a FlatBuffers table stands, None where it is left out."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def _followed(metadata: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", metadata, place)[0])


# Columns


def _column(part: _Arrow, name: str) -> _Arrow:
    """Return a column of a record batch, None where it is absent or of no type."""
    at = part.schema.get_all_field_indices(name)
    if not at:
        return None
    column = part.column(at[0])
    return None if pa.types.is_null(column.type) else column


def _gather(parts: Sequence[_Arrow], name: str, take: Callable[[_Arrow], list[_T]]) -> list[_T | None]:
    """Return a column of all batches; what is wrong with its form refuses the record."""
    gathered: list[_T | None] = []
    for part in parts:
        try:
            column = _column(part, name)
            if column is None:
                gathered += [None] * part.num_rows
                continue
            column.validate(full=True)
            gathered += take(column)
        except _ERRORS as error:
            raise MalformedColumns(Reason.NOT_ARROW) from error
    return gathered


def _rows(column: _Arrow, take: Callable[[_Arrow], list[_T]]) -> list[_T | None]:
    """Return what stands at each row; of a dictionary every entry is taken once, and none is copied."""
    if not pa.types.is_dictionary(column.type):
        return [*take(column)]
    entries = take(column.dictionary)
    known = range(len(entries))
    return [entries[index] if index in known else None for index in column.indices.to_pylist()]


def _typed(column: _Arrow, *kinds: Callable[[_Arrow], bool], reason: Reason) -> list[Any]:
    """Return a column of one of these types."""

    def take(part: _Arrow) -> list[Any]:
        if not any(is_kind(part.type) for is_kind in kinds):
            raise MalformedColumns(reason)
        return list(part.to_pylist())

    return _rows(column, take)


def _text(column: _Arrow, reason: Reason) -> list[str | None]:
    texts = _typed(column, pa.types.is_string, pa.types.is_large_string, reason=reason)
    if any(text is not None and not 0 < len(text) <= MAX_TEXT for text in texts):
        raise MalformedColumns(reason)
    return texts


def _thresholds(column: _Arrow) -> list[Fraction | None]:
    limits = _rows(column, _limits)
    if _BAD in limits:
        raise MalformedColumns(Reason.BAD_THRESHOLD)
    return limits


def _limits(column: _Arrow) -> list[Fraction | None]:
    """Return the limits, None where there is none, `_BAD` for a value that is not a number of moderate size."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not any(is_kind(column.type) for is_kind in kinds):
        return [_BAD if valid else None for valid in column.is_valid().to_pylist()]
    return [None if value is None else _limit(value) for value in column.to_pylist()]


def _limit(value: float | Decimal) -> Fraction:
    if isinstance(value, float):
        return Fraction(value) if math.isfinite(value) and (not value or abs(value) > _TINY) else _BAD
    found = exact.threshold(str(value).encode())
    return _BAD if found is None else found


def _values(parts: Sequence[_Arrow]) -> exact.Columns:
    columns = [_nothing(0)]
    for part in parts:
        found = _nothing(part.num_rows)
        try:
            column = _column(part, "value")
            if column is not None:
                # Whether buffers are as long as they say, and nothing of what they hold: only that may be looked at.
                column.validate()
                found = _value(column)
        except _ERRORS:
            pass
        columns.append(found)
    whole, fraction = zip(*columns, strict=True)
    return np.concatenate(whole), np.concatenate(fraction)


def _value(column: _Arrow) -> exact.Columns:
    if not pa.types.is_dictionary(column.type):
        return _numbers(column)
    entries = _numbers(column.dictionary)
    size = len(column.dictionary)
    place = _filled(column.indices)
    known = _valid(column.indices) & (place >= 0) & (place < size)
    # What is no number stands behind the entries.
    place = np.where(known, place, size)
    whole, fraction = (np.append(*pair)[place] for pair in zip(entries, exact.NO_NUMBER, strict=True))
    return whole, fraction


def _nothing(rows: int) -> exact.Columns:
    whole, fraction = exact.NO_NUMBER
    return np.full(rows, whole, np.int64), np.full(rows, fraction, np.int64)


def _valid(column: _Arrow) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(column: _Arrow) -> exact.Columns:
    """Return whole parts and fractions of a column of numbers; its type alone decides how."""
    kind = column.type
    if pa.types.is_integer(kind):
        found = exact.integers(_filled(column))
    elif pa.types.is_floating(kind):
        found = exact.doubles(_filled(column).astype(np.float64))
    elif pa.types.is_decimal128(kind) and kind.precision <= _DIGITS and 0 <= kind.scale <= _DIGITS:
        found = exact.scaled(_low_words(column), kind.scale)
    elif pa.types.is_decimal(kind):
        # None is no number either.
        numbers = [exact.number(str(value).encode()) for value in column.to_pylist()]
        whole, fraction = np.array(list(map(exact.split, numbers)), np.int64).reshape(-1, 2).T
        return whole, fraction
    else:
        return _nothing(len(column))
    valid, nothing = _valid(column), exact.NO_NUMBER
    return np.where(valid, found[0], nothing[0]), np.where(valid, found[1], nothing[1])


def _filled(column: _Arrow) -> NDArray[Any]:
    """Return a column of numbers as an array, 0 where it holds none."""
    array: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return array


def _low_words(column: _Arrow) -> NDArray[np.int64]:
    """Return decimals of at most 18 digits without their point: the lower of the two words of each."""
    words = np.frombuffer(column.buffers()[1], "<i8")
    return words[2 * column.offset : 2 * (column.offset + len(column)) : 2]
