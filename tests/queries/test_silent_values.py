"""No value, however odd its bits, makes a decoder or the library warn, print, log, raise or refuse a record."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream_svt.columns import decimals
from stream_svt.errors import MisuseError
from stream_svt.library import quantile, svt, top_k
from tests.support.avro import varint
from tests.support.formats import JSON, MAPPED, Format, Record, arrow, avro

pytest.importorskip("fastavro")

HALVES = [0x7C00, 0xFC00, 0x7C01, 0xFC01, 0x7DFF, 0x7E00, 0xFFFF, 0x0001, 0x8001, 0x03FF, 0x8000, 0x7BFF]
"""Infinities, signalling NaNs, quiet ones, denormals, minus zero, the largest number."""
SINGLES = [one << 16 for one in (0x7F80, 0xFF80, 0x7FA0, 0xFFA0, 0x7FC0, 0xFFC0, 0x8000, 0x0001, 0x7F7F)]
SINGLES += [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x00000001, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0xFF7FFFFF]
DOUBLES = [one << 48 for one in (0x7FF0, 0xFFF0, 0x7FF4, 0xFFF4, 0x7FF8, 0xFFF8, 0x8000, 0x0001, 0x7FEF)]
DOUBLES += [0x7FF0000000000001, 0xFFF0000000000001, 1, (1 << 63) + 1, (1 << 63) - 1, (1 << 64) - 1]
DOUBLES += [
    0x43DFFFFFFFFFFFFF,
    0x43E0000000000000,
    0xC3E0000000000000,
    0x43D0000000000000,
    0x000FFFFFFFFFFFFF,
]
WIDE = [0, -1, 2**63 - 1, -(2**63), 2**62, -(2**62), 2**62 - 1, 5]


def bits(patterns: list[int], size: int, kind: pa.DataType) -> pa.Array:
    """Return a column of these bit patterns, and of random ones."""
    rng = random.Random(size)
    given = [*patterns, *(rng.getrandbits(8 * size) for _ in range(500))]
    return pa.Array.from_buffers(
        kind, len(given), [None, pa.py_buffer(b"".join(one.to_bytes(size, "little") for one in given))]
    )


COLUMNS = {
    "half": bits(HALVES, 2, pa.float16()),
    "single": bits(SINGLES, 4, pa.float32()),
    "double": bits(DOUBLES, 8, pa.float64()),
    **{
        f"{sign}int{size}": bits(
            [one % 2**size for one in WIDE], size // 8, getattr(pa, f"{sign}int{size}")()
        )
        for size in (8, 16, 32, 64)
        for sign in ("", "u")
    },
    **{
        f"decimal of {size} bits, scale {scale}": bits(
            [0, 1, 2 ** (size - 1), 2 ** (size - 1) - 1, 2**size - 1],
            size // 8,
            getattr(pa, f"decimal{size}")(9 if size == 32 else 18, scale),
        )
        for size in (32, 64, 128, 256)
        if hasattr(pa, f"decimal{size}")
        for scale in (0, 3, 18, -5)
        if size != 32 or scale <= 9
    },
    "text": pa.array(["nan", "1e999", "7", None]),
    "bool": pa.array([True, False, None]),
    "time": pa.array([2**63 - 1, 0, None], pa.timestamp("ns")),
    "nothing": pa.nulls(5),
    "list": pa.array([[1.0], None, []]),
}
TOKENS = [
    *[
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "inf",
        "null",
        "true",
        "[]",
        "{}",
        "1e999",
        "-1e999",
        "1e-999",
        "-0",
        "0e99",
        "-0.0",
        "1E400",
        "5e-324",
        "-5e-324",
    ],
    *(str(one) for one in WIDE),
    *(
        "1" + "0" * 5000,
        "-" + "9" * 5000,
        "0." + "0" * 5000 + "1",
        "1e99999999999999999999",
        "-1e-99999999999999999",
    ),
    *("1,000", "-1,234,567.89", "0,5", "1 ,0e3", "1 000", "1.000,5", "+1", "01", ".5", "1.", "0x1F", "1_000"),
    *(
        '"NaN"',
        '"1"',
        '""',
        "1.7976931348623157e308",
        "2e308",
        "18446744073709551616",
        "1" * 300 + "." + "1" * 300,
    ),
]


def raw_avro(kind: Any, contents: list[bytes]) -> Format:
    """Return a format whose records have these bytes as their value."""
    form = avro(kind)
    return Format(
        lambda _: [Record(n, b"\0\0\0\0\1" + one) for n, one in enumerate(contents)], form.layout, form.schema
    )


def decimal_bytes(size: int) -> list[bytes]:
    rng = random.Random(size)
    return [
        b"",
        *(one * size for one in (b"\0", b"\xff", b"\x7f", b"\x80")),
        *(rng.randbytes(size) for _ in range(50)),
    ]


BYTES = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 5}
FIXED = {"type": "fixed", "name": "f", "size": 12, "logicalType": "decimal", "precision": 20, "scale": 5}
SIZED = [varint(len(one)) + one for size in (1, 8, 9, 40, 500) for one in decimal_bytes(size)]
AVRO = {
    "float": raw_avro("float", [struct.pack("<I", one) for one in SINGLES]),
    "double": raw_avro("double", [struct.pack("<Q", one) for one in DOUBLES]),
    "long": raw_avro("long", [varint(one) for one in WIDE]),
    "bytes": raw_avro(BYTES, SIZED),
    "bytes without a type": raw_avro("bytes", SIZED),
    "text": raw_avro("string", SIZED),
    "fixed": raw_avro(FIXED, [one for one in decimal_bytes(12) if one]),
    **{
        f"union of {', '.join(str(at) for at in order)}": raw_avro(
            [["null", "string", "double", BYTES, "float"][at] for at in order],
            [
                varint(order.index(at)) + content
                for at, contents in (
                    (0, [b""]),
                    (1, SIZED),
                    (2, [struct.pack("<Q", one) for one in DOUBLES]),
                    (3, SIZED),
                    (4, [struct.pack("<I", one) for one in SINGLES]),
                )
                for content in contents
            ],
        )
        for order in ((0, 1, 2, 3, 4), (3, 1, 0, 4, 2), (2, 4, 1, 3, 0), (1, 3, 4, 2, 0))
    },
}


@contextmanager
def silence(capfd: Any, caplog: Any) -> Iterator[None]:
    """Fail if what happens inside warns, prints or logs anything, or leaves an error of floats to its caller."""
    caplog.set_level(0)
    with warnings.catch_warnings(record=True) as warned, np.errstate(all="warn"):
        warnings.simplefilter("always")  # an error could be caught
        yield
    assert warned == []
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


DICTIONARIES = [
    name
    for name in COLUMNS
    if name not in {"half", "nothing", "list"} and ("decimal" not in name or "128" in name)
]
"""Columns of which pyarrow makes dictionaries."""


@pytest.mark.parametrize(
    ("name", "coded"), [*((one, False) for one in COLUMNS), *((one, True) for one in DICTIONARIES)]
)
def test_columns_of_any_type_and_bits_leave_no_trace(name, coded, capfd, caplog):
    column = COLUMNS[name]
    if coded:
        codes = pa.array([*range(len(column)), None], pa.int32())
        column = pa.DictionaryArray.from_arrays(codes, column)
    form = arrow(column.type)
    with silence(capfd, caplog):
        batch = form.batch(column)
    assert (len(batch), batch.rejects) == (len(column), [])


@pytest.mark.parametrize("form", [JSON, MAPPED], ids=["JSON", "mapped JSON"])
def test_json_of_any_value_leaves_no_trace(form, capfd, caplog):
    for given in (TOKENS, TOKENS * 30, *([one] for one in TOKENS)):
        with silence(capfd, caplog):
            batch = form.batch(given)
        assert (len(batch), batch.rejects) == (len(given), [])


@pytest.mark.parametrize("name", AVRO)
def test_avro_of_any_value_leaves_no_trace(name, capfd, caplog):
    form = AVRO[name]
    with silence(capfd, caplog):
        batch = form.batch([])
    assert (len(batch), batch.rejects) == (len(form.records([])), [])


@pytest.mark.parametrize("kind", ["half", "single", "double"])
def test_the_library_warns_of_no_value(kind, capfd, caplog):
    values = COLUMNS[kind].to_numpy()
    finite = values[np.isfinite(values)]
    finite = finite[abs(finite) < 100]
    with silence(capfd, caplog):
        for given in (values, finite, list(finite), [Decimal("sNaN")], [Decimal("1e-9999"), 5]):
            for call in (partial(svt, threshold=3), partial(top_k, k=1), partial(quantile, level=0.5)):
                for step in (None, 1):
                    with suppress(MisuseError):
                        call(given, granularity=step)


def test_every_bit_pattern_of_a_half_is_read_as_the_double_of_its_value():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    halves = patterns.view(np.float16)
    with np.errstate(all="ignore"):
        expected = decimals.doubles(halves.astype(np.float64))
    with np.errstate(all="warn"):
        found = decimals.doubles(halves)
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]
