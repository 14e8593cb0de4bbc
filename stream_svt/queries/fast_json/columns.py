"""Reads many JSON records as columns: those of a common shape together, all others as `JsonRecords` does.

A message whose value is no plain number is looked at alone; its neighbours take the same steps with or without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from msgspec import Raw
from msgspec.json import Decoder

from stream_svt.columns import decimals
from stream_svt.columns.byte_buffer import MARGIN, ByteBuffer, Integers
from stream_svt.protocol.records import Records, slices
from stream_svt.queries.fast_json.templates import THRESHOLD, Fit, Shape, shape_of
from stream_svt.queries.fields import FieldColumns, Fields
from stream_svt.queries.json_lines import MAX_NESTING, UNDECODABLE
from stream_svt.queries.json_records import JsonRecords
from stream_svt.queries.reasons import MAX_BYTES

FEW: Final = 300
"""Messages from which the steps of many are worth it: nanoseconds a message, with them and without, were 3,210 and
3,120 for 200 messages, 2,640 and 2,830 for 300, 1,600 and 2,020 for 500, 690 and 1,430 for 2,000; see decision 30."""
_KEPT: Final = 3
"""Shapes that are tried again in the next messages."""
_EXAMPLES: Final = 8
"""Most messages in which a shape is looked for: each may lack the value, or hold one of too many tokens."""
_PAUSE: Final = 32
"""Chunks in which no other shape is looked for, after one in which none was found."""
_VALUE: Final = Decoder(Raw)
_ODD: Final = b"1e3"
"""A value that is no plain number."""
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_ONE_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^"{}\[\],: \t\r\n]*+', re.DOTALL)
"""Nothing, a text or a word, well-formed or not: whatever it is, the rest of its message is as if null stood there."""


class _Known(NamedTuple):
    """A shape, and the monitor that it names."""

    shape: Shape
    monitor: str | None


class FastJson:
    """Decodes the records of a topic as ``rows`` does; see `RecordDecoder`."""

    def __init__(self, rows: JsonRecords) -> None:
        self._rows = rows
        self._shapes: list[_Known] = []
        self._pause = 0

    def decode(self, records: Records) -> Fields:
        """See `RecordDecoder`."""
        if len(records) < FEW:
            return self._rows.decode(records)
        length = records.value_length
        is_candidate = (length > 0) & (length <= MAX_BYTES)
        candidates, others = np.flatnonzero(is_candidate), np.flatnonzero(~is_candidate)
        found = FieldColumns(len(records), self._rows.paths.texts)
        unread = [
            self._read(candidates[first : first + decimals.CHUNK], records, found)
            for first in range(0, len(candidates), decimals.CHUNK)
        ]
        rows = np.sort(np.concatenate([others, *unread]))
        if len(rows) == len(records):
            return self._rows.decode(records)
        return found.fields(self._read_alone(rows.tolist(), records, found))

    def _read(self, rows: Integers, records: Records, found: FieldColumns) -> Integers:
        """Read messages of a few shapes; return the other rows.

        A message seems to have a shape with fewer members than it has, too, so the longest shape comes first.
        """
        may_look, self._pause = not self._pause, max(0, self._pause - 1)
        if len(rows) < FEW or not (self._shapes or may_look):
            return rows
        chunk = _Chunk(rows, records, found)
        by_size = sorted(self._shapes, key=lambda one: one.shape.size, reverse=True)
        used = [known for known in by_size if len(chunk.unread) >= FEW and chunk.read(known)]
        while may_look and len(chunk.unread) >= FEW:
            if (found_shape := self._shape(chunk)) is None or chunk.read(found_shape) < FEW:
                self._pause, may_look = _PAUSE, False
            else:
                used.append(found_shape)
        self._shapes = [*used[::-1], *(one for one in self._shapes if one not in used)][:_KEPT]
        return rows[chunk.unread]

    def _shape(self, chunk: _Chunk) -> _Known | None:
        """Return the shape of an unread message that is well-formed with any value."""
        for message in chunk.examples():
            shape = shape_of(message, self._rows.paths)
            if shape is None:
                continue
            sample = self._rows.fields([shape.sample])
            texts = {name: column[0] for name, column in sample.texts.items() if column[0] is not None}
            if texts == shape.texts and not sample.rejects and not sample.options.markers:
                return _Known(shape, sample.options.monitor.get(0))
        return None

    def _read_alone(self, rows: list[int], records: Records, found: FieldColumns) -> bytes:
        """Take over what ``rows`` are one by one; return the buffer of all texts."""
        buffer = records.buffer
        if not rows:
            return buffer
        start, length = records.value_start[rows], records.value_length[rows]
        decoded = self._rows.fields(slices(buffer, start, length))
        found.whole[rows], found.fraction[rows] = decoded.numbers
        found.rejects |= {rows[index]: reason for index, reason in decoded.rejects.items()}
        found.options.add(decoded.options, rows)
        more: list[bytes] = []
        end = len(buffer)
        for name, texts in decoded.texts.items():
            contents = {
                index: text.encode() for index in range(len(rows)) if (text := texts[index]) is not None
            }
            some, named = [*contents], [rows[index] for index in contents]
            places = _places(buffer, contents.values(), start[some], length[some])
            if min(places, default=0) < 0:
                places = [*accumulate(map(len, contents.values()), initial=end)]
                more += contents.values()
                end = places.pop()
            starts, lengths = found.texts[name]
            starts[named], lengths[named] = places, [*map(len, contents.values())]
        return b"".join([buffer, *more]) if more else buffer


class _Chunk:
    """Some messages, by their rows; ``unread`` are the indexes of those that have no known shape so far."""

    def __init__(self, rows: Integers, records: Records, found: FieldColumns) -> None:
        self.unread = np.arange(len(rows))
        self._rows, self._found = rows, found
        is_slice = rows[-1] - rows[0] + 1 == len(rows)  # which needs no copies
        self._all = slice(int(rows[0]), int(rows[-1]) + 1) if is_slice else rows
        start, length = records.value_start[self._all], records.value_length[self._all]
        self._first = int(start.min())
        self._text = ByteBuffer(memoryview(records.buffer)[self._first : int((start + length).max())])
        self._start = start + (MARGIN - self._first)
        self._stop = self._start + length

    def examples(self) -> Sequence[bytes]:
        """Return a few unread messages."""
        some = self.unread[:: -(-len(self.unread) // _EXAMPLES)]
        spans = zip(self._start[some].tolist(), self._stop[some].tolist(), strict=True)
        return [self._text.text[first:last] for first, last in spans]

    def read(self, known: _Known) -> int:
        """Read unread messages that have a shape, and one value where theirs is; return how many there are."""
        is_first = len(self.unread) == len(self._rows)
        here = slice(None) if is_first else self.unread
        rows = self._all if is_first else self._rows[self.unread]
        fit = known.shape.fit(self._text, self._start[here], self._stop[here])
        self._found.whole[rows], self._found.fraction[rows] = self._values(fit)
        if THRESHOLD in fit.texts:
            self._read_thresholds(fit)
        is_unfit = ~fit.fits
        for name, (start, length) in fit.texts.items():
            starts, lengths = self._found.texts[name]
            starts[rows], lengths[rows] = start + (self._first - MARGIN), np.where(is_unfit, -1, length)
        if known.monitor is not None:
            fitting = self._rows[self.unread[fit.fits]].tolist()
            self._found.options.monitor.update(dict.fromkeys(fitting, known.monitor))
        count = len(self.unread)
        self.unread = self.unread[is_unfit]
        return count - len(self.unread)

    def _values(self, fit: Fit) -> decimals.Columns:
        """Return the values of messages; those with something that may be no JSON value do not fit."""
        start, stop = (np.where(fit.fits, one, MARGIN) for one in (fit.start, fit.stop))
        whole, fraction, odd = decimals.plain(self._text, start, stop)
        _single(_ODD)  # the first one of a chunk takes longest: it is never that of a message
        for index in np.flatnonzero(odd & fit.fits).tolist():
            number = _single(self._text.text[start.item(index) : stop.item(index)])
            fit.fits[index] = number is not None
            whole[index], fraction[index] = number or decimals.NO_NUMBER
        return whole, fraction

    def _read_thresholds(self, fit: Fit) -> None:
        """Take over the thresholds of messages; those without a valid one do not fit."""
        start, length = fit.texts.pop(THRESHOLD)
        fitting = np.flatnonzero(fit.fits)
        spans = zip(start[fitting].tolist(), (start + length)[fitting].tolist(), strict=True)
        tokens = [self._text.text[first:last] for first, last in spans]
        limits = {
            token: limit
            for token in set(tokens)
            if _NUMBER.fullmatch(token) and (limit := decimals.threshold(token)) is not None
        }
        fit.fits[fitting] = np.fromiter(map(limits.__contains__, tokens), np.bool_, len(tokens))
        given = zip(self._rows[self.unread[fitting]].tolist(), tokens, strict=True)
        self._found.options.threshold.update((row, limits[token]) for row, token in given if token in limits)


def _single(token: bytes) -> tuple[int, int] | None:
    """Return whole part and fraction of a value; None for what may be no JSON value."""
    if _NUMBER.fullmatch(token):
        return decimals.single(token)
    return decimals.NO_NUMBER if _ONE_TOKEN.fullmatch(token) or _is_json(token) else None


def _is_json(token: bytes) -> bool:
    """Return whether a short token is one JSON value, with nothing around it."""
    try:
        return token.strip() == token and len(token) < MAX_NESTING and _VALUE.decode(token) is not None
    except UNDECODABLE:
        return False


def _places(buffer: bytes, texts: Iterable[bytes], start: Integers, length: Integers) -> list[int]:
    """Return where each text is in its message, -1 for one that is written with escapes."""
    return [*map(buffer.find, texts, start.tolist(), (start + length).tolist())]
