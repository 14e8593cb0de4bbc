"""Raw events as bytes, JSON or Avro, odd ones too, and a slow reader of them that shares no code with the package."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from stream_svt.queries.reasons import MAX_BYTES
from stream_svt.settings.fields import LAST_MS
from stream_svt.settings.sources import SourceSpec
from tests.support.avro import record

UNIT = "7"
"""The unit whose records one stream lacks."""
PLAIN, OTHER, NO_USER, LATER, UNUSABLE = range(1, 6)
"""Ids of schemas; the registry has `LATER` from a moment on. It has none of larger ids, or refuses them."""
ALWAYS = (PLAIN, OTHER, NO_USER)
_AT, _NAMES = record("At", s="long"), {"type": "enum", "name": "Ward", "symbols": ["a", "b", "c"]}
_REST: dict[str, Any] = {"page": "string", "ward": "string", "status": "int", "ts": "long", "at": _AT}
SCHEMAS: Mapping[int, Any] = {
    PLAIN: record("Plain", user="string", **_REST),
    OTHER: record(
        "Other", tags={"type": "array", "items": "string"}, at=["null", _AT], status="string", ts="double",
        ward=_NAMES, page=["null", "string"], user=["null", "long", "double", "string"],
    ),
    NO_USER: record("NoUser", **_REST),
    LATER: record("Later", ward="string", ts="long", user=["string", "boolean"], page="string", at=_AT, status="int"),
}  # fmt: skip
_PARSED = {number: parse_schema(schema) for number, schema in SCHEMAS.items()}


class Event(NamedTuple):
    """What the event of a record says; its time is None if the source has no field of it."""

    unit: str
    time_ms: int | None
    series: str
    dataset: str
    status: str


def event_in(source: SourceSpec, key: bytes | None, value: bytes | None) -> Event | None:
    """Return the event of a record, None if it has none."""
    if value is None or len(value) > MAX_BYTES:
        return None
    try:
        found = json.loads(value) if source.format == "json" else _decoded(value)
    except Exception:  # noqa: BLE001  whatever a decoder says
        return None
    if not isinstance(found, dict):
        return None
    unit = (key or b"").decode() if source.unit == "key" else _text(found.get("user"))
    time_ms = _time(found, source.time.scale) if source.time else None
    if not unit or (source.time and time_ms is None):
        return None
    series = _text(found.get("page")) if source.series else ""
    dataset = _text(found.get("ward")) if source.dataset_field else ""
    return Event(unit, time_ms, series, dataset, _text(found.get("status")))


def schema_of(value: bytes | None) -> int:
    """Return the id in an Avro record."""
    return int.from_bytes((value or b"")[1:5], "big")


def _decoded(value: bytes) -> Any:
    data = BytesIO(value[5:])
    found = schemaless_reader(data, _PARSED[schema_of(value)])
    return None if value[0] or data.read() else found


def _text(found: Any) -> str:
    text = str(found).lower() if isinstance(found, bool) else str(found)
    return text if isinstance(found, str | int) and len(text) <= 256 else ""


def _time(found: Mapping[str, Any], scale: str) -> int | None:
    at = found.get("at")
    time = found.get("ts") if scale == "ms" else isinstance(at, dict) and at.get("s")
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
        return None
    ms = math.floor(time * (1 if scale == "ms" else 1000))
    return ms if 0 <= ms <= LAST_MS else None


# Writing


def json_of(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def odd_json(fields: Mapping[str, Any], rng: random.Random) -> bytes | None:
    """Return the value of an event of the unit that is malformed, large, or written in another way."""
    if rng.random() < 0.5:
        users = (None, 1.5, "x" * 257, "", [], {"user": UNIT})
        times = ({"ts": "soon", "at": {"s": None}}, {"ts": None, "at": 5})
        pad = "x" * rng.choice((30_000, 1_100_000))
        return json_of(
            fields | rng.choice(({"user": rng.choice(users)}, {"user": int(UNIT)}, {"pad": pad}, *times))
        )
    text = json_of(fields)
    if rng.random() < 0.4:
        return text.replace(b'"user": "7"', b'"\\u0075ser": "\\u0037"')
    return rng.choice((None, b"", b"{", b"[]", b"\xff{}", b"null", text[:-1], b"  " + text + b"\n"))


def avro_of(fields: Mapping[str, Any], number: int) -> bytes:
    if number == OTHER:
        changed = {"tags": ["a", "bc"], "status": str(fields["status"]), "ts": float(fields["ts"])}
        fields = fields | changed
    out = BytesIO()
    schemaless_writer(out, _PARSED[number], fields)
    return _header(number) + out.getvalue()


def _header(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def odd_avro(fields: Mapping[str, Any], rng: random.Random) -> bytes | None:
    """Return the same in Avro: also without a schema, with one that is refused or not there yet, cut, or with more."""
    if rng.random() < 0.3:
        user = rng.choice((None, 1.5, "x" * 257, "", int(UNIT), "x" * 1_100_000))
        return avro_of(
            fields | rng.choice(({"user": user}, {"at": None, "ts": math.nan}, {"page": None})), OTHER
        )
    if rng.random() < 0.3:
        return avro_of(fields, LATER)
    number = rng.choice(ALWAYS)
    value = avro_of(fields, number)
    strange = _header(rng.choice((UNUSABLE, UNUSABLE + 1, rng.randrange(1 << 32)))) + value[5:]
    other = _header(rng.choice((PLAIN, NO_USER))) + value[5:]
    few = rng.randrange(1, 6)
    odd = (
        value[:-few],
        value[:5],
        value + bytes(few),
        value + value,
        strange,
        strange,
        other,
        b"\1" + value[1:],
    )
    return rng.choice((*odd, None, b"", b"\0", json_of(fields)))
