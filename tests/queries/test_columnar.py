"""The columns of a columnar record, against its rows read one by one."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.columns.strings import KeyedHash
from stream_svt.queries import codec, columnar
from tests.support import columnar_rows
from tests.support.engine_play import numbers
from tests.support.query_records import ARROW, AT_HOME, Record, arrow, decoder

MONITORS = ("hot", "cold")
TEXTS = st.one_of(
    st.sampled_from(["a", "ß", "水" * 100, "x" * 256, "é" * 256]),
    st.sampled_from(["a", "b", "", "é" * 257, "x" * 257, "hot", "cold", "lukewarm"]),
    st.text(min_size=1, max_size=5),
)
GOOD = st.sampled_from(["a", "b", "水", "hot", "cold", "x" * 256, "é" * 256])
NUMBERS: dict[Any, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.floats(-1e3, 1e3) | st.floats(-1e-14, 1e-14),
    pa.decimal128(18, 4): st.decimals(-(10**13), 10**13, places=4),
    pa.decimal128(38, 2): st.decimals(-(10**35), 10**35, places=2),
    pa.decimal128(38, 30): st.decimals(-(10**7), 10**7, places=30),
    pa.decimal256(76, 40): st.decimals(-(10**30), 10**30, places=40),
    pa.string(): st.just("7"),
}


@st.composite
def columns(draw: Any, rows: int, kind: Any, entries: st.SearchStrategy[Any], may_lack: bool) -> Any:
    """Draw a column: plain, or with a dictionary, which may hold null and what no row uses; perhaps a slice."""
    if may_lack:
        entries = entries | st.none()
    extra = draw(st.integers(0, 2))
    if not draw(st.booleans()) or kind == pa.float16():
        return pa.array(draw(st.lists(entries, min_size=rows + extra, max_size=rows + extra)), kind)[extra:]
    dictionary = pa.array(draw(st.lists(entries, min_size=1, max_size=4)), kind)
    codes = st.integers(0, len(dictionary) - 1) | (st.none() if may_lack else st.nothing())
    index = pa.array(
        draw(st.lists(codes, min_size=rows + extra, max_size=rows + extra)),
        draw(st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64()])),
    )
    return pa.DictionaryArray.from_arrays(index, dictionary)[extra:]


@st.composite
def messages(draw: Any) -> bytes:
    """Draw a record of a few batches, good ones as often as bad ones."""
    rows, is_good = draw(st.integers(0, 6)), draw(st.booleans())
    kind = draw(st.sampled_from([*NUMBERS]))
    texts = GOOD if is_good else TEXTS
    text = st.sampled_from([pa.string(), pa.large_string()])
    given = {
        "id": draw(columns(rows, draw(text), texts, not is_good)),
        "value": draw(columns(rows, kind, NUMBERS[kind], True)),
    }
    options = {
        "series": columns(rows, draw(text), texts, True),
        "set": columns(rows, draw(text), texts, not is_good),
        "monitor": columns(rows, draw(text), st.sampled_from(MONITORS) if is_good else texts, True),
        "closed": columns(rows, pa.bool_(), st.booleans(), True),
        "threshold": columns(rows, pa.float64(), st.floats(-9, 9) if is_good else st.floats(), True),
    }
    given |= {name: draw(column) for name, column in options.items() if draw(st.booleans())}
    if not is_good and draw(st.booleans()):
        del given[draw(st.sampled_from([*given]))]
    table, sink = pa.table(given), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        cut = draw(st.integers(0, rows))
        for piece in (table[:cut], table[cut:]) if draw(st.booleans()) else (table,):
            writer.write_table(piece)
    return bytes(sink.getvalue())


def check(message: bytes, known: columnar.DictionaryCache) -> None:
    """Compare the columns of a message with its rows."""
    expected, batch, reason = columnar_rows.read(message, MONITORS), QueryBatch("t", 0, 1), None
    try:
        columnar.read(message, batch, MONITORS, known)
    except columnar.MalformedColumns as refused:
        reason = refused.args[0]
    assert reason == expected.reason
    if reason is not None:
        return
    rows = range(len(batch.whole))
    assert [batch.query_id[row] if batch.query_id else None for row in rows] == expected.ids
    assert [batch.series[row] if batch.series else None for row in rows] == expected.series
    assert (batch.set_id or [None] * len(rows)) == expected.sets
    options = batch.threshold, batch.monitor, batch.markers
    assert options == (expected.threshold, expected.monitor, expected.markers)
    fraction = np.zeros_like(batch.whole) if batch.fraction is None else batch.fraction
    assert [*zip(batch.whole.tolist(), fraction.tolist(), strict=True)] == expected.values


@settings(max_examples=80)
@given(messages(), messages())
def test_columns_hold_what_the_rows_hold_and_are_rejected_for_the_same_reason(
    message: bytes, other: bytes
) -> None:
    known = columnar.DictionaryCache()  # whatever records precede
    for each in (message, other, message):
        check(each, known)


@settings(max_examples=60)
@given(messages(), st.integers(0, 2**32))
def test_damaged_records_are_read_or_rejected_as_row_by_row(message: bytes, seed: int) -> None:
    chance, damaged = random.Random(seed), bytearray(message)
    for _ in range(chance.randrange(1, 4)):
        damaged[chance.randrange(len(damaged))] = chance.choice(
            (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
        )
    known = columnar.DictionaryCache()
    for each in (message, bytes(damaged), message):
        check(each, known)


def test_a_record_with_any_of_its_bits_changed_is_read_or_rejected_as_row_by_row():
    coded = pa.array(["x", None, "y"]).dictionary_encode()
    message, known = arrow(id=["a", "b", "c"], value=[1, None, 2], series=coded), columnar.DictionaryCache()
    for place in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[place // 8] ^= 1 << place % 8
        check(bytes(damaged), known)


def test_equal_dictionaries_of_records_are_one_whose_bytes_are_copied():
    known, shared = columnar.DictionaryCache(), []
    for number, names in enumerate((["x", "y"], ["x", "y"], ["x", "z"], ["x", "yy"], ["x", "yy"])):
        batch = QueryBatch("t", number, number + 1)
        message = arrow(id=["a"] * 2, series=pa.array(names).dictionary_encode())
        columnar.read(message, batch, (), known)
        assert [batch.series[row] for row in range(2)] == names
        shared.append(batch.series._entries)  # type: ignore[attr-defined]
        _, buffers, texts = known._columns["series"]
        kept = *(np.frombuffer(buffer, np.uint8) for buffer in buffers), texts.start, texts.length
        assert not any(np.shares_memory(one, np.frombuffer(message, np.uint8)) for one in kept)
    assert [first is second for first, second in itertools.pairwise(shared)] == [True, False, False, True]


def test_columns_of_the_same_bytes_that_mean_something_else_share_nothing():
    known, column = columnar.DictionaryCache(), pa.array(["xy", "zz", "u"])
    _, offsets, text = column.buffers()
    first = known.slices("id", column)
    assert known.slices("id", column) is first
    assert known.slices("series", column) is not first
    null = pa.py_buffer(b"\x05")
    for other in (
        pa.Array.from_buffers(pa.string(), 2, [None, offsets, text]),
        pa.Array.from_buffers(pa.string(), 3, [null, offsets, text]),
        pa.Array.from_buffers(pa.string(), 2, [None, offsets, text], offset=1),
    ):
        found = known.slices("id", other).texts
        assert [found[row] for row in range(len(found))] == other.to_pylist()


def records_of(*messages: bytes) -> list[Record]:
    return [Record(8 + 2 * place, AT_HOME, message, headers=ARROW) for place, message in enumerate(messages)]


def test_records_of_several_types_and_dictionaries_become_one_batch():
    coded = pa.array(["x", None, "y"]).dictionary_encode()
    found = decoder().decode(
        [
            *records_of(
                arrow(id=["a"], value=[1]),
                arrow(id=["b", "c", "d"], value=[1.5, 2.5, None], series=coded, threshold=[None, 1, 2]),
                b"no arrow",
                arrow(id=["e"], value=[Decimal("0.25")], series=["y"], set=["s"]),
            ),
            Record(20, AT_HOME, b'{"id":"f","value":7}'),
        ]
    )
    rows = range(len(found))
    assert [found.query_id[row] for row in rows] == ["a", "b", "c", "d", "e", "f"]
    assert [found.series[row] for row in rows] == [None, "x", None, "y", "y", None]
    assert (found.offset.tolist(), found.row.tolist()) == ([8, 10, 10, 10, 14, 20], [0, 0, 1, 2, 0, 0])
    assert (found.rejects, found.set_id) == ([(12, "not-arrow")], [None, None, None, None, "s", None])
    assert [*map(str, numbers(found))] == ["1", "3/2", "5/2", "None", "1/4", "7"]
    assert found.threshold == {2: 1, 3: 2}
    assert [found.series.coded(*rows) for rows in ((4, 5), (0, 6), (2, 5))] == [None] * 3
    for first, last in ((1, 4), (2, 3), (3, 3)):
        entries, codes = found.series.coded(first, last)
        coded = [None if row < 0 else entries[row] for row in codes.tolist()]
        assert coded == [found.series[row] for row in range(first, last)]
    assert [found.index_of(*place) for place in ((8, 1), (10, 1), (10, 9), (11, 0), (21, 0))] == [
        1,
        2,
        4,
        4,
        6,
    ]
    hashes = found.series.hashes(KeyedHash(bytes(32))).tolist()
    assert hashes[3] == hashes[4] != hashes[1] != hashes[0] == hashes[2] == hashes[5]


def test_whole_numbers_need_no_fractions_because_their_type_says_so():
    assert decoder().decode(records_of(arrow(id=["a"], value=[1]), arrow(id=["b"]))).fraction is None
    assert decoder().decode(records_of(arrow(id=["a"], value=[1.0]))).fraction is not None


def test_a_batch_ends_with_the_record_that_fills_it(monkeypatch):
    monkeypatch.setattr(codec, "ROWS_AT_ONCE", 3)
    given_records = records_of(*[arrow(id=["a", "b"])] * 3)
    assert (decoder().decode(given_records).end, decoder().decode(given_records[2:]).end) == (11, 13)
    plain = Record(9, AT_HOME, b'{"id":"f","value":7}')
    mixed = [given_records[0], plain, *given_records[1:]]
    assert [len(decoder().decode(mixed[at:])) for at in (0, 2)] == [3, 4]


def test_a_record_of_too_many_batches_is_refused_and_a_dictionary_is_converted_once(monkeypatch):
    entries = pa.array([str(number) for number in range(20_000)])
    table = pa.table({"id": pa.DictionaryArray.from_arrays(pa.array([7] * 300, pa.int16()), entries)})
    converted, of = [], columnar._Slices.of
    monkeypatch.setattr(columnar._Slices, "of", lambda column: (converted.append(column), of(column))[1])
    for count, reasons in ((columnar.MAX_PARTS, []), (columnar.MAX_PARTS + 1, [(8, "too-large")])):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table[:count], max_chunksize=1)
        batch = decoder().decode(records_of(sink.getvalue().to_pybytes()))
        assert batch.rejects == reasons
    assert len(converted) == 1


def test_a_record_that_extends_a_dictionary_is_refused_for_each_extension_is_a_larger_copy():
    entries, sink = [*"abc"], pa.BufferOutputStream()
    schema = pa.schema({"id": pa.dictionary(pa.int32(), pa.string())})
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for more in ([], ["d"]):
            entries += more
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(entries))
            writer.write_batch(pa.record_batch([column], schema=schema))
    assert decoder().decode(records_of(sink.getvalue().to_pybytes())).rejects == [(8, "not-arrow")]


@pytest.mark.parametrize("bits", [128, 256])
def test_a_decimal_beyond_its_type_is_exact_up_to_the_largest_number(bits):
    """Arrow does not check what a writer puts there."""
    sizes = [12, -12, 1 << 64 | 12, -1 << 64 | 12, 1 << bits - 2, -1 << bits - 2, (1 << 63) - 1, -1 << 63]
    data = pa.py_buffer(b"".join(size.to_bytes(bits // 8, "little", signed=True) for size in sizes))
    kind = {128: pa.decimal128, 256: pa.decimal256}[bits](18, 1)
    message = arrow(id=["a"] * len(sizes), value=pa.Array.from_buffers(kind, len(sizes), [None, data]))
    check(message, columnar.DictionaryCache())
    found = decoder().decode(records_of(message)).whole.tolist()
    assert found == [min(max(size // 10, -(1 << 62)), 1 << 62) for size in sizes]


def codes_of(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([text]))


@pytest.mark.parametrize(
    ("columns", "most"),
    [
        ({"id": codes_of("x", 200_000)}, 80),
        ({"id": codes_of("x", 100_000), "monitor": codes_of("hot", 100_000)}, 100),
        ({"closed": pa.array(np.ones(180_000, np.bool_)), "set": codes_of("s", 180_000)}, 200),
    ],
    ids=["ids", "monitors", "markers"],
)
def test_a_record_of_few_bytes_a_row_takes_a_known_multiple_of_memory(columns, most):
    message = arrow(**columns)
    given = records_of(message)
    decoder().decode(given)
    tracemalloc.start()
    try:
        assert decoder().decode(given).rejects == []
        assert tracemalloc.get_traced_memory()[1] < most * len(message)
    finally:
        tracemalloc.stop()
