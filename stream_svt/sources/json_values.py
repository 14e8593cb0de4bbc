"""Values at paths of JSON events: many are decoded in one call, and each as it would be alone.

A record whose bytes cannot be part of another record's object is decoded in a group, by a type that is made from the
paths. If the group does not decode, each of its records is decoded alone. One that does not fit the type is decoded
without it: what stands in the way of a path is no value, and no reason to refuse the record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, defstruct
from msgspec.json import Decoder

from stream_svt.columns.byte_buffer import Mask
from stream_svt.protocol.records import Records
from stream_svt.queries.fields import Path
from stream_svt.queries.json_lines import MAX_NESTING, UNDECODABLE, decode_lines
from stream_svt.queries.reasons import MAX_BYTES
from stream_svt.sources.fields import Literal

_GROUP: Final = 128
"""Records that are decoded in one call: one that does not fit delays only its group."""
_ANYTHING: Final = Decoder(float_hook=Literal)
_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS: Final = bytes({*range(256)} - {*b"{}[]"})
_LONG_INTEGER: Final = re.compile(rb"(?<![.\d])\d{4001,}(?![.\d])")
"""More digits than Python makes integers of."""
_STILL_LONG: Final = b"9" * 4000


class JsonValues:
    """Reads the values at some paths, each of which ends where no other one goes on."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        kind: Any
        self._getters: list[Callable[[Any], Any]]
        try:
            kind, names = _object(paths)
            self._getters = [attrgetter(names[path]) for path in paths]
        except ValueError:  # a name that a type cannot have, such as one with a quotation mark
            kind = dict[str, Any]
            self._getters = [partial(_dig, path=path) for path in paths]
        self._decoder: Decoder[Any] = Decoder(kind, float_hook=Literal)
        self._blank = self._decoder.decode(b"{}")

    def read(self, records: Records) -> tuple[list[list[Any]], Mask]:
        """Return the values at each path by record, None where there is none, and a mask of the unreadable records.

        Numbers other than integers are `Literal`.
        """
        values: list[bytes] = records.values()  # type: ignore[assignment]  # None is not decoded
        is_plain, is_bad = _plain(records), records.value_length <= 0
        rows: list[Any] = [self._blank] * len(values)
        alone = np.flatnonzero(~(is_plain | is_bad)).tolist()
        plain = np.flatnonzero(is_plain).tolist()
        for first in range(0, len(plain), _GROUP):
            group = plain[first : first + _GROUP]
            together = (
                values[first : first + _GROUP]
                if len(plain) == len(values)
                else [values[row] for row in group]
            )
            decoded = decode_lines(b"\n".join(together), len(group), self._decoder)
            if decoded is None:
                alone += group
            elif len(plain) == len(values):
                rows[first : first + _GROUP] = decoded
            else:
                for row, one in zip(group, decoded, strict=True):
                    rows[row] = one
        odd: dict[int, dict[str, Any]] = {}
        for row in alone:
            found = self._alone(values[row])
            if isinstance(found, dict):
                odd[row] = found
            elif found is None:
                is_bad[row] = True
            else:
                rows[row] = found
        columns = [_pulled(get, rows) for get in self._getters]
        for row, found in odd.items():
            for column, path in zip(columns, self._paths, strict=True):
                column[row] = _dig(found, path)
        return columns, is_bad

    def _alone(self, message: bytes) -> Struct | dict[str, Any] | None:
        """Return the members of a record that is one object, None for another one."""
        if len(message) > MAX_BYTES or _is_deep(message):
            return None
        with suppress(*UNDECODABLE):
            try:
                return self._decoder.decode(message)  # type: ignore[no-any-return]
            except msgspec.ValidationError:
                pass
            try:
                found = _ANYTHING.decode(message)
            except msgspec.ValidationError:
                found = _ANYTHING.decode(_LONG_INTEGER.sub(_STILL_LONG, message))
            return found if isinstance(found, dict) else None
        return None


def _plain(records: Records) -> Mask:
    """Return which records may be decoded as lines: see `decode_lines`."""
    length = records.value_length
    is_plain: Mask = (length > 1) & (length <= MAX_BYTES)
    if len(characters := np.frombuffer(records.buffer, np.uint8)):
        last = len(characters) - 1
        start = np.minimum(records.value_start, last)
        is_plain &= characters[start] == ord("{")
        is_plain &= characters[np.minimum(start + np.maximum(length, 1) - 1, last)] == ord("}")
    for row in np.flatnonzero(is_plain & (length > MAX_NESTING)).tolist():
        begin = records.value_start.item(row)
        is_plain[row] = _brackets(records.buffer, begin, begin + length.item(row)) <= MAX_NESTING
    return is_plain


def _brackets(buffer: bytes, start: int = 0, stop: int | None = None) -> int:
    return buffer.count(b"{", start, stop) + buffer.count(b"[", start, stop)


def _is_deep(message: bytes) -> bool:
    """Return whether objects and arrays are nested so deep that what a decoder reads depends on its caller."""
    if _brackets(message) <= MAX_NESTING:
        return False
    brackets = np.frombuffer(_TEXT.sub(b"", message).translate(None, _NO_BRACKETS), np.uint8)
    opens = (brackets == ord("{")) | (brackets == ord("["))
    return bool(np.cumsum(2 * opens.astype(np.int64) - 1).max(initial=0) > MAX_NESTING)


def _dig(found: Any, path: Path) -> Any:  # noqa: ANN401  any value
    for step in path:
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found


def _object(paths: Sequence[Path]) -> tuple[type[Struct], dict[Path, str]]:
    """Return a type for the members of an object that are on paths, and the attribute at the end of each path."""
    members: list[tuple[str, Any, Any]] = []
    names: dict[Path, str] = {}
    rename: dict[str, str] = {}
    for name in dict.fromkeys(path[0] for path in paths):
        attribute = f"f{len(members)}"
        rename[attribute] = name
        inside = [path[1:] for path in paths if path[0] == name]
        if inside == [()]:
            names[name,] = attribute
            members.append((attribute, Any, None))
        else:
            inner, within = _object(inside)
            names |= {(name, *path): f"{attribute}.{rest}" for path, rest in within.items()}
            members.append((attribute, inner | None, None))
    return defstruct("Members", members, rename=rename, gc=False, frozen=True), names


def _pulled(get: Callable[[Any], Any], rows: Sequence[Any]) -> list[Any]:
    try:
        return [*map(get, rows)]
    except AttributeError:  # an object on the path is missing
        return [_get(get, row) for row in rows]


def _get(get: Callable[[Any], Any], row: Any) -> Any:  # noqa: ANN401  any value
    try:
        return get(row)
    except AttributeError:
        return None
