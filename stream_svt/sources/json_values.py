"""Values at paths of JSON events: many are decoded in one call, and each as it would be alone.

A record whose bytes cannot be part of another record's object is decoded in a group, by a type that is made from the
paths. If the group does not decode, each of its records is decoded alone. One that does not fit the type is decoded
without it: what stands in the way of a path is no value, and no reason to refuse the record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from msgspec import Raw, Struct, defstruct
from msgspec.json import Decoder

from stream_svt.columns.byte_buffer import Integers, Mask
from stream_svt.protocol.records import Records, slices
from stream_svt.queries.fields import Path
from stream_svt.queries.json_lines import MAX_NESTING, UNDECODABLE, decode_lines
from stream_svt.queries.reasons import MAX_BYTES
from stream_svt.sources.fields import DecimalText

_GROUP: Final = 128
"""Records that are decoded in one call: one that does not fit delays only its group."""
_FAR: Final = 64
"""Bytes between records, on average, up to which they are decoded as they stand in their batches."""
_NEWLINE: Final = ord("\n")
_LARGE: Final = 1 << 16
"""Bytes of a larger record, of whose objects and arrays none is made: that would take long."""
_ANYTHING: Final = Decoder(float_hook=DecimalText)
_LONG_INTEGER: Final = re.compile(rb"(?<![.\d])\d{4001,}(?![.\d])")
"""More digits than Python makes integers of."""
_STILL_LONG: Final = b"9" * 4000
_NESTING: Final = bytes({*range(256)} - {*b'"{}[]'})
"""What does not matter for how deep objects and arrays are nested, once escapes are removed."""


class _Getter(Protocol):
    """Gets the value at a path of what was decoded; AttributeError, if an object on the path is null."""

    def __call__(self, decoded: Any, /) -> Any: ...  # noqa: ANN401  any value


class JsonValues:
    """Reads the values at some paths, none of which goes on where another one ends."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._large: Decoder[Struct] | None = None
        self._getters: list[_Getter]
        kind: Any
        try:
            kind, names = _object(paths, Any)
            self._large = Decoder(_object(paths, Raw)[0])
            self._getters = [attrgetter(names[path]) for path in paths]
        except ValueError:  # a name that no type has, such as one with a quotation mark
            kind = dict[str, Any]
            self._getters = [partial(_dig, path) for path in paths]
        self._decoder: Decoder[Any] = Decoder(kind, float_hook=DecimalText)

    def read(self, records: Records) -> tuple[list[list[Any]], Mask]:
        """Return the values at each path by record, None where there is none, and a mask of the unreadable records.

        Numbers other than integers are `DecimalText`.
        """
        is_plain, is_bad = _plain(records), records.value_length <= 0
        columns: list[list[Any]] = [[None] * len(records) for _ in self._getters]
        alone = np.flatnonzero(~(is_plain | is_bad)).tolist()
        rows = np.flatnonzero(is_plain)
        text, start, end = _as_lines(records, rows)
        for first in range(0, len(rows), _GROUP):
            group = rows[first : first + _GROUP].tolist()
            lines = text[start.item(first) : end.item(first + len(group) - 1)]
            if (decoded := decode_lines(lines, len(group), self._decoder)) is None:
                alone += group
                continue
            is_whole = group[-1] - group[0] < len(group)
            for get, column in zip(self._getters, columns, strict=True):
                pulled = _pulled(get, decoded)
                if is_whole:
                    column[group[0] : group[-1] + 1] = pulled
                else:
                    for row, value in zip(group, pulled, strict=True):
                        column[row] = value
        for row in alone:
            found = self._alone(records[row].value or b"")
            is_bad[row] = found is None
            for column, value in zip(columns, found or (), strict=found is not None):
                column[row] = value
        return columns, is_bad

    def _alone(self, message: bytes) -> list[Any] | None:
        """Return the values of a record that is one object, None for another one."""
        if len(message) > MAX_BYTES or _is_deep(message):
            return None
        with suppress(*UNDECODABLE):
            if len(message) > _LARGE and self._large is not None:
                large = self._large.decode(message)
                return [_value(_get(get, large)) for get in self._getters]
            try:
                typed = self._decoder.decode(message)
                return [_get(get, typed) for get in self._getters]
            except msgspec.ValidationError:
                found = _decoded(message)
                return [_dig(path, found) for path in self._paths] if isinstance(found, dict) else None
        return None


