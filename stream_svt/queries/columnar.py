"""Columnar query records: an Arrow IPC stream whose rows are queries of one dataset.

Columns have the names of the JSON fields; other columns are ignored. A record is rejected as a whole, and never for the
content of the column `value`. Rows are entries of arrays: only one with an option costs an object.

Reading takes no more memory than the record allows for: compressed bodies are refused, bytes are not swapped,
dictionaries are neither expanded nor extended, and the total length of all texts is bounded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream_svt.columns import decimals
from stream_svt.columns.query_batch import NO_TEXTS
from stream_svt.columns.strings import TextCodes, Texts, TextSlices
from stream_svt.queries.reasons import MAX_TEXT, Reason

if TYPE_CHECKING:
    from stream_svt.columns.query_batch import QueryBatch

_Arrow: TypeAlias = Any  # pyarrow has no types
_Integers: TypeAlias = NDArray[np.int64]
_Mask: TypeAlias = NDArray[np.bool_]
_Answers: TypeAlias = _Mask | np.bool_
"""Answers by row, or one for all rows."""
_Numbers: TypeAlias = tuple[_Integers, _Integers | None]
"""Whole parts and fractions, None where no number of the type has a fraction."""
_Entries = TypeVar("_Entries")
_Item = TypeVar("_Item", bound=np.generic)

MAX_ROWS: Final = 1 << 20
"""Maximum rows of a record: row numbers must fit the identity that keys a test's noise."""

MAX_PARTS: Final = 256
"""Maximum record batches of a record: each takes time of its own."""

MAX_TEXT_IN_ALL: Final = 16 << 20
"""Maximum characters in the texts of all rows: a dictionary repeats a long text at the cost of one byte."""

KEPT: Final = 1 << 16
"""Bytes of a column's texts, and of their offsets, that are kept for the next record."""

_SHORT: Final = 1 << 12
"""Bytes of metadata that are kept for the next record."""

_TINY: Final = 1e-300
"""Smallest absolute value of a threshold other than 0, as in JSON."""

_ALL_VALID: Final = bytes([255]) * (MAX_ROWS // 8 + 1)
"""Bits of a column without nulls, which need not have any: of its rows or its entries of at least a byte."""

_AS_IS: Final = np.dtype(np.int32), np.dtype(np.int64)
"""Types of codes that are not converted."""

_NOTHING: Final[_Integers] = np.zeros(0, np.int64)

_MOST_SCALE: Final = 96
"""Largest scale of a decimal, above or below 0: 78 digits of 256 bits, and those of a fraction."""

_ERRORS: Final = (
    pa.ArrowException,
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, NotImplementedError),
)
"""Exceptions that pyarrow raises."""


class MalformedColumns(Exception):
    """A malformed columnar record; the argument is the `Reason`."""


class DictionaryCache:
    """The last short column of texts of each name: a record that has it again shares it, and the hashes of its texts.

    Most records of a producer repeat their dictionaries.
    """

    def __init__(self) -> None:
        self._columns: dict[str, tuple[_Arrow, list[_Arrow], _Slices]] = {}

    def slices(self, name: str, column: _Arrow) -> _Slices:
        """Return the texts of a column, as `_Slices.of` does."""
        bits, *buffers = column.buffers()
        is_short = all(buffer and buffer.size <= KEPT for buffer in buffers)
        if not is_short or bits is not None or column.null_count or column.offset:
            return _Slices.of(column)
        kind, known, found = self._columns.get(name, (None, [], None))
        if (
            found is not None
            and (kind, len(found.length)) == (column.type, len(column))
            and all(given.equals(kept) for given, kept in zip(buffers, known, strict=True))
        ):
            return found
        found = _Slices.of(column)
        # The offsets are copied, as the texts are: the column would keep the whole record in memory.
        known = [pa.py_buffer(copy) for copy in (buffers[0].to_pybytes(), found.buffer)]
        self._columns[name] = column.type, known, found
        return found


