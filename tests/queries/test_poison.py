"""Records that were made to hurt: a worker names them and reads on, and so does the one after it."""

from __future__ import annotations

import resource
import time

import numpy as np
import pyarrow as pa
import pytest

from stream_svt.queries.columnar import MAX_TEXT_IN_ALL
from tests.support.query_records import arrow, columnar_batch


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_bodies_are_refused_before_anything_is_inflated(compression: str) -> None:
    bomb = arrow(compression, id=["x"], value=[1], other=["z" * (100 << 20)])
    assert len(bomb) < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert columnar_batch(bomb).rejects == [(8, "not-arrow")]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10
    entries = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["z" * (100 << 20)]))
    only = arrow(compression, id=["x"], value=[1], other=entries)
    assert columnar_batch(only).rejects == [(8, "not-arrow")]


def test_a_dictionary_is_never_expanded() -> None:
    """A million rows that share a text of 250 characters cost the record a megabyte, and would cost the worker 250."""
    rows = (1 << 20) - 4096
    shared = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["z" * 250]))
    message = arrow(id=shared)
    assert len(message) <= 1 << 20
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert columnar_batch(message).rejects == [(8, "too-large")]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert time.monotonic() - began < 5
    rows = MAX_TEXT_IN_ALL // 250
    shared = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["z" * 250]))
    assert len(columnar_batch(arrow(id=shared))) == rows
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["z" * 3000]))
    assert columnar_batch(arrow(id=long)).rejects == [(8, "bad-id")]


def test_rows_that_cost_nothing_to_send_are_refused_at_once() -> None:
    message = arrow(id=pa.nulls(1 << 20), value=pa.nulls(1 << 20))
    assert len(message) < 1000
    assert columnar_batch(message).rejects == [(8, "missing-id")]
    message = arrow(id=pa.nulls(1 << 26), value=pa.nulls(1 << 26))
    assert columnar_batch(message).rejects == [(8, "too-large")]


def test_numbers_of_the_other_byte_order_are_refused_for_swapping_them_takes_copies() -> None:
    message = bytearray(arrow(id=["x"], value=[1]))
    # The schema's table has no field for the default, little: find its vtable and let its first field point at a 1.
    at = 8
    root = at + int.from_bytes(message[at : at + 4], "little")
    header = root - int.from_bytes(message[root : root + 4], "little", signed=True)
    place = root + int.from_bytes(message[header + 8 : header + 10], "little")
    schema = place + int.from_bytes(message[place : place + 4], "little")
    vtable = schema - int.from_bytes(message[schema : schema + 4], "little", signed=True)
    assert int.from_bytes(message[vtable + 4 : vtable + 6], "little") == 0
    message[vtable + 4 : vtable + 6] = message[vtable + 6 : vtable + 8]  # any field that is not 0 will do
    assert columnar_batch(bytes(message)).rejects == [(8, "not-arrow")]


@pytest.mark.parametrize("threshold", ["1E-350", "1E-5000"])
def test_a_threshold_too_small_for_a_double_is_refused_as_in_json(threshold: str) -> None:
    power = -int(threshold.partition("E")[2])
    limits = pa.Array.from_buffers(
        pa.decimal128(38, power), 1, [None, pa.py_buffer((1).to_bytes(16, "little"))]
    )
    message = arrow(id=["x"], value=[1], threshold=limits)
    assert columnar_batch(message).rejects in ([(8, "bad-threshold")], [(8, "not-arrow")])
