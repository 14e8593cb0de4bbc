"""One value is one step, or one threshold, in every format, spelling and type that can hold it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns.query_batch import Grid
from stream_svt.mechanisms.grid import FINEST, GUARD, PARTS, VALUE_LIMIT, grid_ceil, grid_floor
from stream_svt.mechanisms.numbers import grid_steps
from tests.support.formats import JSON, MAPPED, Format, arrow, avro
from tests.support.query_records import AT_HOME, Record, columnar_batch
from tests.support.query_records import arrow as columnar

GRANULARITIES = ["0.1", "0.01", "0.05", "1e-9", "1e-12", "0.3", "1", "7", "12.6", "1024", "3000.7", "1e6"]
MOST = 10**9
"""Steps of the bounds."""
BYTES = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 20}
FIXED = {"type": "fixed", "name": "f", "size": 20, "logicalType": "decimal", "precision": 47, "scale": 18}
FLOATS = {
    16: (np.float16, [arrow(pa.float16())]),
    32: (np.float32, [arrow(pa.float32()), avro("float"), avro(["float", "double", "null"])]),
    64: (
        np.float64,
        [
            arrow(pa.float64()),
            arrow(pa.float64(), coded=True),
            avro("double"),
            avro(["null", "double", "string"]),
        ],
    ),
}
"""Types and formats of floats."""
INTEGERS = [arrow(pa.int64()), avro("long"), avro(["null", "string", "long"]), avro(["double", "long"])]

digits = st.integers(1, 60).flatmap(lambda size: st.integers(0, 10**size))
decimals = st.builds(
    lambda number, exponent, sign: Decimal(f"{sign}{number}e{exponent}"),
    digits, st.integers(-45, 25), st.sampled_from(["", "-"]),
)  # fmt: skip
near_steps = st.builds(
    lambda granularity, step, guard, by, exponent: (
        _exactly(Fraction(granularity) * step - guard * _guard(granularity)) + Decimal(by).scaleb(exponent)
    ),
    st.sampled_from(GRANULARITIES), st.integers(-2000, 2000), st.integers(0, 1), st.sampled_from([-1, 0, 1]),
    st.integers(-45, 1),
)  # fmt: skip
"""On a step of a grid, where its guard begins, or a little beside it."""
far = st.sampled_from(
    [Decimal(one) for one in ("1e400", "-1e400", "1e-400", "-1e-400", "0", "-0", "-0e-400", "5e307")]
)
floats = st.sampled_from(sorted(FLOATS)).flatmap(
    lambda size: st.tuples(st.just(size), st.floats(width=size, allow_nan=False, allow_infinity=False))
)
MANY = [Decimal(1)] * 40
"""Further messages: few are read one by one."""


def _guard(granularity: str) -> Fraction:
    """Return how far below a step a value is on it, 0 where that is no number of the units of batches."""
    found = Fraction(granularity) / GUARD
    return found if (PARTS * found).denominator == 1 else Fraction(0)


def _exactly(number: Fraction) -> Decimal:
    return Decimal(number.numerator * (10**22 // number.denominator)).scaleb(-22)


def spellings(value: Decimal) -> Iterator[str]:
    """Yield tokens of JSON that denote a number."""
    sign, number, exponent = value.as_tuple()
    minus, text = "-" * sign, "".join(map(str, number)).lstrip("0") or "0"
    assert isinstance(exponent, int)
    yield f"{minus}{text}e{exponent}"
    yield f"{minus}{text}.000E{exponent:+d}"
    yield f"{minus}0.{text}e{exponent + len(text)}"
    yield f"{value:f}"
    yield f"{value:f}{'0' * 30}" if exponent < 0 else f"{value:f}.{'0' * 30}"


def decimal_types(value: Decimal) -> Iterator[tuple[Format, Any]]:
    """Yield formats of decimals and integers that can hold a value, with the value for each."""
    fraction = Fraction(value)
    for size, most in ((32, 9), (64, 18), (128, 38), (256, 76)):
        for scale in (-3, 0, 2, 9, 20, 38, 76):
            if scale <= most and (10**80 * fraction * Fraction(10) ** scale).denominator == 1:
                unscaled = fraction * Fraction(10) ** scale
                if unscaled.denominator == 1 and abs(unscaled) < 10**most:
                    kind = getattr(pa, f"decimal{size}")(most, scale)
                    content = unscaled.numerator.to_bytes(size // 8, "little", signed=True)
                    yield arrow(kind), pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(content)])
    if abs(fraction) < 10**28 and (fraction * 10**18).denominator == 1:
        for kind in (BYTES, FIXED, ["null", "string", BYTES], [FIXED, "null"]):
            yield avro(kind), [Decimal(f"{(fraction * 10**18).numerator}e-18")]
    if fraction.denominator == 1 and abs(fraction) < 2**63:
        for form in INTEGERS:
            yield form, [fraction.numerator]


def grids() -> Iterator[Grid]:
    for granularity in map(Fraction, GRANULARITIES):
        assert FINEST % granularity.denominator == 0
        yield Grid(granularity, -MOST, MOST)


def check(form: Format, values: Any, expected: dict[Grid, int], further: Sequence[Decimal] = ()) -> None:
    """Compare the steps of all values; ``further`` ones are messages behind them."""
    batch = form.batch([*values, *further] if further else values)
    assert (len(batch), batch.rejects) == (len(values) + len(further), []), values
    for grid, step in expected.items():
        assert grid.values(batch, 0, len(values)).tolist() == [step] * len(values), (values, grid)


def steps_of(value: Fraction) -> dict[Grid, int]:
    return {grid: min(max(grid_floor(value, grid.granularity), -MOST), MOST) for grid in grids()}


def of_library(given: Any, grid: Grid) -> int:
    return min(max(grid_steps(given, grid.granularity, "values").item(), -MOST), MOST)


@settings(max_examples=40, deadline=None)
@given(st.one_of(decimals, near_steps, far))
def test_a_decimal_is_one_step_in_every_format(value):
    expected = steps_of(Fraction(value))
    tokens = [*spellings(value)]
    for form in (JSON, MAPPED):
        check(form, tokens, expected)
        check(form, tokens, expected, MANY)
    for form, values in decimal_types(value):
        check(form, values, expected)
    for grid, step in expected.items():
        for entry in (value, Fraction(value), *tokens):
            assert of_library([entry], grid) == step, entry


@settings(max_examples=80, deadline=None)
@given(floats)
def test_a_float_is_one_step_in_every_format(drawn):
    """Up to as many steps as the units page says that doubles are exact for."""
    size, value = drawn
    kind, forms = FLOATS[size]
    expected = {
        grid: step
        for grid, step in steps_of(Fraction(value)).items()
        if abs(value) < 2**40 * grid.granularity
    }
    for form in (JSON, MAPPED):
        tokens = [repr(value), f"{Decimal(value):f}", f"{value:.17e}"]
        check(form, tokens, expected)
        check(form, tokens, expected, MANY)
    for form in forms:
        values = pa.array(np.array([value], kind)) if form.schema is None else [value]
        check(form, values, expected)
    of_types = [kind, np.float64, np.longdouble]
    arrays = [np.array([value], one) for one in of_types]
    arrays += [one.astype(one.dtype.newbyteorder("S")) for one in arrays[:2]] + [
        np.array([value, 0.5], kind)[::-1]
    ]
    for grid, step in expected.items():
        for array in (*arrays, *([one(value)] for one in of_types), [value], np.array([value], object)):
            steps = grid_steps(array, grid.granularity, "values").tolist()
            assert min(max(steps[len(steps) - 1], -MOST), MOST) == step, array


@settings(max_examples=40, deadline=None)
@given(st.one_of(decimals, near_steps))
def test_a_threshold_is_one_step_in_every_format(value):
    value = Context(prec=38, rounding=ROUND_FLOOR).plus(value)
    tokens = [one for one in spellings(value) if len(one) <= 64]
    form = b'{"id":"q","value":1,"threshold":%b}'
    batches = [(JSON.decoder().decode([Record(0, AT_HOME, form % one.encode())]), one) for one in tokens]
    if abs(value) < 10**18 and (Fraction(value) * 10**20).denominator == 1:
        message = columnar(id=["q"], threshold=pa.array([value], pa.decimal256(76, 20)))
        batches.append((columnar_batch(message), "columns"))
    for grid in grids():
        expected = grid_ceil(Fraction(value), grid.granularity)
        clamped = min(max(expected, 1 - VALUE_LIMIT), VALUE_LIMIT - 1)
        for batch, what in batches:
            assert batch.thresholds(grid)[1].tolist() == [clamped], what
        if expected == clamped:
            assert grid_steps([value], grid.granularity, "threshold", up=True).tolist() == [expected]
