"""Shapes of JSON messages, which are matched for many messages at once.

The shape of messages is the bytes that they share: `{"id":"`, `","value":`, `,"series":"`, `"}`. Between them stand
texts, integers, and the value. The part before the value is matched from the left end of a message, the part behind it
from the right end: the value is whatever stands between, and its form and size change no step. Nor does its lack: a
message has the same shape without the member.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from stream_svt.columns.byte_buffer import MARGIN, ByteBuffer, Integers, Literal, Mask
from stream_svt.queries.fields import Path
from stream_svt.queries.json_lines import WHITESPACE
from stream_svt.queries.json_records import Paths
from stream_svt.queries.reasons import MAX_TEXT


class FieldKind(Enum):
    """What stands between two fixed parts of a shape."""

    TEXT = auto()
    INTEGER = auto()
    THRESHOLD = auto()


THRESHOLD: Final = "threshold"
_FIXED: Final = {("closed",), ("monitor",)}
"""Paths of options that are part of a shape."""
_LONGEST: Final = {FieldKind.TEXT: MAX_TEXT, FieldKind.INTEGER: 18, FieldKind.THRESHOLD: 64}
"""Most bytes of what has a name, or is no text."""
_MAX_TOKENS: Final = 1 << 12
"""Tokens of a message whose shape is looked for."""
_QUOTE, _ZERO = b'"0'
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^"{}\[\],: \t\r\n]++|[ \t\r\n]++', re.DOTALL)
_NAME: Final = re.compile(rb'"([^"\\\x00-\x1f\x80-\xff]*)"')
_NUMBER: Final = re.compile(rb"[-0-9]")
_INTEGER: Final = re.compile(rb"0|[1-9][0-9]*")

Tokens: TypeAlias = Sequence[re.Match[bytes]]


class Field(NamedTuple):
    """What stands from ``start`` to ``stop`` in a message, and the names of the texts that it is."""

    start: int
    stop: int
    kind: FieldKind
    names: tuple[str, ...]


class Fit(NamedTuple):
    """Which messages have a shape, where their values are (empty: none), and start and length of their texts by name.

    The threshold, where a message has one, is the text `THRESHOLD`; it may be no number.
    """

    fits: Mask
    start: Integers
    stop: Integers
    texts: dict[str, tuple[Integers, Integers]]


class Extent(NamedTuple):
    """Where a value is from ``start`` to ``stop``, and what is left out together with it, a comma included."""

    start: int
    stop: int
    first: int
    last: int


class Shape:
    """The fixed parts of a message, between its ``fields`` and its value."""

    def __init__(self, message: bytes, fields: Sequence[Field], value: Extent) -> None:
        start, stop, first, last = value
        self.sample = message[:start] + b"0" + message[stop:]
        """The message with another value."""
        self.size = len(message) - (stop - start) - sum(one.stop - one.start for one in fields)
        """Bytes that are fixed."""
        named = [(one, name) for one in fields for name in one.names if one.kind is not FieldKind.THRESHOLD]
        self.texts = {name: message[one.start : one.stop].decode(errors="replace") for one, name in named}
        """Its texts by name, without those that are part of the shape."""
        self._is_ascii = all(message[one.start : one.stop].isascii() for one in fields)
        left = [field for field in fields if field.stop <= start]
        right = [field for field in fields if field.start >= last]
        self._left = [*zip(_literals(message, 0, left, first), [*left, None], strict=True)]
        self._name, self._comma = Literal(message[first:start]), Literal(message[stop:last])
        self._right = [*zip(_literals(message, last, right, len(message)), [None, *right], strict=True)][::-1]

    def fit(self, text: ByteBuffer, start: Integers, stop: Integers) -> Fit:
        """Match messages from ``start`` to ``stop``, indexes of ``text``."""
        texts: dict[str, tuple[Integers, Integers]] = {}
        fits, differs = np.ones(len(start), np.bool_), np.zeros(len(start), np.uint64)
        for literal, field in self._left:
            differs |= literal.difference(text, start)
            start = start + literal.size
            if field is not None:
                length = text.distance(self._marks(text, field), start)
                fits &= _is_valid(text, field, start, length)
                texts |= dict.fromkeys(field.names, (start, length))
                start = start + length
        for literal, field in self._right:
            stop = stop - literal.size
            differs |= literal.difference(text, stop)
            if field is not None:
                length = text.distance(self._marks(text, field), stop, backwards=True)
                stop = stop - length
                fits &= _is_valid(text, field, stop, length)
                texts |= dict.fromkeys(field.names, (stop, length))
        lacks_value = start == stop
        differs_in_name = self._name.difference(text, start)
        start, stop = start + self._name.size, stop - self._comma.size
        differs_in_name |= self._comma.difference(text, stop)
        fits &= (differs == 0) & ((differs_in_name == 0) & (start <= stop) | lacks_value)
        return Fit(fits, np.minimum(start, stop), stop, texts)

    def _marks(self, text: ByteBuffer, field: Field) -> Mask:
        if field.kind is FieldKind.TEXT:
            return text.text_ends if self._is_ascii else text.unicode_ends
        return text.no_digits if field.kind is FieldKind.INTEGER else text.number_ends


def _literals(message: bytes, start: int, fields: Sequence[Field], stop: int) -> list[Literal]:
    """Return what is between fields."""
    starts, stops = [start, *(field.stop for field in fields)], [*(field.start for field in fields), stop]
    return [Literal(message[first:last]) for first, last in zip(starts, stops, strict=True)]


def _is_valid(text: ByteBuffer, field: Field, start: Integers, length: Integers) -> Mask:
    """Return a mask of the valid fields: well-formed JSON, but for thresholds."""
    if field.kind is FieldKind.TEXT and not field.names:
        return length >= 0
    found: Mask = (length > 0) & (length <= _LONGEST[field.kind])
    if field.kind is FieldKind.INTEGER:
        found &= (text.characters[start] != _ZERO) | (length == 1)
    return found


def shape_of(message: bytes, paths: Paths) -> Shape | None:
    """Return the shape of a message, None if it has none. The shape of a malformed message has a malformed sample."""
    if (tokens := _tokens(message)) is None:
        return None
    fields: list[Field] = []
    names: list[str] = []
    seen: set[Path] = set()
    extent = last = None
    index = 0
    while index < len(tokens):
        match, token = tokens[index], tokens[index][0]
        if last == b":" and (path := tuple(names)) == paths.value:
            end = _end_of_value(tokens, index)
            extent = _extent(tokens, index, end)
            index, last = end, b""
            continue
        if token in {b"[", b"]"}:
            return None
        if token == b"{":
            names.append("")
        elif token == b"}":
            names = names[:-1]
        elif last in {b"{", b","}:
            if not names or (name := _NAME.fullmatch(token)) is None:
                return None
            names[-1] = name[1].decode()
            if (path := tuple(names)) in seen:
                return None
            seen.add(path)
        elif last == b":" and paths.has_options and path == (THRESHOLD,):
            fields += (
                [Field(*match.span(), FieldKind.THRESHOLD, (THRESHOLD,))] if _NUMBER.match(token) else []
            )
        elif last == b":" and not (paths.has_options and path in _FIXED):
            fields += _field(match, tuple(name for name, where in paths.texts.items() if where == path))
        last = token
        index += 1
    if extent is None:
        return None
    shape = Shape(message, fields, extent)
    return shape if shape.size < MARGIN - 64 else None


def _tokens(message: bytes) -> Tokens | None:
    """Return the tokens of a message, without whitespace; None if they are too many or something else is between."""
    tokens = list(islice(_TOKEN.finditer(message), _MAX_TOKENS))
    if sum(match.end() - match.start() for match in tokens) < len(message):
        return None
    return [match for match in tokens if match[0][0] not in WHITESPACE]


def _end_of_value(tokens: Tokens, index: int) -> int:
    """Return the index of the token behind a member's content that begins at ``index``."""
    depth = 0
    for end in range(index, len(tokens)):
        token = tokens[end][0]
        if not depth and token in {b",", b"}"}:
            return end
        depth += (token in {b"{", b"["}) - (token in {b"}", b"]"})
    return len(tokens)


def _extent(tokens: Tokens, index: int, end: int) -> Extent:
    """Return where the value is that begins at the token ``index`` and ends before ``end``."""
    start = tokens[index].start()
    stop = tokens[end - 1].end() if end > index else start
    if tokens[index - 3][0] == b",":
        return Extent(start, stop, tokens[index - 4].end(), stop)
    is_last = end + 1 >= len(tokens) or tokens[end][0] != b","
    return Extent(start, stop, tokens[index - 2].start(), stop if is_last else tokens[end + 1].start())


def _field(match: re.Match[bytes], names: tuple[str, ...]) -> list[Field]:
    start, stop = match.span()
    if match[0][0] == _QUOTE:
        return [Field(start + 1, stop - 1, FieldKind.TEXT, names)]
    return [Field(start, stop, FieldKind.INTEGER, names)] if _INTEGER.fullmatch(match[0]) else []
