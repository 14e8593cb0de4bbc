"""Values of odd bits and forms, in columns, JSON tokens and Avro data."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa

from tests.support.avro import varint

HALVES = [0x7C00, 0xFC00, 0x7C01, 0xFC01, 0x7DFF, 0x7E00, 0xFFFF, 0x0001, 0x8001, 0x03FF, 0x8000, 0x7BFF]
"""Infinities, signalling NaNs, quiet ones, denormals, minus zero, the largest number."""
SINGLES = [one << 16 for one in (0x7F80, 0xFF80, 0x7FA0, 0xFFA0, 0x7FC0, 0xFFC0, 0x8000, 0x0001, 0x7F7F)]
SINGLES += [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x00000001, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0xFF7FFFFF]
DOUBLES = [one << 48 for one in (0x7FF0, 0xFFF0, 0x7FF4, 0xFFF4, 0x7FF8, 0xFFF8, 0x8000, 0x0001, 0x7FEF)]
DOUBLES += [0x7FF0000000000001, 0xFFF0000000000001, 1, (1 << 63) + 1, (1 << 63) - 1, (1 << 64) - 1]
DOUBLES += [0x43DFFFFFFFFFFFFF, 0x43E << 52, 0xC3E << 52, 0x43D << 52, 0x000FFFFFFFFFFFFF]
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
COLUMNS |= {
    f"dictionary of {name}": pa.DictionaryArray.from_arrays(
        pa.array([*range(len(column)), None], pa.int32()), column
    )
    for name, column in COLUMNS.items()
    if name not in {"half", "nothing", "list"}
    and ("decimal" not in name or "128" in name)  # pyarrow makes some
}
TOKENS = [
    "NaN", "nan", "Infinity", "-Infinity", "inf", "null", "true", "[]", "{}", "1e999", "-1e999", "1e-999", "-0", "0e99",
    "-0.0", "1E400", "5e-324", "-5e-324", "+1", "01", ".5", "1.", "0x1F", "1_000", "1,000", "-1,234,567.89", "0,5",
    "1.000,5", "1.7976931348623157e308", "2e308", "18446744073709551616", "1e99999999999999999999",
    "-1e-99999999999999999", "1 ,0e3", "1 000", '"NaN"', '"1"', '""', *map(str, WIDE),
    "1" + "0" * 5000, "-" + "9" * 5000, "0." + "0" * 5000 + "1", "1" * 300 + "." + "1" * 300,
]  # fmt: skip


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
_BRANCHES: list[Any] = ["null", "string", "double", BYTES, "float"]
_FLOATS, _DOUBLES = [struct.pack("<I", one) for one in SINGLES], [struct.pack("<Q", one) for one in DOUBLES]
AVRO_DATA: list[tuple[Any, list[bytes]]] = [
    ("float", _FLOATS),
    ("double", _DOUBLES),
    ("long", [*map(varint, WIDE)]),
    (BYTES, SIZED),
    ("bytes", SIZED),
    ("string", SIZED),
    (FIXED, [one for one in decimal_bytes(12) if one]),
    *(
        (
            [_BRANCHES[at] for at in order],
            [
                varint(order.index(at)) + data
                for at, contents in enumerate(([b""], SIZED, _DOUBLES, SIZED, _FLOATS))
                for data in contents
            ],
        )
        for order in ((0, 1, 2, 3, 4), (3, 1, 0, 4, 2), (2, 4, 1, 3, 0), (1, 3, 4, 2, 0))
    ),
]
"""Types, and data of each."""
