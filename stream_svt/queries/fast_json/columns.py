"""Reads many JSON messages as columns: those of a common shape together, all others as a `RowDecoder` reads them.

A message whose value is no plain number is looked at alone; its neighbours take the same steps with or without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from msgspec import Raw
from msgspec.json import Decoder

from stream_svt.columns import decimals
from stream_svt.columns.byte_buffer import MARGIN, ByteBuffer, Integers, Mask
from stream_svt.columns.strings import TextList, TextSlices
from stream_svt.protocol.records import slices
from stream_svt.queries.fast_json.templates import THRESHOLD, Fit, Paths, Shape, shape_of
from stream_svt.queries.json_lines import MAX_NESTING, UNDECODABLE
from stream_svt.queries.reasons import MAX_BYTES, Reason

FEW: Final = 200
"""Messages for which the steps of many are not worth it."""
_KEPT: Final = 3
"""Shapes that are tried again in the next messages, and one more."""
_EXAMPLES: Final = 8
"""Most messages in which a shape is looked for: each may lack the value, or hold one of too many tokens."""
_LONG: Final = 256
"""Bytes up to which messages are read in chunks of `exact.CHUNK`; of longer ones, a chunk has fewer."""
_LONGEST_PAUSE: Final = 32
"""Most chunks in which no other shape is looked for, after those in which none was found."""
_VALUE: Final = Decoder(Raw)
_QUOTE, _BACKSLASH = b'"\\'
_ODD: Final = b"1e3"
"""A value that is no plain number."""
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_ONE_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^"{}\[\],: \t\r\n]*+', re.DOTALL)
"""Nothing, a text or a word, well-formed or not: whatever it is, the rest of its message is as if null stood there."""


class Options(NamedTuple):
    """Options of queries by row, as in `QueryBatch`."""

    threshold: dict[int, Fraction]
    monitor: dict[int, str]
    markers: dict[int, str]

    @classmethod
    def none(cls) -> Options:
        """Return no options."""
        return cls({}, {}, {})

    def replace(self, other: Options, rows: Sequence[int]) -> None:
        """Replace the options of ``rows``."""
        every: Iterable[dict[int, Any]] = self
        for option in filter(None, every):
            for row in rows:
                option.pop(row, None)
        self.threshold.update((rows[row], limit) for row, limit in other.threshold.items())
        self.monitor.update((rows[row], name) for row, name in other.monitor.items())
        self.markers.update((rows[row], name) for row, name in other.markers.items())

    def of(self, rows: Integers) -> Options:
        """Return the options of some rows, by their indexes in ``rows``."""
        number = {row: index for index, row in enumerate(rows.tolist())} if any(self) else {}
        return Options(*(_of(one, number) for one in self))


def _of(option: dict[int, Any], number: dict[int, int]) -> dict[int, Any]:
    return {number[row]: option[row] for row in sorted(option) if row in number}


class Columns(NamedTuple):
    """Fields of messages: numbers as of `exact`, texts, options. The fields of ``rejects``, by row, are void."""

    numbers: decimals.Columns
    texts: Mapping[str, TextList | TextSlices]
    rejects: dict[int, Reason]
    options: Options


class RowDecoder(Protocol):
    """Decodes messages of one form."""

    @property
    def paths(self) -> Paths:
        """Where the fields are; options are fixed."""

    def decode(self, values: Sequence[bytes | None]) -> Columns:
        """Return the fields of messages."""


class JsonReader:
    """Reads the messages of a topic; ``rows`` decodes those without a common shape."""

    def __init__(self, rows: RowDecoder) -> None:
        self._rows = rows
        self._shapes: list[tuple[Shape, str | None]] = []
        self._pause, self._next_pause = 0, 1

    def read(self, buffer: bytes, start: Integers, length: Integers, refused: Mask) -> Columns:
        """Return the fields of messages, slices of ``buffer`` (length -1: null); what is ``refused`` stays void."""
        if len(start) < FEW and not refused.any():
            return self._rows.decode(slices(buffer, start, length))
        found = _Found(buffer, start, length, self._rows.paths.texts)
        is_candidate = ~refused & (length > 0) & (length <= MAX_BYTES)
        candidates = np.flatnonzero(is_candidate)
        rest: list[Integers] = [np.flatnonzero(~(refused | is_candidate))]
        size = _rows_at_once(length[candidates])
        for first in range(0, len(candidates), size):
            rows = candidates[first : first + size]
            rest.append(rows if len(rows) < FEW else self._read_together(rows, found))
        rows = np.sort(np.concatenate(rest))
        if len(rows) == len(start):
            return self._rows.decode(found.messages(rows.tolist()))
        self._read_alone(rows.tolist(), found)
        return found.columns()

    def _read_together(self, rows: Integers, found: _Found) -> Integers:
        """Read messages of a few shapes, and those alone whose value may be no JSON value; return the other rows."""
        is_paused = self._pause > 0
        self._pause -= is_paused
        if is_paused and not self._shapes:
            return rows
        chunk = _Chunk(found, rows)
        self._match(chunk, looks_for_more=not is_paused)
        if len(chunk.unread) == len(rows):
            return rows
        alone = chunk.numbers()
        if len(alone) >= FEW:
            alone = self._match_again(_Chunk(found, np.array(alone)), found)
        self._read_alone(alone, found)
        return chunk.rest()

    def _match_again(self, chunk: _Chunk, found: _Found) -> list[int]:
        """Read messages with more members than the shape that they seemed to have; return the rows without a shape."""
        found.clear(chunk.rest())
        if (shape := self._shape(chunk)) is not None:
            chunk.read(*shape)
            self._shapes = [shape, *self._shapes][:_KEPT]
        return sorted([*chunk.numbers(), *chunk.rest().tolist()])

    def _read_alone(self, rows: list[int], found: _Found) -> None:
        if rows:
            found.put(self._rows.decode(found.messages(rows)), rows)

    def _match(self, chunk: _Chunk, *, looks_for_more: bool) -> None:
        """Try the shapes of earlier messages, then those of messages that have none of these, as long as many have.

        Where that is in vain, twice as many chunks as the last time pass before it is done again.
        A message seems to have a shape with fewer members than it has, too, so the longest shape comes first.
        """
        tried: list[tuple[int, Shape, str | None]] = []
        known = iter(sorted(self._shapes, key=lambda one: one[0].size, reverse=True))
        while len(chunk.unread) >= FEW and len(tried) <= _KEPT:
            is_new = len(tried) >= len(self._shapes)
            if is_new and not looks_for_more:
                break
            if (shape := next(known, None) or self._shape(chunk)) is None:
                self._stop_looking()
                break
            tried.append((chunk.read(*shape), *shape))
            if is_new and tried[-1][0] < FEW:
                self._stop_looking()
                break
            if is_new:
                self._next_pause = 1
        tried.sort(key=itemgetter(0), reverse=True)
        few = min(FEW, chunk.size // 8)
        common = [(shape, monitor) for count, shape, monitor in tried if count > 0 and count >= few]
        self._shapes = [*common, *known][:_KEPT]

    def _stop_looking(self) -> None:
        self._pause = self._next_pause
        self._next_pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _shape(self, chunk: _Chunk) -> tuple[Shape, str | None] | None:
        """Return the shape of an unread message that is well-formed with any value, and its monitor."""
        for message in chunk.examples():
            shape = shape_of(message, self._rows.paths)
            if shape is None:
                continue
            sample = self._rows.decode([shape.sample])
            texts = {name: column[0] for name, column in sample.texts.items() if column[0] is not None}
            if texts == shape.texts and not sample.rejects and not sample.options.markers:
                return shape, sample.options.monitor.get(0)
        return None


def _rows_at_once(length: Integers) -> int:
    """Return how many messages of some lengths a chunk has: half as many where an eighth of them is twice as long.

    The length of a message contains that of its value. It is no secret from whoever can time a batch: he sees the bytes
    of the topic arrive. Nevertheless a single value never decides: an eighth of the messages does.
    """
    rows, bound = decimals.CHUNK, _LONG
    while rows >= 4 * FEW and 8 * np.count_nonzero(length > bound) > len(length):
        rows, bound = rows // 2, 2 * bound
    return rows


class _Found:
    """The fields of messages by row, as far as they are read."""

    def __init__(self, buffer: bytes, start: Integers, length: Integers, names: Iterable[str]) -> None:
        self.buffer, self.start, self.length = buffer, start, length
        count = len(start)
        self.whole, self.fraction = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.texts = {name: (np.zeros(count, np.int64), np.full(count, -1)) for name in names}
        self._rejects: dict[int, Reason] = {}
        self.options = Options.none()
        self._more: list[bytes] = []
        self._end = len(buffer)

    def messages(self, rows: list[int]) -> list[bytes | None]:
        """Return some messages."""
        return slices(self.buffer, self.start[rows], self.length[rows])

    def clear(self, rows: Integers) -> None:
        """Forget texts and options of some rows."""
        self.options.replace(Options.none(), rows.tolist())
        for _, length in self.texts.values():
            length[rows] = -1

    def put(self, columns: Columns, rows: list[int]) -> None:
        """Take over what was decoded of some rows."""
        self.whole[rows], self.fraction[rows] = columns.numbers
        self._rejects |= {rows[row]: reason for row, reason in columns.rejects.items()}
        self.options.replace(columns.options, rows)
        for name, (start, length) in self.texts.items():
            length[rows] = -1
            if (texts := columns.texts.get(name)) is None:
                continue
            contents = {
                row: text.encode() for index, row in enumerate(rows) if (text := texts[index]) is not None
            }
            if contents:
                named = list(contents)
                start[named] = self._places(contents)
                length[named] = list(map(len, contents.values()))

    def _places(self, contents: dict[int, bytes]) -> list[int]:
        """Return where texts are, by row: in their message or, if that is not easily found, behind the buffer."""
        texts = contents.values()
        if len(contents) < FEW:  # a few must not cost a copy of the buffer
            start = self.start[list(contents)]
            stop = start + self.length[list(contents)]
            places = list(map(self.buffer.find, texts, start.tolist(), stop.tolist()))
            if min(places) >= 0:
                return places
        ends = list(accumulate(map(len, texts), initial=self._end))
        self._more += texts
        self._end = ends.pop()
        return ends

    def columns(self) -> Columns:
        """Return all fields, without the texts other than ids that no row has."""
        buffer = b"".join([self.buffer, *self._more]) if self._more else self.buffer
        texts = {
            name: TextSlices(buffer, start, length)
            for name, (start, length) in self.texts.items()
            if name == "id" or (length >= 0).any()
        }
        return Columns((self.whole, self.fraction), texts, self._rejects, self.options)


class _Chunk:
    """Some messages, by their rows; ``unread`` are the indexes of those that have no known shape so far."""

    def __init__(self, found: _Found, rows: Integers) -> None:
        self.size, self.unread = len(rows), np.arange(len(rows))
        self._found, self._rows = found, rows
        # All rows as a slice, where they are one: that needs no copies.
        if rows[-1] - rows[0] + 1 == len(rows):
            self._all: slice | Integers = slice(int(rows[0]), int(rows[-1]) + 1)
        else:
            self._all = rows
        start, length = found.start[self._all], found.length[self._all]
        self._first = int(start.min())
        self._text = ByteBuffer(memoryview(found.buffer)[self._first : int((start + length).max())])
        self._start = start + (MARGIN - self._first)
        self._stop = self._start + length
        self._begin = np.full(self.size, MARGIN)
        self._end = self._begin.copy()

    def examples(self) -> Iterator[bytes]:
        """Yield a few unread messages."""
        for row in self._rows[self.unread[:: -(-len(self.unread) // _EXAMPLES)]].tolist():
            yield from filter(None, self._found.messages([row]))

    def read(self, shape: Shape, monitor: str | None) -> int:
        """Read the texts of unread messages that have a shape, and where their values are; return how many have it."""
        is_first = len(self.unread) == self.size
        here = slice(None) if is_first else self.unread
        fit = shape.fit(self._text, self._start[here], self._stop[here])
        if THRESHOLD in fit.texts:
            self._read_thresholds(fit)
        unfit = self.unread[~fit.fits]
        self._begin[here], self._end[here] = fit.start, fit.stop
        self._begin[unfit] = self._end[unfit] = MARGIN
        rows = self._all if is_first else self._rows[self.unread]
        for name, (start, length) in fit.texts.items():
            starts, lengths = self._found.texts[name]
            starts[rows], lengths[rows] = start + (self._first - MARGIN), length
            lengths[self._rows[unfit]] = -1
        if monitor is not None:
            self._found.options.monitor.update(
                dict.fromkeys(self._rows[self.unread[fit.fits]].tolist(), monitor)
            )
        count = len(self.unread) - len(unfit)
        self.unread = unfit
        return count

    def _read_thresholds(self, fit: Fit) -> None:
        """Take over the thresholds of messages; those without a valid one do not fit."""
        start, length = fit.texts.pop(THRESHOLD)
        fitting = np.flatnonzero(fit.fits)
        rows = self._rows[self.unread[fitting]].tolist()
        text, spans = (
            self._text.text,
            zip(start[fitting].tolist(), (start + length)[fitting].tolist(), strict=True),
        )
        tokens = [text[first:last] for first, last in spans]
        limits = {
            token: limit
            for token in set(tokens)
            if _NUMBER.fullmatch(token) and (limit := decimals.threshold(token)) is not None
        }
        fit.fits[fitting] = np.fromiter(map(limits.__contains__, tokens), np.bool_, len(tokens))
        given = zip(rows, tokens, strict=True)
        self._found.options.threshold.update((row, limits[token]) for row, token in given if token in limits)

    def rest(self) -> Integers:
        """Return the rows that are still unread."""
        return self._rows[self.unread]

    def numbers(self) -> list[int]:
        """Read the values of all messages that have a shape; return the rows whose value may be no JSON value."""
        whole, fraction, odd = decimals.plain(self._text, self._begin, self._end)
        whole[odd], fraction[odd] = decimals.NO_NUMBER
        odd[self.unread] = False
        rows = np.flatnonzero(odd)
        text, alone = self._text.text, []
        _single(_ODD, 0, len(_ODD))  # the first one of a chunk takes longest: it is never that of a message
        for row, begin, end in zip(
            rows.tolist(), self._begin[rows].tolist(), self._end[rows].tolist(), strict=True
        ):
            if (number := _single(text, begin, end)) is None:
                alone.append(int(self._rows[row]))
            else:
                whole[row], fraction[row] = number
        self._found.whole[self._all], self._found.fraction[self._all] = whole, fraction
        return alone


def _single(text: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Return whole part and fraction of the token in one place; None if it may be no JSON value."""
    if _is_plain_text(text, begin, end):
        return decimals.NO_NUMBER
    if not _ONE_TOKEN.fullmatch(text, begin, end):
        return decimals.NO_NUMBER if _is_json(text[begin:end]) else None
    is_number = _NUMBER.fullmatch(text, begin, end)
    return decimals.split(decimals.number(text[begin:end])) if is_number else decimals.NO_NUMBER


def _is_plain_text(text: bytes, begin: int, end: int) -> bool:
    """Return whether one text of JSON stands in a place, without a quote in it: most of what `_ONE_TOKEN` matches."""
    last = end - 1
    return text[begin] == _QUOTE and text.find(b'"', begin + 1, end) == last and text[last - 1] != _BACKSLASH


def _is_json(token: bytes) -> bool:
    """Return whether a short token is one JSON value, with nothing around it."""
    try:
        return token.strip() == token and len(token) < MAX_NESTING and _VALUE.decode(token) is not None
    except UNDECODABLE:
        return False
