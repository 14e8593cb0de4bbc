"""Decodes JSON records: this service's own messages, or those of a topic whose fields a `RecordLayout` maps.

Own messages are a layout, too: fields at the top, and options. Records are decoded in groups, in one call for each, by
a type that is made from the layout. In a group in which a record does not fit that type, ever fewer records are decoded
together, and at last one alone, field by field: what stands at the path of the value, or instead of an object on that
path, never leads to a rejection. What is not a number there becomes the monitor's lower bound, and is not counted or
logged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta, Raw, Struct, ValidationError, defstruct
from msgspec.json import Decoder

from stream_svt.columns import decimals
from stream_svt.columns.strings import TextList
from stream_svt.protocol.records import Records
from stream_svt.queries.fields import BAD_TEXT, Fields, Options, Path
from stream_svt.queries.json_lines import UNDECODABLE, as_lines, bad_size, decode_lines, decode_one, reason_of
from stream_svt.queries.reasons import MAX_TEXT, Reason
from stream_svt.settings.records import RecordLayout, steps

_NOTHING: Final = Raw(b"")
_STRING: Final = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)] | None
_TEXT: Final = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)] | int | bool | None
_TEXT_TYPES: Final = {str, type(None)}
_LARGEST: Final = 10 ** (MAX_TEXT - 1)
"""Smallest integer that is too long a text."""
_GROUP: Final = 32
"""Fewest records of a group, and most groups: a record that does not fit delays only its group."""
_PARTS: Final = 8
"""Parts of a group in which a record does not fit."""


class _Field(NamedTuple):
    """A field at a path: the type of its content, what stands for a missing one, the reason to refuse another type."""

    path: Path
    type: Any
    missing: Any
    reason: Reason


_OPTIONS: Final = {
    "closed": _Field(("closed",), bool, False, Reason.BAD_SET),
    "threshold": _Field(("threshold",), Raw, _NOTHING, Reason.BAD_THRESHOLD),
    "monitor": _Field(("monitor",), str | None, None, Reason.UNKNOWN_MONITOR),
    "time": _Field(("time",), str | int | float | None, None, Reason.BAD_TIME),
}
_PLAIN: Final = ("value", "id", "series")
"""Fields of own messages without options."""
FIELDS: Final = ("id", "value", "series", "set", *_OPTIONS)
"""Fields of this service's own messages."""


class Paths(NamedTuple):
    """Where the value of a record is, and its texts by name; whether it has the options of own messages."""

    value: Path
    texts: Mapping[str, Path]
    has_options: bool = False


_OWN: Final = Paths(("value",), {name: (name,) for name in BAD_TEXT}, has_options=True)


