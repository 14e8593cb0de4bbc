"""Decodes Avro records in the wire format of Confluent's Schema Registry: a zero byte, the schema's id, Avro binary.

A schema comes from the registry, records from anybody. A schema is used only if the work and the memory of decoding are
bounded by the record's size: it is not recursive, every field and item takes at least a byte, and arrays and maps are
skipped. Logical types are ignored, but for decimals at the path of the value, so that none of them can fail.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from stream_svt.mechanisms.grid import PARTS
from stream_svt.mechanisms.grid import WHOLE_LIMIT as LIMIT
from stream_svt.monitor.texts import TextList
from stream_svt.service import exact
from stream_svt.service.json_columns import Columns, Options
from stream_svt.service.json_lines import bad_size
from stream_svt.service.mapped import BAD, texts_of
from stream_svt.service.reasons import MAX_BYTES, MAX_TEXT, Reason
from stream_svt.settings.records import RecordLayout, steps

log = logging.getLogger(__name__)

_Type: TypeAlias = Any
"""A type as JSON."""
_Path: TypeAlias = tuple[str, ...]

MAX_NODES: Final = 5_000
"""Most types in a schema; a named one counts each time it is used."""
AT_ONCE: Final = 1 << 15
"""Bytes of records decoded between two yields: some ten milliseconds of work."""
MAX_WITH_ITEMS: Final = 1 << 17
"""Most bytes of a record whose schema has arrays or maps: each byte may be an item."""
MAX_DEPTH: Final = 64
"""Most types around a type."""
_MAX_SCALE: Final = 1_000
"""Largest scale of a decimal."""
_SCALARS: Final = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
}
"""Least bytes of each type without parts."""
_SCALE: Final = "stream-svt-scale"
"""Attribute of a decimal's type in the schemas that are made here."""
_HEADER: Final = struct.Struct(">BI")
_PAD: Final = bytes(16)
"""What a truncated record runs into: the library does not notice the end of a field that it skips."""


class UnusableSchema(Exception):
    """A schema that cannot be used; the argument is why."""


class _ReadType(NamedTuple):
    """A type as the library reads it, its part on the paths (None: arrays, maps, others not read), its least bytes."""

    whole: _Type
    read: _Type | None
    least: int


class _Walk:
    """Rewrites a schema: no logical types, and every use of a named type has its own name."""

    def __init__(self) -> None:
        self.has_collections = False
        self._nodes = 0
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}

    def type(self, schema: _Type, paths: Sequence[_Path], space: str = "", around: _Path = ()) -> _ReadType:
        """Return a type in a name ``space``, given the rests of paths from here and the names of the types around."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise UnusableSchema(f"it has more than {MAX_NODES} types")
        if len(around) > MAX_DEPTH:
            raise UnusableSchema(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(schema, list):
            found = [self.type(each, paths, space, (*around, "")) for each in schema]
            read = None if any(each.read is None for each in found) else [each.read for each in found]
            return _ReadType([each.whole for each in found], read, 1)
        attributes = schema if isinstance(schema, dict) else {"type": schema}
        kind = attributes.get("type")
        if isinstance(kind, dict | list):
            return self.type(kind, paths, space, (*around, ""))
        if kind in {"array", "map"}:
            return self._collection(attributes, space, around)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._definition(attributes, paths, space, around)
        if not isinstance(kind, str):
            raise UnusableSchema("a type has no name")
        if kind in _SCALARS:
            whole = {"type": kind, **_scale(attributes)} if kind == "bytes" else kind
            return _ReadType(whole, whole, _SCALARS[kind])
        full = next((name for name in (f"{space}.{kind}", kind) if name in self._named), None)
        if full is None:
            raise UnusableSchema("it uses a type that it does not define")
        if full in around:
            raise UnusableSchema("it is recursive")
        definition, outer = self._named[full]
        return self._definition(definition, paths, outer, around)

    def _collection(self, attributes: Mapping[str, Any], space: str, around: _Path) -> _ReadType:
        self.has_collections = True
        kind = attributes["type"]
        part = "items" if kind == "array" else "values"
        inner = self.type(attributes.get(part), (), space, (*around, ""))
        if not inner.least:
            raise UnusableSchema("an item takes no bytes")
        return _ReadType({"type": kind, part: inner.whole}, None, 1)

    def _definition(
        self, attributes: Mapping[str, Any], paths: Sequence[_Path], space: str, around: _Path
    ) -> _ReadType:
        kind, name, own, outer = attributes["type"], attributes.get("name"), f"n{self._nodes}", space
        if not isinstance(name, str):
            raise UnusableSchema("a type has no name")
        if "." in name:
            space = name.rpartition(".")[0]
        elif isinstance(attributes.get("namespace"), str):
            space = attributes["namespace"]
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = attributes, outer
        if kind in {"record", "error"}:
            return self._record(own, attributes.get("fields"), paths, space, (*around, full))
        if kind == "enum":
            symbols = {"type": "enum", "name": own, "symbols": attributes.get("symbols")}
            return _ReadType(symbols, symbols, 1)
        size = attributes.get("size")
        if not isinstance(size, int) or size < 0:
            raise UnusableSchema("a fixed type has no size")
        fixed = {"type": "fixed", "name": own, "size": size, **_scale(attributes)}
        return _ReadType(fixed, fixed, size)

    def _record(
        self, own: str, fields: _Type, paths: Sequence[_Path], space: str, around: _Path
    ) -> _ReadType:
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise UnusableSchema("a record has no fields")
        if len({str(each.get("name")) for each in fields}) < len(fields):
            raise UnusableSchema("two fields have one name")
        whole, read, least = [], [], 0
        for each in fields:
            name = each.get("name")
            if not isinstance(name, str):
                raise UnusableSchema("a field has no name")
            inner = [path[1:] for path in paths if path and path[0] == name]
            found = self.type(each.get("type"), inner, space, around)
            if not found.least:
                raise UnusableSchema("a field takes no bytes")
            least += found.least
            whole.append({"name": name, "type": found.whole})
            if inner and found.read is not None:
                read.append({"name": name, "type": found.read})
        head = {"type": "record", "name": own}
        return _ReadType(head | {"fields": whole}, head | {"fields": read}, least)


def _scale(attributes: Mapping[str, Any]) -> dict[str, int]:
    scale = attributes.get("scale", 0)
    is_decimal = attributes.get("logicalType") == "decimal" and isinstance(scale, int)
    return {_SCALE: scale} if is_decimal and 0 <= scale <= _MAX_SCALE else {}


def _ends(found: _Type, path: _Path) -> Iterator[_Type]:
    """Yield the types, other than unions, at the end of a path."""
    for branch in found if isinstance(found, list) else [found]:
        if not path:
            yield branch
        elif isinstance(branch, dict) and branch["type"] == "record":
            for field in branch["fields"]:
                if field["name"] == path[0]:
                    yield from _ends(field["type"], path[1:])


class _Strict(BytesIO):
    """Data whose end is an error: the library skips as many items as a count says, whether they are there or not."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if len(data) < (size or 0):
            raise EOFError
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if offset < 0 or offset > len(self.getbuffer()):
            raise EOFError
        return super().seek(offset, whence)


