"""Random streams as the bytes that producers write, decoded as a worker decodes them: a way through all decoders.

How a record is written is a function of its topic and offset alone, so that neighbouring streams differ in values only.
A value is written exactly, or as a program would that computed a multiple of the granularity in floats.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT, grid_floor
from stream_svt.protocol.records import OneRecord
from stream_svt.proving.streams import QueryRecord, RandomSource, Row
from stream_svt.queries.codec import ARROW_STREAM, QueryDecoder
from stream_svt.queries.counts import DECILES_HEADER, MEASURE_HEADER, MONITOR_HEADER, SOURCE_HEADER
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import rows_asked
from stream_svt.settings.questions import rows_of
from stream_svt.settings.records import steps

_Tree: TypeAlias = dict[str, Any]
"""Fields by name: trees, or at the end of a path "value", "id", "series" or "set"."""

_HEADERS: Final[tuple[tuple[str, bytes], ...]] = (("content-type", ARROW_STREAM.encode()),)
_NO_NUMBERS: Final = ("null", '"12"', '"text"', "NaN", "true", "[1]", "{}")
_LONGEST_SINGLE, _LONGEST_DOUBLE = 2**13, 2**38
"""Steps of the grid up to which floats of 32 and 64 bits are on their step."""
_SCALE: Final = 18
_DECIMAL: Final = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": _SCALE}
_BRANCHES: Final[dict[str, Any]] = {
    "null": "null",
    "text": "string",
    "exact": _DECIMAL,
    "double": "double",
    "single": "float",
    "integer": "long",
}
_COLUMNS: Final[dict[str, Any]] = {
    "exact": pa.decimal256(76, _SCALE),
    "double": pa.float64(),
    "single": pa.float32(),
    "integer": pa.int64(),
}


class Encoded:
    """Decodes the records of random streams from their bytes; see `stream_svt.proving.prove`."""

    def __init__(self, spec: ApplicationSpec, rng: RandomSource) -> None:
        self._keys = [dataset.name.encode() for dataset in spec.datasets]
        index = DatasetIndex(
            (one.name for one in spec.datasets), partition=0, partitioning=Partitioning(1, "murmur2")
        )
        seed = rng.randrange(0, 1 << 32)
        self._topics = {topic: _Topic(topic, spec, index, seed) for topic in spec.topics()}

    def __call__(self, topic: str, records: Sequence[QueryRecord], first: int) -> QueryBatch:
        """Return records of a topic as a batch that starts at offset ``first``."""
        writer = self._topics[topic]
        written = [
            writer.record(record, offset, self._keys[record.rows[0].dataset])
            for offset, record in enumerate(records, first)
        ]
        writer.decoder.lack(written)
        return writer.decoder.decode(written)


class _Topic:
    """Writes the records of a topic; ``get`` and `request` give its schemas."""

    def __init__(self, topic: str, spec: ApplicationSpec, index: DatasetIndex, seed: int) -> None:
        monitors = [one for one in spec.monitors if one.topic == topic]
        sources = (one for one in spec.sources if one.counts_topic(spec.application) == topic)
        self._source = next(sources, None)
        self._seed, self._layout = f"{seed} {topic}", monitors[0].record
        # All monitors declare the same sensitivity. Where a granularity divides it, a value may be rounded to its grid.
        sensitivity = monitors[0].sensitivity
        grids = [one.granularity for one in monitors if not sensitivity % one.granularity]
        self._grid = next(iter(grids), sensitivity)
        self._forms = ["exact", *["double", "single"] * bool(grids), *["integer"] * (not sensitivity % 1)]
        if self._source is not None and self._source.answers is None:
            self._forms = ["integer"]
        self._tree: _Tree = {}
        if self._layout is not None:
            for name, path in {"value": steps(self._layout.value), **self._layout.texts}.items():
                inner = self._tree
                for step in path[:-1]:
                    inner = inner.setdefault(step, {})
                inner[path[-1]] = name
        chance = random.Random(self._seed)  # noqa: S311 - streams, not noise
        self._unions = [chance.sample([*_BRANCHES], len(_BRANCHES)) for _ in range(3)]
        names = [one.name for one in monitors]
        asked = rows_asked(monitors)
        self.decoder = QueryDecoder(topic, index, names, self._layout, self, self._source, asked)

    def get(self, number: int) -> str:
        """Return a schema as JSON: the value is a union of branches in another order for each."""
        return json.dumps(_schema(self._tree, [_BRANCHES[name] for name in self._unions[number]], [0]))

    def request(self, number: int) -> str:
        """Say that every schema is known."""
        raise AssertionError(number)

    def record(self, record: QueryRecord, offset: int, key: bytes) -> OneRecord:
        """Return the bytes of a record."""
        chance = random.Random(f"{self._seed} {offset}")  # noqa: S311 - streams, not noise
        form, head = chance.choice(self._forms), record.rows[0]
        if self._layout is None and (self._source or len(record.rows) > 1 or chance.random() < 0.5):
            question = record.measure.removeprefix(rows_of(""))
            is_answer, headers = question != record.measure, _HEADERS
            content = self._arrow(record, offset, "exact" if is_answer else form)
            if self._source is not None:
                header = MONITOR_HEADER if is_answer else MEASURE_HEADER
                said = (header, question.encode())
                if record.request is not None:
                    said = (DECILES_HEADER, msgspec.json.encode(record.request))
                headers += (SOURCE_HEADER, self._source.digest.encode()), said
            return OneRecord(offset, head.time_ms, key, content, headers)
        if self._layout is not None and self._layout.format == "avro":
            number = chance.randrange(len(self._unions))
            content = struct.pack(">BI", 0, number) + self._avro(
                self._tree, _texts(head, offset), self._branch(self._unions[number], form, head.value, chance)
            )
        else:
            text = self._token(form, head.value, chance)
            content = self._json(head, offset).replace('"@value"', text).encode()
        return OneRecord(offset, head.time_ms, key, content)

    def _number(self, form: str, value: int) -> Decimal | float | int:
        """Return a value, in units of 10^-18, as a producer of a form has it."""
        if form == "exact":
            return Decimal(f"{value}e-{_SCALE}")
        if form == "integer":
            return min(max(value // PARTS, -WHOLE_LIMIT), WHOLE_LIMIT)
        most = _LONGEST_SINGLE if form == "single" else _LONGEST_DOUBLE
        step = min(max(grid_floor(Fraction(value, PARTS), self._grid), -most), most)
        return step // 3 * float(self._grid) + (step - step // 3) * float(self._grid)

    def _token(self, form: str, value: int | None, chance: random.Random) -> str:
        if value is None:
            return chance.choice(_NO_NUMBERS)
        number = self._number(form, value)
        if isinstance(number, int):
            return str(number)
        if isinstance(number, Decimal):
            return chance.choice((f"{number:f}", f"{value}e-{_SCALE}"))
        number = struct.unpack("<f", struct.pack("<f", number))[0] if form == "single" else number
        return chance.choice((repr(number), f"{Decimal(number):f}", f"{number:.17e}"))

    def _json(self, row: Row, offset: int) -> str:
        """Return a message as JSON, with "@value" in the place of the value."""
        texts = _texts(row, offset)
        if self._layout is not None:
            return json.dumps(_filled(self._tree, texts | {"value": "@value"}))
        fields: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
        options = {"monitor": row.monitor, "threshold": row.threshold and float(row.threshold)}
        fields |= {name: option for name, option in options.items() if option is not None}
        return json.dumps(fields | ({"closed": True} if row.closes else {"value": "@value"}))

    def _arrow(self, record: QueryRecord, offset: int, form: str) -> bytes:
        rows = record.rows
        numbers = [None if row.value is None else self._number(form, row.value) for row in rows]
        columns = {
            name: pa.array([_texts(row, offset)[name] for row in rows], pa.string())
            for name in ("id", "series", "set")
        }
        columns |= {
            "value": pa.array(numbers, _COLUMNS[form]),
            "monitor": pa.array([row.monitor for row in rows], pa.string()),
            "closed": pa.array([row.closes for row in rows]),
            "threshold": pa.array([row.threshold and float(row.threshold) for row in rows], pa.float64()),
        }
        if record.coded:
            columns["series"] = columns["series"].dictionary_encode()
        batch, sink = pa.record_batch(columns), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        found: bytes = sink.getvalue().to_pybytes()
        return found

    def _branch(self, union: list[str], form: str, value: int | None, chance: random.Random) -> bytes:
        """Return a value as a branch of a union."""
        if value is None:
            name = chance.choice(("null", "text", "double"))
            content = {"null": b"", "text": _sized(b"12"), "double": struct.pack("<d", float("nan"))}[name]
            return _varint(union.index(name)) + content
        number = self._number(form, value)
        if isinstance(number, Decimal):
            content = _sized(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        elif isinstance(number, int):
            content = _varint(number)
        else:
            content = struct.pack("<f" if form == "single" else "<d", number)
        return _varint(union.index(form)) + content

    def _avro(self, tree: _Tree, texts: Mapping[str, str | None], value: bytes) -> bytes:
        """Return the fields of a record, and an empty array behind them."""
        parts = []
        for inner in tree.values():
            if isinstance(inner, dict):
                parts.append(self._avro(inner, texts, value))
            elif inner == "value":
                parts.append(value)
            else:
                text = texts[inner]
                parts.append(_varint(0) if text is None else _varint(1) + _sized(text.encode()))
        return b"".join([*parts, _varint(0)])


def _texts(row: Row, offset: int) -> dict[str, str | None]:
    return {"id": f"q{offset}", "series": row.series, "set": row.set_id}


def _filled(tree: _Tree, fields: Mapping[str, Any]) -> _Tree:
    """Return a tree with fields at the ends of its paths."""
    return {
        name: _filled(inner, fields) if isinstance(inner, dict) else fields[inner]
        for name, inner in tree.items()
    }


def _schema(tree: _Tree, union: list[Any], count: list[int]) -> dict[str, Any]:
    """Return the schema of a record; ``count`` numbers the names of its types."""
    count[0] += 1
    kind: dict[str, Any] = {"type": "record", "name": f"r{count[0]}"}
    ends = {"value": union}
    kinds = {
        name: _schema(inner, union, count) if isinstance(inner, dict) else ends.get(inner, ["null", "string"])
        for name, inner in tree.items()
    } | {"tags_of_test": {"type": "array", "items": "string"}}
    return kind | {"fields": [{"name": name, "type": one} for name, one in kinds.items()]}


def _varint(number: int) -> bytes:
    left, found = number << 1 ^ number >> 63, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content