class JsonRecords:
    """Decodes the records of one topic, by a layout or as own messages for the monitors that read them."""

    def __init__(self, layout: RecordLayout | None, monitors: Collection[str]) -> None:
        self._monitors = frozenset(monitors)
        self.paths = _OWN if layout is None else Paths(steps(layout.value), layout.texts)
        kind, options = (_STRING, _OPTIONS) if layout is None else (_TEXT, {})
        texts = {name: _Field(path, kind, None, BAD_TEXT[name]) for name, path in self.paths.texts.items()}
        self._fields = {"value": _Field(self.paths.value, Raw, _NOTHING, Reason.NOT_JSON), **texts, **options}
        self._root = _object([(field.path, field) for field in self._fields.values()])
        self._decoders = [Decoder(self._root.typed)]
        if layout is None:  # most messages have no options
            plain = [(self._fields[name].path, self._fields[name]) for name in _PLAIN]
            self._decoders.insert(0, Decoder(_object(plain, forbid_unknown_fields=True).typed))
        self._blank = self._decoders[0].decode(b"{}")
        self._alone = {name: Decoder(field.type) for name, field in self._fields.items()}
        self._getters = {
            name: attrgetter(self._attributes(field.path)) for name, field in self._fields.items()
        }

    def _attributes(self, path: Path) -> str:
        names, held = [], self._root
        for step in path:
            attribute, inner = held.fields[step]
            names.append(attribute)
            held = inner or held
        return ".".join(names)

    def decode(self, records: Records) -> Fields:
        """See `RecordDecoder`."""
        return self.fields(records.values())

    def fields(self, values: Sequence[bytes | None]) -> Fields:
        """Return the fields of records, given their contents."""
        rows: list[Struct] = []
        alone: dict[int, dict[str, Any] | Reason] = {}
        size = max(_GROUP, len(values) // _GROUP)
        for first in range(0, len(values), size):
            rows += self._together(values[first : first + size], first, alone)
        is_plain = self._root.typed not in {*map(type, rows)}
        columns = {
            name: [self._fields[name].missing] * len(rows)
            if is_plain and name not in _PLAIN
            else self._pull(name, rows)
            for name in self._fields
        }
        rejects = {row: found for row, found in alone.items() if isinstance(found, Reason)}
        for row, found in alone.items():
            for name, content in found.items() if not isinstance(found, Reason) else ():
                columns[name][row] = content
        options = Options.none()
        if self.paths.has_options:
            options = self._options(columns, rejects)
        else:
            for name in self.paths.texts:
                _make_texts(columns[name], BAD_TEXT[name], rejects)
        if None in (ids := columns.get("id", ())):
            for row in (row for row, found in enumerate(ids) if found is None and row not in options.markers):
                rejects.setdefault(row, Reason.MISSING_ID)
        whole, fraction = decimals.columns(columns["value"])
        for row in options.markers:
            whole[row] = fraction[row] = 0
            columns["series"][row] = None
        texts = {
            name: TextList(column)
            for name, column in columns.items()
            if name == "id" or (name in self.paths.texts and column.count(None) < len(column))
        }
        return Fields((whole, fraction), texts, rejects, options)

    def _together(
        self, values: Sequence[bytes | None], first: int, alone: dict[int, dict[str, Any] | Reason]
    ) -> Sequence[Struct]:
        """Return records from row ``first`` on; add the fields of those that do not fit, or why they are rejected."""
        if (lines := as_lines(values)) is not None:
            for decoder in self._decoders:
                if (decoded := decode_lines(lines, len(values), decoder)) is not None:
                    return decoded
        if len(values) == 1:
            alone[first] = self._decode_alone(values[0] or b"")
            return [self._blank]
        size = -(-len(values) // _PARTS)
        parts = range(0, len(values), size)
        return [row for at in parts for row in self._together(values[at : at + size], first + at, alone)]

    def _pull(self, name: str, decoded: Sequence[Struct]) -> list[Any]:
        """Return a field of decoded records; an object on its path may be null."""
        get = self._getters[name]
        try:
            return list(map(get, decoded))
        except AttributeError:
            return [_get(get, one, self._fields[name].missing) for one in decoded]

    def _decode_alone(self, message: bytes) -> dict[str, Any] | Reason:
        """Return the fields of one record that it has, or why it is rejected."""
        if (reason := bad_size(message)) is not None:
            return reason
        fields: dict[str, Any] = {}
        try:
            found = decode_one(message, self._root.loose, self.paths.value)
            for name, field in self._fields.items():
                if bytes(content := self._dig(found, field.path)):
                    reason = field.reason
                    fields[name] = self._alone[name].decode(content)
        except ValidationError:
            return reason or Reason.NOT_AN_OBJECT
        except UNDECODABLE as error:
            return reason_of(error)
        return fields

    def _dig(self, found: Struct, path: Path) -> Raw:
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

    def _options(self, columns: Mapping[str, list[Any]], rejects: dict[int, Reason]) -> Options:
        """Return the options of own messages, and refuse those that are not valid."""
        options = Options.none()
        closed, limits, names = (columns[name] for name in ("closed", "threshold", "monitor"))
        if True in closed:
            for row in (row for row, is_closed in enumerate(closed) if is_closed):
                if (name := columns["set"][row]) is None:
                    rejects.setdefault(row, Reason.BAD_SET)
                else:
                    options.markers[row] = name
        if limits.count(_NOTHING) < len(limits):
            for row, token in enumerate(map(bytes, limits)):
                if not token or token == b"null" or closed[row]:
                    continue
                if (limit := decimals.threshold(token)) is None:
                    rejects.setdefault(row, Reason.BAD_THRESHOLD)
                else:
                    options.threshold[row] = limit
        if names.count(None) < len(names):
            for row, name in enumerate(names):
                if name is None or closed[row]:
                    continue
                if name not in self._monitors:
                    rejects.setdefault(row, Reason.UNKNOWN_MONITOR)
                else:
                    options.monitor[row] = name
        return options


@dataclass(frozen=True, slots=True)
class _Object:
    """An object on a path: its type with all fields, and one whose fields are not decoded."""

    typed: type[Struct]
    loose: Decoder[Struct]
    fields: dict[str, tuple[str, _Object | None]]
    """Attribute by name, with the object that it holds; None at the end of a path."""


def _object(fields: Sequence[tuple[Path, _Field]], *, forbid_unknown_fields: bool = False) -> _Object:
    """Return the types of an object from the fields in it, each with the rest of its path."""
    typed: list[tuple[str, Any, Any]] = []
    attributes: dict[str, tuple[str, _Object | None]] = {}
    for name in dict.fromkeys(path[0] for path, _ in fields):
        inside = [(path[1:], field) for path, field in fields if path[0] == name]
        attribute, (rest, field) = f"f{len(typed)}", inside[0]
        held = _object(inside) if rest else None
        attributes[name] = attribute, held
        if held is None:
            typed.append((attribute, field.type, field.missing))
        else:
            typed.append((attribute, held.typed | None, held.typed()))
    rename = {attribute: name for name, (attribute, _) in attributes.items()}
    loose = [(attribute, Raw, _NOTHING) for attribute in rename]
    kinds = [
        defstruct(
            "Fields", one, rename=rename, gc=False, frozen=True, forbid_unknown_fields=forbid_unknown_fields
        )
        for one in (typed, loose)
    ]
    return _Object(kinds[0], Decoder(kinds[1]), attributes)


def _get(get: Callable[[Struct], Any], decoded: Struct, missing: Any) -> Any:  # noqa: ANN401  any field
    try:
        return get(decoded)
    except AttributeError:
        return missing


def _make_texts(column: list[Any], reason: Reason, rejects: dict[int, Reason]) -> None:
    """Replace integers and booleans by their texts, and refuse those that are too long."""
    if _TEXT_TYPES.issuperset(map(type, column)):
        return
    for row, found in enumerate(column):
        if isinstance(found, int):
            if abs(found) < _LARGEST:
                column[row] = str(found).lower()
            else:
                rejects.setdefault(row, reason)
                column[row] = None