def _plain(records: Records) -> Mask:
    """Return which records may be decoded as lines (see `decode_lines`), and need no other check."""
    length = records.value_length
    is_plain: Mask = (length > 1) & (length <= _LARGE)
    if len(characters := np.frombuffer(records.buffer, np.uint8)):
        last = len(characters) - 1
        start = np.minimum(records.value_start, last)
        is_plain &= characters[start] == ord("{")
        is_plain &= characters[np.minimum(start + np.maximum(length, 1) - 1, last)] == ord("}")
    for row in np.flatnonzero(is_plain & (length > MAX_NESTING)).tolist():
        begin = records.value_start.item(row)
        is_plain[row] = _brackets(records.buffer, begin, begin + length.item(row)) <= MAX_NESTING
    return is_plain


def _as_lines(records: Records, rows: Integers) -> tuple[bytes, Integers, Integers]:
    """Return a text in which some records stand with newlines between them, and where each begins and ends."""
    start, length = records.value_start[rows], records.value_length[rows]
    end = start + length
    between = start[1:] - end[:-1]
    if not len(rows) or int(between.min(initial=1)) < 1 or int(between.sum()) > _FAR * len(rows):
        end = np.cumsum(length + 1) - 1
        lines = b"\n".join(slices(records.buffer, start, length))  # type: ignore[arg-type]  # none is null
        return lines, end - length, end
    # As they stand in their batches: what is between them becomes newlines.
    begin = start.item(0)
    text = np.frombuffer(records.buffer, np.uint8, end.item(-1) - begin, begin).copy()
    start, end = start - begin, end - begin
    ends = np.cumsum(between)
    text[np.repeat(end[:-1] - ends + between, between) + np.arange(ends[-1] if len(ends) else 0)] = _NEWLINE
    return text.tobytes(), start, end


def _brackets(buffer: bytes, start: int = 0, stop: int | None = None) -> int:
    return buffer.count(b"{", start, stop) + buffer.count(b"[", start, stop)


def _is_deep(message: bytes) -> bool:
    """Return whether objects and arrays are nested so deep that what a decoder reads depends on its caller."""
    if _brackets(message) <= MAX_NESTING:
        return False
    text = message.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NESTING)
    characters = np.frombuffer(text, np.uint8)
    is_outside = ~np.logical_xor.accumulate(characters == ord('"'))
    kinds = characters[is_outside] | 0x20  # which makes braces of brackets
    steps = (kinds == ord("{")).astype(np.int64) - (kinds == ord("}"))
    return bool(np.cumsum(steps).max(initial=0) > MAX_NESTING)


def _decoded(content: bytes | Raw) -> Any:  # noqa: ANN401  any value
    """Return a value, in which an integer of more digits than Python makes integers of is another such one."""
    try:
        return _ANYTHING.decode(content)
    except msgspec.ValidationError:
        return _ANYTHING.decode(_LONG_INTEGER.sub(_STILL_LONG, bytes(content)))


def _value(content: Raw | None) -> Any:  # noqa: ANN401  any value
    """Return a value of a large record, None for an object or array."""
    return None if content is None or bytes(content)[:1] in {b"{", b"["} else _decoded(content)


def _dig(path: Path, found: Any) -> Any:  # noqa: ANN401  any value
    for step in path:
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found


def _object(paths: Sequence[Path], kind: Any) -> tuple[type[Struct], dict[Path, str]]:  # noqa: ANN401  a type
    """Return a type for the members of an object that are on paths, and the attribute at the end of each path.

    ``kind`` is the type of values; None stands for a missing one.
    """
    members: list[tuple[str, Any, Any]] = []
    rename: dict[str, str] = {}
    names: dict[Path, str] = {}
    for name in dict.fromkeys(path[0] for path in paths):
        attribute = f"f{len(members)}"
        rename[attribute] = name
        if (name,) in paths:
            names[name,] = attribute
            members.append((attribute, kind, None))
        else:
            inner, within = _object([path[1:] for path in paths if path[0] == name], kind)
            names |= {(name, *path): f"{attribute}.{rest}" for path, rest in within.items()}
            members.append((attribute, inner | None, inner()))
    return defstruct("Members", members, rename=rename, gc=False, frozen=True), names


def _pulled(get: _Getter, rows: Sequence[Any]) -> list[Any]:
    try:
        return [*map(get, rows)]
    except AttributeError:
        return [_get(get, row) for row in rows]


def _get(get: _Getter, row: Any) -> Any:  # noqa: ANN401  any value
    try:
        return get(row)
    except AttributeError:
        return None
