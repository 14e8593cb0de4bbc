"""Batches read as columns hold what aiokafka's own reader finds in them, and fail where it fails."""

from __future__ import annotations

import inspect
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from aiokafka import codec as codecs
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.kafka import batches as module
from stream_svt.kafka import columns
from stream_svt.protocol.records import OneRecord, Records
from tests.support.batches import (
    ABORT,
    COMMIT,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Wire,
    as_columns,
    by_client,
    disagreement,
    marker,
    sized,
    varint,
    whole_batches,
)

QUERY = b'{"id":"q%d","value":%d}'
parts = (
    st.none()
    | st.binary(max_size=80)
    | st.sampled_from([b"", b"\0\0\0", b"hospital-1", bytes(200), b"}" * 9000])
)
headers = st.lists(
    st.tuples(st.sampled_from([b"", b"trace", b"\xff\xfe"]), st.none() | st.binary(max_size=9)), max_size=3
)
numbers = st.sampled_from([0, 0, 1, 63, 64, 8191, 8192, -1, -5000, 1 << 20, -(1 << 34), (1 << 62)])


@st.composite
def batch(draw, base: int, *, plain: bool = False) -> Batch:
    """A batch that a broker can hold, unless its bytes are changed."""
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 70]), max_size=40 if plain else 8))
    offsets = [sum(steps[:index]) + index // 99 for index in range(len(steps))]
    records = [
        Wire(offset, draw(numbers), draw(parts), draw(parts), () if plain else draw(st.just(()) | headers))
        for offset in offsets
    ]
    last = max(offsets, default=0) + draw(st.integers(0, 2))
    attributes = draw(st.sampled_from([0, LOG_APPEND_TIME, TRANSACTIONAL]))
    producer = draw(st.sampled_from([7, 8])) if attributes == TRANSACTIONAL else -1
    return Batch(base, records, draw(st.integers(0, 4)), attributes, producer, last=last)


@st.composite
def spoiled(draw, whole: Batch) -> Batch:
    """The same batch with bytes that no producer writes, and a checksum that holds."""
    content = bytearray(whole.plain)
    if content:
        for _ in range(draw(st.integers(0, 3))):
            content[draw(st.integers(0, len(content) - 1))] = draw(
                st.sampled_from([0, 1, 2, 127, 128, 200, 255])
            )
    end = draw(st.sampled_from([len(content), len(content) // 2, max(len(content) - 1, 0)]))
    number = draw(st.sampled_from([len(whole.records), len(whole.records) + 1, 0, -1, 1, (1 << 31) - 1]))
    return whole.changed(
        content=bytes(content[:end]), number=draw(st.sampled_from([number, len(whole.records)]))
    )


@st.composite
def answers(draw) -> tuple[bytes, list[tuple[int, int]], int]:
    """Return what brokers answer a fetch with, the aborted transactions in it, and an offset to read from."""
    base = draw(st.integers(0, 3))
    first, found, aborted = base, [], []
    for _ in range(draw(st.integers(1, 5))):
        one = draw(batch(base, plain=draw(st.booleans())))
        if draw(st.integers(0, 4)) == 0:
            one = draw(spoiled(one))
        if draw(st.integers(0, 9)) == 0:
            one = one.changed(damaged=True)
        found.append(one)
        base += (one.last or 0) + 1
        if one.producer >= 0 and draw(st.booleans()):
            aborted.append((one.producer, one.base))
            found.append(marker(base, one.producer, draw(st.sampled_from([ABORT, COMMIT]))))
            base += 1
    content = b"".join(one.encode() for one in found)
    cut = draw(st.sampled_from([0, 0, 1, 30]))
    # Brokers begin with the batch that holds the offset.
    return content[: len(content) - cut], aborted, draw(st.integers(first, first + (found[0].last or 0)))


compiled = pytest.mark.parametrize("compiled", [True, False])
"""Whether google-crc32c was installed compiled."""


@compiled
@given(st.integers(0, 2 * module.SMALL), st.binary(min_size=1, max_size=64), st.integers(0, 50), st.data())
def test_a_checksum_is_that_of_the_client_and_a_flipped_bit_is_refused(compiled, size, text, before, data):
    whole = bytearray(Batch(0, [Wire(0, value=text + bytes(size))]).encode())
    bit = data.draw(st.none() | st.integers(21 * 8, len(whole) * 8 - 1) | st.integers(17 * 8, 21 * 8 - 1))
    if bit is not None:
        whole[bit // 8] ^= 1 << bit % 8
    content = memoryview(bytes(before) + whole)[before:]
    read = module._Batch(DefaultRecordBatch(content), content, before)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(module, "_crc32c", None)
        assert read.validate_crc() is DefaultRecordBatch(content).validate_crc() is (bit is None)


def test_a_checksum_that_is_not_compiled_is_not_taken_and_gives_no_warning(monkeypatch):
    assert module._crc32c is module._compiled_checksum() is not None
    monkeypatch.delitem(sys.modules, "google_crc32c")
    monkeypatch.setitem(sys.modules, "google_crc32c.cext", None)  # cannot be imported
    assert module._compiled_checksum() is None


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=3) | st.just([1 << 20])


def compare(answer, most, *, text: bool) -> None:
    content, aborted, offset = answer
    assert disagreement(content, offset, aborted, most=most, text=text) is None


@given(answers(), sizes, st.booleans())
def test_the_records_the_position_and_the_error_are_those_of_the_client(answer, most, text):
    compare(answer, most, text=text)


def queries(count: int, base: int = 0, **options: object) -> Batch:
    """Return a batch as JSON producers write them, of texts of many lengths."""
    chance = random.Random(base)
    records = [
        Wire(
            index,
            index // 3,
            b"hospital-%d" % chance.randrange(200),
            QUERY % (index, chance.randrange(10**5)),
        )
        for index in range(count)
    ]
    return Batch(base, records, **options)


def answer(*found: Batch) -> bytes:
    return b"".join(one.encode() for one in found)


@pytest.fixture
def alone(monkeypatch):
    """Refuse to read with the client's reader."""

    def refuse(*_):
        raise AssertionError("not read as columns")

    monkeypatch.setattr(module.WholeBatch, "records", refuse)
    return monkeypatch


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("codec", range(5))
def test_what_producers_write_is_read_as_columns(alone, codec, text):
    found = [
        queries(400, 0, codec=codec),
        queries(1, 400, codec=codec, attributes=LOG_APPEND_TIME),
        queries(90, 401, codec=codec, attributes=TRANSACTIONAL, producer=3),
        marker(491, 3, COMMIT),
        Batch(492, [Wire(3, -5, None, None), Wire(70, 9000, b"", b"")], codec, last=99),
        Batch(592, [Wire(0, 0, b"k", bytes(9000), [(b"content-type", b"arrow"), (b"\xff", None)])], codec),
        Batch(593, [Wire(0, 0, b"\0\2\0", bytes(range(256)) * 90)], codec),
    ]
    content = answer(*found)
    for most in (1 << 20, 100):
        assert as_columns(content, most=[most], text=text) == by_client(content)
    assert len(by_client(content).records) == 495


@pytest.mark.parametrize("codec", [0, 4])
def test_text_is_not_searched_record_by_record(alone, codec):
    alone.setattr(columns, "_walk", None)
    content = answer(
        *(queries(count, 1000 * index, codec=codec) for index, count in enumerate((300, 1, 1, 250, 2)))
    )
    assert as_columns(content, text=True) == by_client(content)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (False, [b"0" * 40, bytes(40), b"\0\4\0\2" * 10, b"}\0" * 20]),
        (True, [QUERY % (1, value) for value in (0, 5, 7)] + [b"{}\n" * 8]),
    ],
    ids=["bytes", "text"],
)
def test_the_values_decide_nothing_about_how_they_are_read(alone, text, values):
    made: list[list[str]] = []
    for name in ("_walk", "_guess", "_varints"):
        alone.setattr(columns, name, noted(made, getattr(columns, name)))
    for value in values:
        made.append([])
        content = answer(Batch(0, [Wire(index, 1, b"key", value) for index in range(50)]))
        assert as_columns(content, text=text) == by_client(content)
    assert made[1:] == made[:-1]
    assert ("_guess" in made[0], "_walk" in made[0]) == (text, not text)


def noted(made: list[list[str]], original: Callable[..., object]) -> Callable[..., object]:
    def note(*arguments):
        made[-1].append(original.__name__)
        return original(*arguments)

    return note


def test_after_a_batch_that_only_the_client_reads_the_others_are_read_as_columns():
    odd = Batch(300, [Wire(index) for index in (0, 2, 1, 3, 4)])
    content = answer(queries(300), odd, queries(200, 305), odd.changed(base=505), queries(9, 510))
    for most in (1 << 20, 7):
        assert as_columns(content, most=[most]) == by_client(content)


ONES = 600


@pytest.mark.parametrize("irregular", [range(450, 451), range(5, ONES, 10), range(0, ONES, 2), range(ONES)])
def test_batches_that_only_the_client_reads_do_not_make_the_others_be_read_one_by_one(monkeypatch, irregular):
    """Else a producer of a few such batches would have a fetch, and with a cadence a tick, for each record."""
    tried: list[int] = []

    def noted_read(bodies, **options):
        tried.append(len(bodies))
        return columns.read(bodies, **options)

    monkeypatch.setattr(module, "read", noted_read)
    found = [queries(1, base) for base in range(ONES)]
    for base in irregular:
        found[base] = found[base].changed(content=found[base].plain[:1] + b"\1" + found[base].plain[2:])
    unread = module.Unread(0, text=True)
    unread.add(whole_batches(*found))
    offsets: list[int] = []
    reads = 0
    while unread:
        offsets += [record.offset for record in unread.read(1 << 20)]
        reads += 1
    assert offsets == list(range(ONES))
    assert reads <= ONES // module.FEW + 1
    assert sum(tried) <= 5 * ONES
    assert len(tried) < ONES / 4 or len(irregular) > 1


def test_records_before_those_that_cannot_be_read_are_returned_first(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 2 << 20)
    odd = Batch(2, [Wire(0), Wire(2), Wire(1), Wire(3)])
    for bad in (Batch(6, [Wire(0, value=bytes(3 << 20))], 4), Batch(6, number=1, content=bytes(9))):
        unread = module.Unread(0, text=True)
        unread.add(whole_batches(queries(2), odd, bad, queries(5, 7)))
        assert [record.offset for record in unread.read(100)] == [0, 1, 2, 4, 5]
        for _ in range(2):
            with pytest.raises(CorruptRecordException):
                unread.read(100)
        assert unread.position == 6


# --- what is hostile


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_batch_that_decompresses_without_bound_is_refused_by_name(monkeypatch, codec):
    monkeypatch.setattr(module, "LARGEST", 3 << 20)
    for size in (1 << 20, 3 << 20):
        content = answer(queries(3), Batch(3, [Wire(0, value=bytes(size - 20)), Wire(1)], codec))
        assert len(as_columns(content, most=[3]).records) == 3 + 2 * (size == 1 << 20)
    unread = module.Unread(0, text=False)
    unread.add(whole_batches(Batch(70, [Wire(0, value=bytes(3 << 20))], codec)))
    with pytest.raises(CorruptRecordException, match="offset 70 decompresses to more than 3 MiB"):
        unread.read(10)


def test_records_with_many_headers_are_read_in_smaller_pieces(alone):
    alone.setattr(module, "HEADERS", 900)
    traced = [Wire(index, headers=[(b"trace", b"%d" % index), (b"span", None)]) for index in range(1_000)]
    for found in ([Batch(0, traced)], [Batch(index, traced[:1]) for index in range(1_000)]):
        content = answer(*found)
        assert as_columns(content, text=True) == by_client(content)
        unread = module.Unread(0, text=True)
        unread.add(whole_batches(*found))
        while unread:
            assert sum(len(headers) for headers in unread.read(1_000).headers.values()) <= 900


@pytest.mark.parametrize("count", [columns.SHOWN - 1, columns.SHOWN, columns.SHOWN + 1, 200_000])
def test_of_a_record_with_countless_headers_the_first_are_read(alone, count):
    found = Batch(0, [Wire(0), Wire(1, headers=[(b"n", b"v")] * count), Wire(2)])
    unread = module.Unread(0, text=False)
    unread.add(whole_batches(found))
    before, bad, after = unread.read(10)
    assert (before.headers, len(bad.headers), after.headers) == ((), min(count, columns.SHOWN), ())
    assert (bad.value, after.value) == (b"value", b"value")


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_compressed_batch_that_counts_no_records_has_the_same_bound(monkeypatch, codec):
    monkeypatch.setattr(module, "LARGEST", 2 << 20)
    unread = module.Unread(0, text=False)
    unread.add(whole_batches(Batch(0, codec=codec, content=bytes(3 << 20), number=0)))
    with pytest.raises(CorruptRecordException, match="decompresses to more than 2 MiB"):
        unread.read(10)


@pytest.mark.parametrize("size", [18, 27, 60])
def test_a_batch_that_ends_in_its_header_is_an_error(size):
    content = bytearray(queries(2).encode()[:size])
    content[8:12] = (size - 12).to_bytes(4, "big")
    for one in (bytes(content), bytes(content) + answer(queries(2))):
        assert as_columns(one).error is by_client(one).error is module.UnreadableBatch


def test_a_large_batch_that_only_the_client_reads_is_refused_and_a_small_one_is_not(alone):
    """A record of 100 MB can have 50 million headers, of which aiokafka would make objects."""
    for size in (10, module.PIECE):
        unread = module.Unread(0, text=False)
        odd = Batch(3, [Wire(0, value=bytes(size)), Wire(2), Wire(1)], 4)
        unread.add(whole_batches(odd))
        error, message = (
            (AssertionError, "not read") if size == 10 else (CorruptRecordException, "offset 3 is malf")
        )
        with pytest.raises(error, match=message):
            unread.read(10)


def test_a_stream_of_snappy_that_goes_backwards_ends():
    backwards = codecs.snappy_encode(b"")[:16] + (-4).to_bytes(4, "big", signed=True)
    content = answer(Batch(0, [Wire(0)], 2, compressed=backwards))
    assert as_columns(content).error is module.UnreadableBatch


def test_headers_that_would_go_through_all_the_rest_again_and_again_take_no_time():
    """Of 10,000 records each one has as many headers as there are bytes behind it: not some 10^8 in all."""
    records = [Wire(index, key=b"", value=b"") for index in range(10_000)]
    content = b"".join(sized(one.encode()[1:-1] + varint(4 * (len(records) - one.offset))) for one in records)
    whole = Batch(0, records, content=content + bytes(100_000))
    assert as_columns(answer(whole)).error is module.UnreadableBatch


@pytest.mark.parametrize("number", [0, -1, 2, (1 << 31) - 1])
def test_a_wrong_number_of_records_is_an_error(number):
    content = answer(queries(1, number=number))
    assert as_columns(content).error is by_client(content).error is CorruptRecordException


def changed_batches() -> Iterator[bytes]:
    """Yield a batch of three records cut at every byte and with every bit changed, and some of other kinds."""
    whole = Batch(
        5,
        [
            Wire(0, 1, b"ab", b"{}"),
            Wire(1, 900, None, b"[0]", [(b"n", None)] * 2),
            Wire(4, -70_000, b"", None),
        ],
    )
    plain = whole.plain
    for end in range(len(plain)):
        yield answer(whole.changed(content=plain[:end]))
    for bit in range(8 * len(plain)):
        content = bytearray(plain)
        content[bit // 8] ^= 1 << bit % 8
        yield answer(whole.changed(content=bytes(content)))
    yield answer(whole.changed(attributes=LOG_APPEND_TIME), queries(30, 10), queries(2, 40))
    yield answer(whole.changed(records=[Wire(0), Wire(2), Wire(1), Wire(4)]))


def test_every_end_and_every_changed_bit_of_a_batch_leads_to_what_the_client_finds():
    for content in changed_batches():
        for text in (False, True):
            assert disagreement(content, 5, text=text) is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (at != end).any():", "if False:"),
        ('if data.take(at, mode="clip").any():', "if False:"),
        ("np.where(by_broker, timestamp, timestamp + delta)", "timestamp + delta"),
        ("(offset[1:] <= offset[:-1]).any()", "False"),
        ("view(np.int64) ^ -(value & 1)", "view(np.int64)"),
        ("offset = offset + delta", "offset = offset + np.arange(len(delta))"),
        ("shift += 7", "shift += 8"),
        ("None if length < 0 else buffer", "buffer"),
    ],
)
def test_a_reader_that_is_wrong_in_one_place_is_caught(monkeypatch, right, wrong):
    source = inspect.getsource(columns)
    assert source.count(right) == 1
    broken = types.ModuleType("broken")
    monkeypatch.setitem(sys.modules, "broken", broken)
    exec(source.replace(right, wrong), vars(broken))  # noqa: S102
    for name in ("Body", "Irregular", "read"):
        monkeypatch.setattr(module, name, getattr(broken, name))
    assert any(disagreement(content, 5, text=text) for content in changed_batches() for text in (False, True))


# --- what a reader of raw events takes


def of_client(found: Batch) -> list[tuple[object, ...]] | None:
    """Return what the client reads of a batch, with whether the time is the broker's; None if it fails."""
    records: list[tuple[object, ...]] = []
    try:
        for one in whole_batches(found)[0].records():
            if not records or one.offset > records[-1][0]:
                records.append((one.offset, one.timestamp, one.key, one.value, one.timestamp_type == 1))
    except Exception:  # noqa: BLE001
        return None
    return records


def one_by_one(found: Batch) -> list[tuple[object, ...]] | None:
    """Return the records of a batch by their lengths, whatever their headers are; None unless all of them fit."""
    content, at, records = found.plain, 0, list[tuple[object, ...]]()

    def number(most: int = 5) -> int:
        nonlocal at
        value = 0
        for index in range(most):
            byte, at = content[at], at + 1
            value |= (byte & 127) << 7 * index
            if byte < 128:
                value &= (1 << 64) - 1
                return value >> 1 ^ -(value & 1)
        raise IndexError

    def part() -> bytes | None:
        nonlocal at
        length = number()
        if length < -1:
            raise IndexError
        begin, at = at, at + max(length, 0)
        return None if length < 0 else content[begin:at]

    try:
        for _ in range(len(found.records) if found.number is None else min(found.number, 1000)):
            end = number() + at
            attributes, at = content[at], at + 1
            time, offset, key, value = number(10), number(), part(), part()
            if attributes or offset < 0 or number() < 0 or at > end:
                return None
            time = found.max_time if found.attributes & LOG_APPEND_TIME else found.first_time + time
            records.append((found.base + offset, time, key, value, bool(found.attributes & LOG_APPEND_TIME)))
            at = end
    except IndexError:
        return None
    ascends = all(before[0] < after[0] for before, after in itertools.pairwise(records))
    is_within = bool(records) and records[-1][0] <= found.base + (found.last or 0)
    return records if ascends and at == len(content) and is_within else None


BEYOND = pytest.mark.parametrize(
    "offsets", [[1 << 30], [0, 1 << 30], [1, 0, 1 << 30], [0, 2]], ids=["one", "two", "descending", "next"]
)
"""Offsets of records in a batch whose header tells of no others than 0, or 0 and 1: brokers take it."""


@BEYOND
@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_with_a_record_behind_its_end_hides_no_later_records(offsets, codec):
    evil = Batch(3, [Wire(offset) for offset in offsets], codec, last=min(len(offsets), 2) - 1)
    found = [queries(3), evil, queries(4, 5), queries(200, 9)]
    for most in (1, 100, 1 << 20):
        unread, offsets_read = module.Droppable(0, text=True), list[int]()
        unread.add(whole_batches(*found))
        while unread:
            offsets_read += unread.read(most).offset.tolist()
        assert offsets_read == [0, 1, 2, *range(5, 209)]
        assert (unread.dropped, unread.position) == (1, 209)


@BEYOND
def test_a_query_behind_the_end_of_its_batch_makes_the_batch_unreadable(offsets):
    evil = Batch(3, [Wire(offset) for offset in offsets], last=min(len(offsets), 2) - 1)
    unread = module.Unread(0, text=True)
    unread.add(whole_batches(queries(3), evil, queries(4, 5)))
    assert set(unread.read(100).offset.tolist()) <= {0, 1, 2, 3, 4}
    with pytest.raises(module.UnreadableBatch, match="offset 3 is malformed"):
        unread.read(100)
    assert unread.position <= 5
    client = by_client(answer(queries(3), evil, queries(4, 5)))
    assert client.error is module.UnreadableBatch
    assert all(offset < 5 for offset, *_ in client.records)


BOMB = 1 << 20


@pytest.mark.parametrize("codec", range(1, 5))
def test_each_batch_that_decompresses_too_far_ends_a_read_and_is_tried_once(monkeypatch, codec):
    tried: list[int] = []
    decompress = module._decompress

    def noted_decompress(batch, *arguments):
        tried.append(batch.base_offset)
        return decompress(batch, *arguments)

    monkeypatch.setattr(module, "LARGEST_RAW", BOMB)
    monkeypatch.setattr(module, "_decompress", noted_decompress)
    bombs = [Batch(base, [Wire(0, value=bytes(BOMB))], codec) for base in range(9)]
    unread = module.Droppable(0, text=True)
    unread.add(whole_batches(*bombs, queries(4, 9, codec=codec)))
    for base in range(9):
        assert len(unread.read(100)) == 0
        assert (unread.position, unread.dropped) == (base + 1, base + 1)
    assert tried == [*range(9)]
    assert unread.read(100).offset.tolist() == [9, 10, 11, 12]


def test_the_limit_of_a_raw_topic_is_tried_without_a_smaller_one_before(monkeypatch):
    sizes: list[int] = []
    empty = np.empty
    monkeypatch.setattr(module.np, "empty", lambda size, kind: (sizes.append(size), empty(size, kind))[1])
    for kind in (module.Unread, module.Droppable):
        unread = kind(0, text=True)
        unread.add(whole_batches(Batch(0, [Wire(0, value=bytes(3 << 20))], 4)))
        assert len(unread.read(1)) == 1
    assert sizes == [1 << 20, module.LARGEST, module.LARGEST_RAW]


@pytest.mark.parametrize("spoil", ["none", "last", "descending", "beyond"])
def test_a_large_batch_is_returned_in_slices_and_only_if_all_of_it_can_be_read(monkeypatch, spoil):
    monkeypatch.setattr(module, "SLICE", 70)
    monkeypatch.setattr(module, "MALFORMED", 1000)  # or the client's reader would take what descends
    records = [Wire(index) for index in range(1000)]
    if spoil == "descending":
        records[700:800], records[800:900] = records[800:900], records[700:800]
    if spoil == "beyond":
        records[-1] = Wire(1000)
    whole = Batch(0, records, 4, last=999)
    if spoil == "last":
        whole = whole.changed(content=whole.plain[:-1])
    unread = module.Droppable(0, text=True)
    unread.add(whole_batches(whole, queries(5, 1000)))
    found: list[int] = []
    while unread:
        some = unread.read(100)
        assert len(some) <= 100
        found += some.offset.tolist()
    assert found == [*range(0 if spoil == "none" else 1000, 1005)]
    assert unread.dropped == (spoil != "none")


def test_a_batch_that_only_the_client_reads_is_also_returned_in_slices(monkeypatch):
    monkeypatch.setattr(module, "OBJECTS", 70)
    traced = [(b"trace", b"1")]
    found = Batch(0, [Wire(offset, headers=traced) for offset in (*range(600), 500, *range(600, 900))])
    unread, offsets = module.Droppable(0, text=True), list[int]()
    unread.add(whole_batches(found, queries(5, 900)))
    while unread:
        some = unread.read(100)
        assert len(some) <= 100
        assert not some.headers  # each slice would go through all of them
        offsets += some.offset.tolist()
    assert offsets == [*range(905)]


def with_stamps(records: Records) -> list[tuple[object, ...]]:
    return [
        (one.offset, one.timestamp, one.key, one.value, bool(by_broker))
        for one, by_broker in zip(records, records.stamped, strict=True)
    ]


@st.composite
def sequences(draw) -> list[Batch]:
    """Batches that brokers hold, some of them with a content that nobody can read."""
    base, found = 0, []
    for _ in range(draw(st.integers(1, 5))):
        one = draw(batch(base, plain=draw(st.booleans())))
        one = draw(spoiled(one)) if draw(st.booleans()) else one
        if (len(one.records) if one.number is None else one.number) > 0:  # brokers refuse the others
            found.append(one)
        base += (one.last or 0) + 1
    return found


@given(sequences(), sizes, st.booleans(), st.integers(0, 9))
def test_a_batch_that_cannot_be_read_is_left_out_whole_and_every_time_says_whose_it_is(
    found, most, text, position
):
    read = [(one, one_by_one(one) or of_client(one)) for one in found]
    unread, seen = module.Droppable(position, text=text), []
    unread.add(one for each in found for one in whole_batches(each))
    sizes = itertools.cycle(most)
    while unread:
        seen += with_stamps(unread.read(next(sizes)))
    wanted: list[tuple[object, ...]] = []
    for _, records in read:
        wanted += [one for one in records or () if one[0] >= position]
        position = max(position, wanted[-1][0] + 1) if wanted else position
    assert seen == wanted
    assert unread.dropped == sum(records is None for _, records in read)


def test_records_know_whose_time_they_have_in_every_form():
    broker, producer = queries(4, attributes=LOG_APPEND_TIME), queries(5, 4)
    unread = module.Unread(0, text=True)
    unread.add(whole_batches(broker, producer))
    both = unread.read(100)
    client = Records.of([*whole_batches(broker)[0].records(), *whole_batches(producer)[0].records()])
    constructed = Records.of([OneRecord(0, 0, None, None)])
    for records in (both, client):
        assert records.stamped.tolist() == [True] * 4 + [False] * 5
        assert records[3:].stamped.tolist() == [True] + [False] * 5
        assert records.taken(np.array([8, 0])).stamped.tolist() == [False, True]
        assert Records.concatenated([constructed, records]).stamped.tolist() == [False, *records.stamped]
    assert constructed[:].stamped.tolist() == [False]


def test_a_lack_of_memory_is_not_taken_for_a_batch_that_cannot_be_read(monkeypatch):
    for name in ("read", "_decompress"):
        unread = module.Droppable(0, text=True)
        unread.add(whole_batches(queries(3, codec=1)))
        with monkeypatch.context() as patch:
            patch.setattr(module, name, no_memory)
            with pytest.raises(MemoryError):
                unread.read(10)
        assert not unread.dropped


def no_memory(*_: object, **__: object) -> None:
    raise MemoryError
