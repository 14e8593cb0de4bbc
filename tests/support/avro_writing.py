"""Random Avro schemas, and records of them: what a correct writer may write, with what it meant."""

from __future__ import annotations

import struct
from random import Random
from typing import Any, NamedTuple

from tests.support.avro import varint

INTEGERS = (0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**55, -(2**56), 2**62, 2**63 - 1, -(2**63))
DOUBLES = (0.0, -0.0, 0.1, -2.5, 1e-300, 5e-324, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "home/page", "é", "日本語", "x" * 64, "y" * 256, "z" * 257, "\U0001f600" * 256, "\0")


class Written(NamedTuple):
    """Data of a type: the type as JSON, the content (of a record: fields by name), and the bytes."""

    type: Any
    content: Any
    data: bytes

    def at(self, path: tuple[str, ...]) -> Written | None:
        """Return what is at a path, None if that is nothing."""
        found: Any = self
        for name in path:
            found = found.content.get(name) if isinstance(found.content, dict) else None
            if found is None:
                return None
        return None if found.content is None else found


class Writer:
    """Makes up schemas and records."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._names = 0

    def record_type(self, depth: int = 3) -> dict[str, Any]:
        """Return a record with a few of the fields a to d, in any order."""
        names = self._chance.sample("abcd", self._chance.randint(0, 4))
        fields = [{"name": name, "type": self.type(depth - 1)} for name in names]
        return {"type": "record", "name": self._name(), "fields": fields}

    def type(self, depth: int, *, union: bool = True) -> Any:
        """Return a type with at most ``depth`` types in one another."""
        kinds = [
            "null",
            "boolean",
            "int",
            "long",
            "float",
            "double",
            "bytes",
            "string",
            "decimal",
            "enum",
            "fixed",
        ]
        kinds += ["fixed decimal", "odd"]
        if depth > 0:
            kinds += ["record", "array", "map"] * 2 + ["union"] * 4 * union
        kind = self._chance.choice(kinds)
        if kind == "union":
            return [self.type(depth - 1, union=False) for _ in range(self._chance.randint(1, 5))]
        if kind == "record":
            return self.record_type(depth)
        if kind == "array":
            return {"type": "array", "items": self.type(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.type(depth - 1)}
        if kind == "enum":
            return {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]}
        precision = self._chance.choice((1, 9, 18, 19, 38, 77, 90))
        decimal = {
            "logicalType": "decimal",
            "precision": precision,
            "scale": self._chance.randint(0, precision),
        }
        if kind == "decimal":
            return {"type": "bytes", **decimal}
        if kind in {"fixed", "fixed decimal"}:
            fixed = {
                "type": "fixed",
                "name": self._name(),
                "size": self._chance.choice((0, 1, 3, 8, 9, 16, 40)),
            }
            return (
                fixed | decimal | {"precision": 1, "scale": 1}
                if kind == "fixed decimal" and fixed["size"]
                else fixed
            )
        if kind == "odd":
            return {"type": self._chance.choice(("long", "string")), "logicalType": "unheard-of"}
        return self._chance.choice((kind, {"type": kind}))

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def write(self, schema: Any) -> Written:
        """Return data of a type."""
        chance = self._chance
        if isinstance(schema, list):
            branch = chance.randrange(len(schema))
            found = self.write(schema[branch])
            return found._replace(data=varint(branch) + found.data)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            fields = {each["name"]: self.write(each["type"]) for each in schema["fields"]}
            return Written(schema, fields, b"".join(one.data for one in fields.values()))
        if kind in {"array", "map"}:
            return Written(schema, [], self._blocks(schema, kind == "map"))
        if kind == "null":
            return Written(schema, None, b"")
        if kind == "boolean":
            return Written(schema, found := chance.random() < 0.5, bytes([found]))
        if kind in {"int", "long"}:
            found = chance.choice(INTEGERS) if chance.random() < 0.5 else chance.randint(-300, 300)
            return Written(schema, found, varint(found))
        if kind in {"float", "double"}:
            form = "<f" if kind == "float" else "<d"
            data = chance.choice((struct.pack("<d", chance.choice(DOUBLES)), chance.randbytes(8)))
            data = data if kind == "double" else chance.randbytes(4)
            return Written(schema, struct.unpack(form, data)[0], data)
        if kind == "enum":
            found = chance.randrange(len(schema["symbols"]))
            return Written(schema, schema["symbols"][found], varint(found))
        if kind == "fixed":
            found = chance.randbytes(schema["size"])
            return Written(schema, found, found)
        if kind == "string":
            text = chance.choice(TEXTS)
            return Written(schema, text, varint(len(text.encode())) + text.encode())
        found = chance.randbytes(chance.choice((1, 1, 2, 4, 7, 8, 9, 16, 31, 32, 33, 100)))
        return Written(schema, found, varint(len(found)) + found)

    def _blocks(self, schema: Any, is_map: bool) -> bytes:
        data = b""
        for _ in range(self._chance.choice((0, 0, 1, 1, 2))):
            count, items = self._chance.randint(1, 4), b""
            for _ in range(count):
                items += self.write("string").data if is_map else b""
                items += self.write(schema["values" if is_map else "items"]).data
            is_sized = self._chance.random() < 0.3
            data += varint(-count) + varint(len(items)) if is_sized else varint(count)
            data += items
        return data + varint(0)

    def damaged(self, data: bytes) -> bytes:
        """Return data with a few bytes changed, inserted, or cut off."""
        found = bytearray(data)
        for _ in range(self._chance.randint(1, 3)):
            at = self._chance.randint(0, len(found))
            byte = self._chance.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, self._chance.randrange(256)))
            kind = self._chance.randrange(4)
            if kind == 0:
                found[at : at + 1] = [byte]
            elif kind == 1:
                found[at:at] = bytes([byte]) * self._chance.choice((1, 1, 9, 12))
            elif kind == 2:
                del found[at : at + self._chance.randint(1, 3)]
            else:
                del found[at:]
        return bytes(found)