def read(
    message: bytes | memoryview,
    batch: QueryBatch,
    monitors: Collection[str],
    known: DictionaryCache | None = None,
) -> None:
    """Fill the columns of an empty batch with the content of a message, or raise MalformedColumns.

    The columns of the record's offset, time and dataset, and of the row numbers, are left to the caller. ``known`` is
    the same for the records of one producer.
    """
    known = DictionaryCache() if known is None else known
    parts = _parts(message)
    rows = sum(part.num_rows for part in parts)
    closed = _closed(parts)
    ids = _texts(parts, "id", Reason.BAD_ID, known)
    lacks_id = ids.missing
    if lacks_id.all() and rows and not closed.any():
        raise MalformedColumns(Reason.MISSING_ID)  # at once: such rows cost the sender nothing
    series = _texts(parts, "series", Reason.BAD_SERIES, known)
    sets = _texts(parts, "set", Reason.BAD_SET, known)
    names = _texts(parts, "monitor", Reason.UNKNOWN_MONITOR, known)
    columns = ids, series, sets, names
    if sum(column.most() for column in columns) > MAX_TEXT_IN_ALL < sum(map(_Texts.characters, columns)):
        raise MalformedColumns(Reason.TOO_LARGE)
    if rows and not (lacks_id is closed is np.False_ and names is _ABSENT):
        batch.monitor = names.of(~(names.missing | lacks_id | closed))
        unknown = (row for row, name in batch.monitor.items() if name not in monitors)
        faults = [
            *((row, Reason.MISSING_ID) for row in _first(lacks_id & ~closed)),
            *((row, Reason.BAD_SET) for row in _first(closed & sets.missing)),
            *((row, Reason.UNKNOWN_MONITOR) for row in islice(unknown, 1)),
        ]
        if faults:
            raise MalformedColumns(min(faults)[1])
    batch.threshold, batch.markers = _limits(parts), sets.of(closed)
    batch.whole, batch.fraction = _values(parts)
    if marked := [*batch.markers]:
        batch.threshold = {row: limit for row, limit in batch.threshold.items() if row not in batch.markers}
        batch.whole[marked] = 0
        if batch.fraction is not None:
            batch.fraction[marked] = 0
        series = series if series is _ABSENT else series.without(marked)
    batch.series, batch.query_id = (NO_TEXTS if one is _ABSENT else one.texts for one in (series, ids))
    if rows and sets is not _ABSENT and not sets.missing.all():
        codes, found = sets.codes, [*map(sets.entries.texts.__getitem__, range(len(sets.entries.length)))]
        batch.set_id = found if codes is None else [*map([*found, None].__getitem__, codes.tolist())]


def _first(answers: _Answers) -> list[int]:
    """Return the first row whose answer is yes, if there is one."""
    return [int(answers.argmax())] if answers.any() else []


# The stream


def _parts(message: bytes | memoryview) -> list[_Arrow]:
    """Return the record batches of a stream; their columns are not validated yet."""
    parts: list[_Arrow] = []
    rows = 0
    try:
        # The reader checks that the messages are well formed.
        for header in pa.ipc.MessageReader.open_stream(message):
            metadata = header.metadata.to_pybytes()
            if (_inflates if len(metadata) <= _SHORT else _inflates.__wrapped__)(header.type, metadata):
                raise MalformedColumns(Reason.NOT_ARROW)
        with pa.ipc.open_stream(message) as reader:
            for part in reader:
                rows += part.num_rows
                if rows > MAX_ROWS or len(parts) == MAX_PARTS:
                    raise MalformedColumns(Reason.TOO_LARGE)
                parts.append(part)
    except (struct.error, *_ERRORS) as error:
        raise MalformedColumns(Reason.NOT_ARROW) from error
    return parts


