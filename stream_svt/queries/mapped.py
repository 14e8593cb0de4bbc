"""Decodes JSON records whose fields a `RecordLayout` maps.

A batch is decoded in one call by a type that is made from the layout. Only if a record does not fit this type, the
records around it are decoded one by one, and each field is looked up by itself: what stands at the path of the value,
or instead of an object on that path, never leads to a rejection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct, defstruct

from stream_svt.columns import decimals
from stream_svt.columns.strings import TextList
from stream_svt.queries.fast_json.columns import Columns, Options
from stream_svt.queries.fast_json.templates import Paths
from stream_svt.queries.json_lines import UNDECODABLE, bad_size, decode_lines, decode_one, reason_of
from stream_svt.queries.reasons import MAX_TEXT, Reason
from stream_svt.settings.records import RecordLayout, steps

_NOTHING: Final = Raw(b"")
_TEXT: Final = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)] | int | bool | None
_TEXT_DECODER: Final = msgspec.json.Decoder(_TEXT)
_GROUP: Final = 32
"""Records decoded one by one where one of them does not fit."""
_PLAIN: Final = {str, type(None)}
_LARGEST: Final = 10 ** (MAX_TEXT - 1)
BAD: Final = {"id": Reason.BAD_ID, "series": Reason.BAD_SERIES, "set": Reason.BAD_SET}


@dataclass(frozen=True, slots=True)
class _Object:
    """An object on a path: its type with all mapped fields, and one whose fields are not decoded."""

    typed: type[Struct]
    loose: msgspec.json.Decoder[Struct]
    fields: dict[str, tuple[str, _Object | None]]
    """Attribute by name, with the object that it holds; None at the end of a path."""


def _object(paths: Sequence[tuple[tuple[str, ...], Any, Any]]) -> _Object:
    """Return the types of an object from the paths in it, each with the type at its end and a default."""
    typed: list[tuple[str, Any, Any]] = []
    fields: dict[str, tuple[str, _Object | None]] = {}
    for name in dict.fromkeys(path[0] for path, _, _ in paths):
        inner = [(path[1:], kind, default) for path, kind, default in paths if path[0] == name]
        attribute = f"f{len(typed)}"
        if not inner[0][0]:
            typed.append((attribute, *inner[0][1:]))
            fields[name] = attribute, None
        else:
            held = _object(inner)
            typed.append((attribute, held.typed | None, held.typed()))
            fields[name] = attribute, held
    rename = {attribute: name for name, (attribute, _) in fields.items()}
    loose = [(attribute, Raw, _NOTHING) for attribute in rename]
    kinds = [defstruct("Fields", one, rename=rename, gc=False, frozen=True) for one in (typed, loose)]
    return _Object(kinds[0], msgspec.json.Decoder(kinds[1]), fields)


class MappedJson:
    """Decodes the records of one topic by its layout."""

    def __init__(self, layout: RecordLayout) -> None:
        self.paths = Paths(steps(layout.value), layout.texts)
        text = [(path, _TEXT, None) for path in self.paths.texts.values()]
        self._root = _object([(self.paths.value, Raw, _NOTHING), *text])
        self._decoder = msgspec.json.Decoder(self._root.typed)
        paths = {"value": self.paths.value, **self.paths.texts}
        self._getters = {name: attrgetter(self._attributes(path)) for name, path in paths.items()}

    def _attributes(self, path: Sequence[str]) -> str:
        names, held = [], self._root
        for step in path:
            attribute, inner = held.fields[step]
            names.append(attribute)
            held = inner or held
        return ".".join(names)

    def decode(self, values: Sequence[bytes | None]) -> Columns:
        """Return the fields of records, given their contents."""
        rejects: dict[int, Reason] = {}
        columns = self._together(values)
        if columns is None:
            columns = [[] for _ in self._getters]
            for start in range(0, len(values), _GROUP):
                group = values[start : start + _GROUP]
                found = self._together(group) or self._one_by_one(group, start, rejects)
                for column, more in zip(columns, found, strict=True):
                    column.extend(more)
        texts = {
            name: TextList(texts_of(name, column, rejects))
            for name, column in zip(self.paths.texts, columns[1:], strict=True)
        }
        return Columns(decimals.columns(columns[0]), texts, rejects, Options.none())

    def _together(self, values: Sequence[bytes | None]) -> list[list[Any]] | None:
        """Return the fields of records, value first; None if a record does not fit."""
        decoded = decode_lines(values, self._decoder)
        return None if decoded is None else [self._pull(name, decoded) for name in self._getters]

    def _one_by_one(
        self, values: Sequence[bytes | None], start: int, rejects: dict[int, Reason]
    ) -> list[list[Any]]:
        """Return the fields of records from row ``start`` on, value first, and add those that are rejected."""
        rows = []
        for row, value in enumerate(values, start):
            fields = self._decode_one(value or b"")
            if isinstance(fields, Reason):
                rejects[row] = fields
                fields = [_NOTHING, *(None for _ in self.paths.texts)]
            rows.append(fields)
        return [list(column) for column in zip(*rows, strict=True)]

    def _pull(self, name: str, decoded: Sequence[Struct]) -> list[Any]:
        """Return a field of decoded records; an object on its path may be null."""
        get = self._getters[name]
        try:
            return list(map(get, decoded))
        except AttributeError:
            missing = _NOTHING if name == "value" else None
            return [_get(get, one, missing) for one in decoded]

    def _decode_one(self, message: bytes) -> list[Any] | Reason:
        """Return the fields of one record, value first, or why it is rejected."""
        if (reason := bad_size(message)) is not None:
            return reason
        try:
            found = decode_one(message, self._root.loose, self.paths.value)
            texts = [_text(self._dig(found, path), name) for name, path in self.paths.texts.items()]
        except UNDECODABLE as error:
            return reason_of(error)
        return [self._dig(found, self.paths.value), *texts]

    def _dig(self, found: Struct, path: Sequence[str]) -> Raw:
        """Return what is at a path, `_NOTHING` if there is nothing."""
        held = self._root
        for step in path:
            attribute, inner = held.fields[step]
            content: Raw = getattr(found, attribute)
            if inner is None:
                return content
            try:
                found = inner.loose.decode(content)
            except UNDECODABLE:  # missing, or no object
                return _NOTHING
            held = inner
        return _NOTHING


def _get(get: Callable[[Struct], Any], decoded: Struct, missing: Any) -> Any:  # noqa: ANN401  any field
    try:
        return get(decoded)
    except AttributeError:
        return missing


def _text(content: Raw, name: str) -> str | int | Reason | None:
    """Return a JSON text, integer or boolean, None if it is missing; a reason for anything else."""
    if not bytes(content):
        return None
    try:
        found: str | int | None = _TEXT_DECODER.decode(content)
        return found
    except msgspec.ValidationError:
        return BAD[name]


def texts_of(name: str, column: list[Any], rejects: dict[int, Reason]) -> list[str | None]:
    """Return a column of texts; what is refused or, for an id, missing, is added to ``rejects``."""
    if not _PLAIN.issuperset(map(type, column)):
        column = [
            one
            if (kind := type(one)) in _PLAIN
            else str(one)
            if kind is int and -_LARGEST < one < _LARGEST
            else as_text(one, name)
            for one in column
        ]
        if Reason in set(map(type, column)):
            for row in (row for row, one in enumerate(column) if isinstance(one, Reason)):
                rejects.setdefault(row, BAD[name])
    if name == "id" and None in column:
        for row in (row for row, one in enumerate(column) if one is None):
            rejects.setdefault(row, Reason.MISSING_ID)
    return column


def as_text(found: bool | int | Reason, name: str) -> str:
    """Return the text of an integer or boolean, a `Reason` if it is too long."""
    if isinstance(found, Reason):
        return found
    if isinstance(found, bool):
        return str(found).lower()
    return str(found) if abs(found) < _LARGEST else BAD[name]