class Schema:
    """A schema with the fields of a layout; raises `UnusableSchema`.

    ``lacks`` are the paths that it does not have.
    """

    def __init__(self, text: str, layout: RecordLayout) -> None:
        from fastavro import parse_schema, schemaless_reader  # an extra

        self._value, self._texts, self._read = steps(layout.value), layout.texts, schemaless_reader
        walk, paths = _Walk(), [self._value, *self._texts.values()]
        try:
            found = walk.type(msgspec.json.decode(text), paths)
        except (msgspec.DecodeError, RecursionError):
            raise UnusableSchema("it is not JSON") from None
        if not isinstance(found.whole, dict) or found.whole["type"] != "record":
            raise UnusableSchema("it is not a record")
        self.lacks = [".".join(path) for path in paths if not any(_ends(found.read, path))]
        scales = {
            one.get(_SCALE)
            for one in _ends(found.read, self._value)
            if isinstance(one, dict) and one["type"] in {"bytes", "fixed"}
        }
        self._scale = scales.pop() if len(scales) == 1 else None
        self.max_bytes = MAX_WITH_ITEMS if walk.has_collections else MAX_BYTES
        try:
            self._writer: Any = parse_schema(found.whole)
            self._reader: Any = None
            if walk.has_collections and found.read is not None:
                self._reader = parse_schema(found.read)
        except Exception as error:
            raise UnusableSchema("it is not an Avro schema") from error

    def decode(self, message: bytes) -> list[Any] | None:
        """Return the fields of a record, value first and None where one is missing; None if it is malformed."""
        data = BytesIO(message + _PAD) if self._reader is None else _Strict(message + _PAD)
        data.seek(_HEADER.size)
        try:
            found = self._read(data, self._writer, self._reader, handle_unicode_errors="replace")
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  of the library, whatever a malformed record makes it raise
            return None
        if data.tell() != len(message):
            return None
        value = _dig(found, self._value)
        if type(value) is bytes:
            value = None if self._scale is None else _decimal(value, self._scale)
        return [value, *(_dig(found, path) for path in self._texts.values())]


def _dig(found: Any, path: _Path) -> Any:  # noqa: ANN401  any field
    for name in path:
        if type(found) is not dict:
            return None
        found = found.get(name)
    return found


def _decimal(unscaled: bytes, scale: int) -> tuple[int, int]:
    """Return whole part and fraction of a decimal."""
    number = int.from_bytes(unscaled, "big", signed=True)
    if number.bit_length() > 62 + 4 * (scale + 1):
        return (LIMIT if number > 0 else -LIMIT), 0
    whole, rest = divmod(number, 10**scale)
    if abs(whole) >= LIMIT:
        return (LIMIT if number > 0 else -LIMIT), 0
    return whole, rest * PARTS // 10**scale