@lru_cache(maxsize=64)  # a producer's records repeat theirs
def _inflates(kind: str, metadata: bytes) -> bool:
    """Tell whether reading a message would need extra memory.

    It is compressed, has the other byte order, or extends a dictionary, of which each extension makes a larger copy.
    """
    if b"ARROW:experimental_compression" in metadata:  # how files of 2020 mark it
        return True
    path: tuple[int, ...] = (2,)
    if kind == "dictionary":
        path, extends = (2, 1), _field(metadata, 2, 2)
        if extends is not None and metadata[extends]:
            return True
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


def _each(
    parts: Sequence[_Arrow], name: str, convert: Callable[[_Arrow], _Entries]
) -> Iterator[tuple[int, _Integers | None, _Entries | None]]:
    """Yield of each batch its rows, and of its column the codes and the converted entries; None for no column.

    Without a dictionary the codes are None, and each row has its entry. A dictionary is converted once. ``convert``
    validates the entries.
    """
    known: dict[tuple[int, ...], _Entries] = {}
    for part in parts:
        codes, entries = None, None
        with _readable:
            if (column := _column(part, name)) is not None:
                codes, given = _split(column)
                key = _place(given) if len(parts) > 1 else ()
                if key not in known:
                    known[key] = convert(given)
                entries = known[key]
        yield part.num_rows, codes, entries


