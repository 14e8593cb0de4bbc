"""The entries of the event log: their bytes, and what is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from stream_svt.errors import UnreadableState
from stream_svt.settings.sources import ListedMeasure, WindowList
from stream_svt.sources.log import (
    MAX_KEYS,
    Accepted,
    Began,
    Done,
    Look,
    Pairs,
    Park,
    Parked,
    Read,
    Standing,
    WindowOpened,
    decode,
    encode,
)

STANDING = Standing("id", 10, 20, 30, {0: 5}, {0: 4, 1: 2**40}, {0: 1})
LIST = WindowList(("a", "b"), (ListedMeasure("visitors", 1), ListedMeasure("visits", 5)), ("/", "é"))
ENTRIES = (
    Began(STANDING),
    WindowOpened(20, bytes(range(16)), LIST, 1, 3),
    Look(40, {0: 7}, {1: 0}, 10_000, by_broker=True),
    Pairs(20, 80, np.arange(5, dtype="<u8").tobytes()),
    Read({0: 6, 1: 2**40}),
    Done(80, 3, None, STANDING),
    Parked(Park.END_FELL, serves=True),
    Accepted(90, 100, "other", {0: 0}, clears=False),
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: type(one).__name__)
def test_an_entry_is_read_as_it_was_written(entry):
    assert decode(encode(entry)) == entry


def test_the_bytes_of_an_entry_never_change():
    # A log is read by every later release.
    assert encode(Read({0: 6})).hex() == "0182a474797065a472656164a76f666673657473810006"
    assert encode(Parked(Park.COMPACTED, serves=True)).hex() == (
        "0183a474797065a67061726b6564a6726561736f6ea9636f6d706163746564a6736572766573c3"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02" + encode(ENTRIES[4])[1:],
        encode(ENTRIES[4])[:-1],
        b"\x01" + msgspec.msgpack.encode({"type": "moved", "offsets": {}}),
        b"\x01" + msgspec.msgpack.encode({"type": "read", "offsets": {"a": 1}}),
    ],
    ids=["empty", "later version", "cut", "unknown kind", "wrong type"],
)
def test_an_entry_that_is_not_understood_is_refused(content: bytes):
    with pytest.raises(UnreadableState, match="event log"):
        decode(content)


def test_the_largest_pairs_fit_a_record():
    assert len(encode(Pairs(2**41, 2**41, bytes(8 * MAX_KEYS)))) < 500_000


def test_each_reason_to_park_has_a_text():
    assert all(one.text for one in Park)
