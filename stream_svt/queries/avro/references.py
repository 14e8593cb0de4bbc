"""Avro schemas that use types of other schemas: which names are open, and the schema with their definitions in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

_Type: TypeAlias = Any
"""A type as JSON."""
_PRIMITIVES: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_NAMED: Final = {"record", "error", "enum", "fixed"}
_PARTS: Final = {"array": "items", "map": "values"}


def inlined(schema: _Type, referenced: Iterable[_Type] = ()) -> tuple[_Type, list[str]]:
    """Return a schema with the types of ``referenced`` schemas that it uses, and the names that stay open.

    Each type is defined where it is used first, under its full name. Raises RecursionError for deep nesting.
    """
    known = {full: found for other in referenced for full, found in _definitions(other, "")}
    inliner = _Inliner(known)
    return inliner.type(schema, ""), list(inliner.open)


class _Inliner:
    def __init__(self, known: dict[str, tuple[_Type, str]]) -> None:
        self._known = known
        self._defined: set[str] = set()
        self.open: dict[str, None] = {}

    def type(self, schema: _Type, space: str) -> _Type:
        """Return a type that stands in a name ``space``."""
        if isinstance(schema, list):
            return [self.type(each, space) for each in schema]
        if isinstance(schema, str):
            return self._use(schema, space)
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _NAMED:
            full, inner = _names(schema, space)
            return self._define(schema, full, inner)
        if isinstance(kind, str) and (part := _PARTS.get(kind)) is not None:
            return {**schema, part: self.type(schema.get(part), space)}
        return {**schema, "type": self.type(kind, space)}

    def _use(self, name: str, space: str) -> _Type:
        if name in _PRIMITIVES:
            return name
        candidates = [name] if "." in name or not space else [f"{space}.{name}", name]
        for full in candidates:
            if full in self._defined:
                return full
        for full in candidates:
            if full in self._known:
                schema, around = self._known[full]
                return self._define(schema, full, _names(schema, around)[1])
        self.open[name] = None
        return name

    def _define(self, schema: dict[str, _Type], full: str, space: str) -> _Type:
        if full in self._defined:  # a second referenced schema defines it, too
            return full
        self._defined.add(full)
        outer, _, name = full.rpartition(".")
        # An explicit namespace, "" for none: around a type that stands elsewhere is another one.
        found = {**schema, "name": name, "namespace": outer}
        if isinstance(fields := schema.get("fields"), list):
            found["fields"] = [
                {**each, "type": self.type(each.get("type"), space)} if isinstance(each, dict) else each
                for each in fields
            ]
        return found


def _names(schema: dict[str, _Type], space: str) -> tuple[str, str]:
    """Return the full name of a definition, and the name space of its fields."""
    name, own = str(schema.get("name", "")), schema.get("namespace")
    if "." in name:
        return name, name.rpartition(".")[0]
    space = own if isinstance(own, str) else space
    return f"{space}.{name}" if space else name, space


def _definitions(schema: _Type, space: str) -> Iterator[tuple[str, tuple[_Type, str]]]:
    """Yield full name, definition and surrounding name space of every type that a schema defines."""
    if isinstance(schema, list):
        for each in schema:
            yield from _definitions(each, space)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _NAMED:
            full, inner = _names(schema, space)
            yield full, (schema, space)
            fields = schema.get("fields")
            for each in fields if isinstance(fields, list) else ():
                yield from _definitions(each.get("type") if isinstance(each, dict) else None, inner)
        elif isinstance(kind, str) and kind in _PARTS:
            yield from _definitions(schema.get(_PARTS[kind]), space)
        else:
            yield from _definitions(kind, space)