class _Readable:
    """A context in which what pyarrow raises rejects the record."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, _ERRORS):
            raise MalformedColumns(Reason.NOT_ARROW) from error


_readable = _Readable()


def _place(column: _Arrow) -> tuple[int, ...]:
    """Return where a column lies in memory: columns of one type at one place have the same content."""
    addresses = (0 if buffer is None else buffer.address for buffer in column.buffers())
    return column.offset, len(column), *addresses


def _split(column: _Arrow) -> tuple[_Integers | None, _Arrow]:
    """Return the codes of the rows, -1 for null, and the entries of the dictionary; None and the column without one."""
    codes: _Integers | None = None
    while pa.types.is_dictionary(column.type):
        column.validate()
        indices, has_nulls, column = column.indices, column.null_count > 0, column.dictionary
        if has_nulls or indices.buffers()[0] is not None:
            indices.validate(full=True)  # counts the nulls
        inside = found = _fixed(indices)
        if has_nulls or found.dtype not in _AS_IS:
            found = found.astype(np.int64)
            inside = found[_valid(indices)] if has_nulls else found
        if inside.min(initial=0) < 0 or inside.max(initial=-1) >= len(column):
            raise pa.ArrowInvalid("an index beyond its dictionary")
        if has_nulls:
            found[~_valid(indices)] = -1
        codes = found if codes is None else np.append(found, -1)[codes]
    return codes, column


def _fixed(column: _Arrow) -> NDArray[Any]:
    """Return the buffer of a column of numbers as an array, with whatever is at nulls."""
    signed = "u" if pa.types.is_unsigned_integer(column.type) else "i"
    # Before version 26, pyarrow's own translation needs pandas.
    kind = np.dtype(f"{'f' if pa.types.is_floating(column.type) else signed}{column.type.bit_width // 8}")
    size = column.offset + len(column)
    return np.frombuffer(column.buffers()[1] or b"", kind, size or 0)[column.offset :]


def _valid(column: _Arrow) -> _Mask:
    """Return which rows are not null, in steps that do not depend on whether there is one."""
    size = column.offset + len(column)
    count = (size + 7) // 8
    given = column.buffers()[0]
    bits = np.frombuffer(_ALL_VALID if given is None else given, np.uint8, count)
    return np.unpackbits(bits, bitorder="little", count=size)[column.offset :].view(np.bool_)


def _closed(parts: Sequence[_Arrow]) -> _Answers:
    """Return which rows are markers."""

    def flags(entries: _Arrow) -> _Mask:
        entries.validate(full=True)
        if not pa.types.is_boolean(entries.type):
            raise MalformedColumns(Reason.BAD_SET)
        found: _Mask = entries.fill_null(False).to_numpy(zero_copy_only=False)
        return found

    found = [*_each(parts, "closed", flags)]
    if all(entries is None for _, _, entries in found):
        return np.False_
    closed = [np.zeros(0, np.bool_)]
    for rows, codes, entries in found:
        if entries is None:
            closed.append(np.zeros(rows, np.bool_))
        else:
            closed.append(entries if codes is None else np.append(entries, False)[codes])
    return np.concatenate(closed)


# Texts


@dataclass(frozen=True, eq=False)
class _Slices:
    """Texts as slices of a buffer of UTF-8; a length of -1 stands for null."""

    buffer: bytes
    start: _Integers
    length: _Integers

    @classmethod
    def of(cls, column: _Arrow) -> _Slices:
        """Return the texts of a column of strings; raises what pyarrow does if it is not valid."""
        column.validate()
        bits, offsets, text = column.buffers()
        kind = np.dtype("<i8" if pa.types.is_large_string(column.type) else "<i4")
        ends = np.zeros(1, kind)
        if len(column):
            ends = np.frombuffer(offsets, kind, len(column) + 1, column.offset * kind.itemsize)
        start, length, buffer = ends[:-1].copy(), ends[1:] - ends[:-1], text.to_pybytes() if text else b""
        found = cls(buffer, start, length)
        # Differences of fewer than 2^31 characters in all have not overflowed.
        rises = found.shortest >= 0 and found.longest * len(column) < 1 << 31
        if bits is not None or column.null_count or not rises or not buffer.isascii():
            column.validate(full=True)
            if column.null_count:
                return cls(buffer, start, np.where(_valid(column), length, -1))
        return found

    @cached_property
    def texts(self) -> TextSlices:
        """The texts, made on access."""
        return TextSlices(self.buffer, self.start, self.length)

    @cached_property
    def shortest(self) -> int:
        """The smallest length, at most 1."""
        return int(self.length.min(initial=1))

    @cached_property
    def longest(self) -> int:
        """The largest length, at least 0."""
        return int(self.length.max(initial=0))

    def characters(self) -> _Integers:
        """Return the number of characters of each text, 0 for null."""
        begins = np.frombuffer(self.buffer, np.uint8) & 0xC0 != 0x80
        before, length = np.append(0, np.cumsum(begins)), np.maximum(self.length, 0)
        found: _Integers = before[self.start + length] - before[self.start]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Texts:
    """Texts by row: entries by code, -1 for none; without codes, the entries themselves."""

    entries: _Slices
    codes: _Integers | None

    def _by_row(self, column: NDArray[_Item], none: _Item) -> NDArray[_Item]:
        return column if self.codes is None else np.append(column, none)[self.codes]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.entries.length if self.codes is None else self.codes)

    @property
    def missing(self) -> _Answers:
        """Rows without a text."""
        if not len(self.entries.length):
            return np.True_
        if self.entries.shortest >= 0:
            return np.False_ if self.codes is None else self.codes < 0
        return self._by_row(self.entries.length < 0, np.True_)

    @property
    def texts(self) -> Texts:
        """The texts, made on access."""
        entries = self.entries.texts
        return entries if self.codes is None else TextCodes(entries, self.codes)

    def check(self, reason: Reason) -> None:
        """Reject the record if a row has an empty text or one that is too long."""
        entries = self.entries
        if entries.shortest > 0 and entries.longest <= MAX_TEXT:  # few texts are longer in bytes
            return
        odd = (entries.length == 0) | (entries.length > MAX_TEXT)
        if odd.any():
            odd &= (entries.length == 0) | (entries.characters() > MAX_TEXT)
            if self._by_row(odd, np.False_).any():
                raise MalformedColumns(reason)

    def most(self) -> int:
        """Return an upper bound of the number of characters in all rows."""
        return self.rows * self.entries.longest

    def characters(self) -> int:
        """Return the number of characters in all rows."""
        return int(self._by_row(self.entries.characters(), np.int64(0)).sum())

    def without(self, rows: Sequence[int]) -> _Texts:
        """Return the texts, none for some rows."""
        column = (self.entries.length if self.codes is None else self.codes).copy()
        column[rows] = -1
        if self.codes is not None:
            return _Texts(self.entries, column)
        return _Texts(_Slices(self.entries.buffer, self.entries.start, column), None)

    def of(self, answers: _Answers) -> dict[int, str]:
        """Return the texts of rows, none of them missing, by row; an entry is decoded once."""
        if not answers.any():
            return {}
        rows = np.flatnonzero(np.broadcast_to(answers, self.rows))
        codes = rows if self.codes is None else self.codes[rows]
        used = np.zeros(len(self.entries.length), np.bool_)
        used[codes] = True
        start, length = self.entries.start[used], self.entries.length[used]
        ends = zip(np.flatnonzero(used).tolist(), start.tolist(), (start + length).tolist(), strict=True)
        names = {code: self.entries.buffer[begin:end].decode() for code, begin, end in ends}
        return dict(zip(rows.tolist(), map(names.__getitem__, codes.tolist()), strict=True))


_ABSENT: Final = _Texts(_Slices(b"", _NOTHING, _NOTHING), _NOTHING)
"""A column that no batch has."""


def _texts(parts: Sequence[_Arrow], name: str, reason: Reason, known: DictionaryCache) -> _Texts:
    """Return a column of texts; one of another type, or with a text of a wrong length, rejects the record."""

    def slices(entries: _Arrow) -> _Slices:
        if not (pa.types.is_string(entries.type) or pa.types.is_large_string(entries.type)):
            entries.validate(full=True)
            raise MalformedColumns(reason)
        return known.slices(name, entries)

    if (found := _joined([*_each(parts, name, slices)])) is not _ABSENT:
        found.check(reason)
    return found


def _joined(pieces: Sequence[tuple[int, _Integers | None, _Slices | None]]) -> _Texts:
    """Return the texts of consecutive rows as one column; a dictionary that they share is kept once."""
    if len(pieces) == 1 and (only := pieces[0][2]) is not None:
        return _Texts(only, pieces[0][1])
    if not any(entries for _, _, entries in pieces):
        return _ABSENT
    places: dict[int, int] = {}
    kept: list[_Slices] = []
    joined = [_NOTHING]
    size = bytes_before = 0
    for rows, codes, entries in pieces:
        if entries is None:
            joined.append(np.full(rows, -1))
            continue
        if id(entries) not in places:
            places[id(entries)] = size
            kept.append(_Slices(entries.buffer, entries.start + bytes_before, entries.length))
            size, bytes_before = size + len(entries.length), bytes_before + len(entries.buffer)
        found = np.arange(rows) if codes is None else codes
        joined.append(np.where(found < 0, -1, found + places[id(entries)]))
    start, length = (
        np.concatenate([_NOTHING, *(getattr(one, name) for one in kept)]) for name in ("start", "length")
    )
    return _Texts(_Slices(b"".join([one.buffer for one in kept]), start, length), np.concatenate(joined))


# Numbers


def _limits(parts: Sequence[_Arrow]) -> dict[int, Fraction]:
    """Return the thresholds by row."""

    def checked(entries: _Arrow) -> _Arrow:
        entries.validate(full=True)
        kind = entries.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise MalformedColumns(Reason.BAD_THRESHOLD)
        return entries

    limits: dict[int, Fraction] = {}
    first = 0
    for rows, codes, entries in _each(parts, "threshold", checked):
        if entries is not None:
            valid = _valid(entries)
            given = np.flatnonzero(valid if codes is None else np.append(valid, False)[codes])
            # Each is converted once: a dictionary can repeat it at the cost of one byte.
            used, which = np.unique(given if codes is None else codes[given], return_inverse=True)
            with _readable:
                numbers = entries.take(pa.array(used)).to_pylist()
            fractions = {number: _limit(number) for number in set(numbers)}
            named = (fractions[numbers[index]] for index in which.tolist())
            limits.update(zip((given + first).tolist(), named, strict=True))
        first += rows
    return limits


def _limit(value: float | Decimal) -> Fraction:
    if isinstance(value, float):
        is_number = math.isfinite(value) and (not value or abs(value) > _TINY)
        found = Fraction(value) if is_number else None
    else:
        found = decimals.threshold(str(value).encode())
    if found is None:
        raise MalformedColumns(Reason.BAD_THRESHOLD)
    return found


def _values(parts: Sequence[_Arrow]) -> _Numbers:
    columns = []
    known: dict[tuple[int, ...], _Numbers] = {}
    for part in parts:
        found = None
        with suppress(*_ERRORS):
            if (column := _column(part, "value")) is not None:
                # Checks the lengths of the buffers only: a rejection must not depend on values.
                column.validate()
                found = _value(column, known)
        columns.append(found or _no_numbers(part.num_rows))
    if len(columns) == 1:
        return columns[0]
    whole = np.concatenate([_NOTHING, *(whole for whole, _ in columns)])
    if all(fraction is None for _, fraction in columns):
        return whole, None
    each = (np.zeros(len(whole), np.int64) if fraction is None else fraction for whole, fraction in columns)
    return whole, np.concatenate([*each])


def _value(column: _Arrow, known: dict[tuple[int, ...], _Numbers]) -> _Numbers:
    """Return a column of numbers, which a dictionary of ``known`` ones need not be converted for again."""
    if not pa.types.is_dictionary(column.type):
        return _numbers(column)
    entries = column.dictionary
    if (key := _place(entries)) not in known:
        known[key] = _numbers(entries)
    size = len(entries)
    codes = _fixed(column.indices).astype(np.int64)
    # `NO_NUMBER` is appended to the entries.
    codes = _chosen(_valid(column.indices) & (codes >= 0) & (codes < size), codes, size)
    whole, fraction = (
        None if numbers is None else np.append(numbers, nothing)[codes]
        for numbers, nothing in zip(known[key], decimals.NO_NUMBER, strict=True)
    )
    return whole, fraction  # type: ignore[return-value]  # only the fraction can be None


def _no_numbers(rows: int) -> _Numbers:
    return np.full(rows, decimals.NO_NUMBER[0], np.int64), None


def _numbers(column: _Arrow) -> _Numbers:
    """Return whole parts and fractions of a column of numbers, converted by its type."""
    kind = column.type
    fraction: _Integers | None = None
    if pa.types.is_integer(kind):
        whole = decimals.integers(_fixed(column))
    elif pa.types.is_floating(kind):
        whole, fraction = decimals.doubles(_fixed(column))
    elif pa.types.is_decimal(kind) and abs(kind.scale) <= _MOST_SCALE:
        words = np.frombuffer(column.buffers()[1] or b"", "<u4").reshape(-1, kind.bit_width // 32)
        whole, fraction = decimals.decimals(words[column.offset : column.offset + len(column)], kind.scale)
    else:
        return _no_numbers(len(column))
    valid, (nothing, no_fraction) = _valid(column), decimals.NO_NUMBER
    return _chosen(valid, whole, nothing), None if fraction is None else _chosen(valid, fraction, no_fraction)


def _chosen(mask: _Mask, numbers: _Integers, other: _Integers | int) -> _Integers:
    """Set the numbers outside a mask to another one, in time that does not depend on the mask."""
    numbers ^= other
    numbers &= (-mask.view(np.int8)).astype(np.int64)
    numbers ^= other
    return numbers