def numbers(values: Sequence[Any]) -> exact.Columns:
    """Return whole parts and fractions of integers, doubles and pairs of both; anything else is not a number."""
    whole = np.full(len(values), exact.NO_NUMBER[0], np.int64)
    fraction = np.zeros(len(values), np.int64)
    kinds = [type(value) for value in values]
    rows = [row for row, kind in enumerate(kinds) if kind is int]
    whole[rows] = np.clip(np.array([values[row] for row in rows], np.int64), -LIMIT, LIMIT)
    rows = [row for row, kind in enumerate(kinds) if kind is float]
    whole[rows], fraction[rows] = exact.doubles(np.array([values[row] for row in rows], np.float64))
    for row in (row for row, kind in enumerate(kinds) if kind is tuple):
        whole[row], fraction[row] = values[row]
    return whole, fraction


class Schemas(Protocol):
    """Schemas by id."""

    def get(self, number: int) -> str | None:
        """Return a schema as JSON; None if it is not known yet."""
        ...

    def request(self, number: int) -> str:
        """Begin to fetch a schema, unless that is in progress; return why it is not known yet."""
        ...


class NoSchemas:
    """Stands for a registry where none is at hand."""

    def get(self, number: int) -> None:
        """Return None."""

    def request(self, number: int) -> str:
        """Return why no schema is known."""
        return f"schema {number} cannot be fetched here"


class AvroRecords:
    """Decodes the records of one topic by its layout."""

    def __init__(self, topic: str, layout: RecordLayout, schemas: Schemas) -> None:
        self._topic, self._layout, self._schemas = topic, layout, schemas
        self._known: dict[int, Schema | None] = {}
        self._found: tuple[Sequence[bytes | None], list[list[Any] | Reason]] = (), []

    def lack(self, message: bytes | None) -> str:
        """Return why a record cannot be decoded yet; "" if it can be, or is malformed."""
        number = None if bad_size(message or b"") else schema_number(message or b"")
        if number is None or number in self._known:
            return ""
        text = self._schemas.get(number)
        if text is None:
            return self._schemas.request(number)
        try:
            self._known[number] = found = Schema(text, self._layout)
            missing = ", ".join(found.lacks)
            if missing:
                log.warning(
                    "event=schema_lacks_fields topic=%s schema=%d fields=%s", self._topic, number, missing
                )
        except UnusableSchema as error:
            self._known[number] = None
            log.error("event=schema_unusable topic=%s schema=%d error=%r", self._topic, number, str(error))  # noqa: TRY400
        return ""

    def read(self, values: Sequence[bytes | None]) -> Iterator[None]:
        """Read records for the next `decode`, which gets the same; yield between pieces of work."""
        found, size = [], 0
        for value in values:
            found.append(self._decode_one(value or b""))
            size += len(value or b"")
            if size > AT_ONCE:
                size = 0
                yield
        self._found = values, found

    def decode(self, values: Sequence[bytes | None]) -> Columns:
        """Return the fields of records; each of them has no `lack`."""
        of, found = self._found
        if of != values:
            found = [self._decode_one(value or b"") for value in values]
        self._found = (), []
        rejects = {row: fields for row, fields in enumerate(found) if isinstance(fields, Reason)}
        nothing = [None] * (1 + len(self._layout.texts))
        rows = [nothing if isinstance(fields, Reason) else fields for fields in found]
        columns = list(zip(*rows, strict=True))
        texts = {
            name: TextList(_texts(name, column, rejects))
            for name, column in zip(self._layout.texts, columns[1:], strict=True)
        }
        return Columns(numbers(columns[0]), texts, rejects, Options.none())

    def _decode_one(self, message: bytes) -> list[Any] | Reason:
        if (reason := bad_size(message)) is not None:
            return reason
        if (number := schema_number(message)) is None:
            return Reason.NOT_AVRO
        if (schema := self._known[number]) is None:
            return Reason.UNUSABLE_SCHEMA
        if len(message) > schema.max_bytes:
            return Reason.TOO_LARGE
        return schema.decode(message) or Reason.NOT_AVRO


def schema_number(message: bytes) -> int | None:
    """Return the id of a record's schema, None if it has none."""
    if len(message) < _HEADER.size:
        return None
    magic, number = _HEADER.unpack_from(message)
    return number if magic == 0 else None


def _texts(name: str, column: Sequence[Any], rejects: dict[int, Reason]) -> list[str | None]:
    """Return a column of texts; what is refused or, for an id, missing, is added to ``rejects``."""
    known = [
        one
        if one is None or isinstance(one, int) or (isinstance(one, str) and 0 < len(one) <= MAX_TEXT)
        else BAD[name]
        for one in column
    ]
    return texts_of(name, known, rejects)
