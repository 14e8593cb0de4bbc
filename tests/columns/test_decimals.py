"""Numbers as whole parts and fractions: equal to exact fractions, in steps that do not depend on the value."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns import decimals
from stream_svt.columns.byte_buffer import ByteBuffer
from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT
from stream_svt.queries import columnar


def digits(most: int) -> st.SearchStrategy[str]:
    return st.text("0123456789", min_size=1, max_size=most)


@st.composite
def tokens(draw: Any) -> bytes:
    """Draw a number in the forms that producers write: plain ones of all lengths, and a few of other forms."""
    whole = draw(digits(20)).lstrip("0") or "0"
    text = draw(st.sampled_from(["", "-"])) + whole
    text += draw(st.one_of(st.just(""), digits(30).map(lambda part: "." + part)))
    text += draw(st.sampled_from(["", "", "", "", "e3", "E-7", "e+0", "e-30", "e400"]))
    return text.encode()


NO_NUMBERS = st.sampled_from([b"null", b'"5"', b'"1.5"', b"[1.5]", b"{}", b"true", b'"-"', b'"."', b""])
PLAIN = st.one_of(
    st.integers(-(10**16) + 1, 10**16 - 1).map(lambda n: b"%d" % n),
    st.decimals(-(10**6), 10**6, places=3, allow_nan=False).map(lambda d: f"{d:f}".encode()),
    st.floats(1e-4, 1e15).map(lambda x: repr(x).encode()),
)


def expected(token: bytes) -> tuple[int, int]:
    """Compute whole part and fraction of a token with `Fraction`."""
    try:
        value = Fraction(Decimal(token.decode()))
    except ArithmeticError:
        return decimals.NO_NUMBER
    if abs(value) >= WHOLE_LIMIT:
        return (WHOLE_LIMIT if value > 0 else -WHOLE_LIMIT), 0
    return divmod(math.floor(value * PARTS), PARTS)


def columns(given: list[bytes], singles: int = decimals.SINGLES) -> list[tuple[int, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decimals, "SINGLES", singles)
        whole, fraction = decimals.columns([msgspec.Raw(token) for token in given])
    return list(zip(whole.tolist(), fraction.tolist(), strict=True))


@settings(max_examples=300)
@given(st.lists(st.one_of(tokens(), PLAIN, NO_NUMBERS), min_size=1, max_size=30), st.sampled_from([-1, 30]))
def test_tokens_are_read_as_exact_fractions_in_any_batch(given, singles):
    assert columns(given, singles) == [expected(token) for token in given]


def test_tokens_with_sign_point_and_the_longest_plain_form():
    most = b"9" * 16 + b"." + b"9" * 24
    edges = b"0 -0 -0.0 -0.5 4611686018427387903 4611686018427387904 1.0e0".split()
    edges += [most, b"-" + most, b"-0." + b"0" * 23 + b"1", b"9" * 17, b"1." + b"0" * 25]
    edges += [b"-1." + b"9" * 18, b"-1." + b"9" * 19]
    assert columns(edges) == columns(edges, -1) == [expected(token) for token in edges]


@given(st.lists(PLAIN, min_size=1, max_size=50), st.sampled_from([-1, 50]))
def test_plain_numbers_take_the_same_steps_with_or_without_a_point(given, singles):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decimals, "number", lambda _: pytest.fail("a plain number was read alone"))
        columns(given, singles)


@given(st.lists(st.one_of(tokens(), PLAIN, NO_NUMBERS), min_size=1, max_size=20))
def test_what_stands_beside_a_token_does_not_change_it(given):
    joined = b"1.5".join([b"", *given, b""])
    start = np.cumsum([0, *map(len, given)])[:-1] + 3 * np.arange(1, len(given) + 1)
    text = ByteBuffer(joined)
    first = start + text.text.index(joined)
    whole, fraction, odd = decimals.plain(text, first, first + np.array([*map(len, given)]))
    for row, token in enumerate(given):
        assert odd[row] or (whole[row], fraction[row]) == expected(token)


def test_few_tokens_need_no_arrays(monkeypatch):
    monkeypatch.setattr(decimals, "plain", lambda *_: pytest.fail("arrays were made"))
    few = [b"1.5", b"-0.25", b"7", b"null", b"1e3", *[b"0"] * 11]
    assert columns(few) == [expected(token) for token in few]


@pytest.mark.parametrize("odd", [b"1e3", b"null", b"9" * 19, b"0." + b"3" * 25, b'"text"', b"1e999"])
def test_only_the_token_of_another_form_is_read_one_by_one(monkeypatch, odd):
    alone: list[bytes] = []
    read = decimals.number
    monkeypatch.setattr(decimals, "number", lambda token: (alone.append(token), read(token))[1])
    columns([b"1.5", b"7", odd, *[b"0.25"] * 10_000, odd])
    assert alone == [odd, odd]


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.floats(),
            st.floats(-1e6, 1e6),
            st.floats(-1e-15, 1e-15),
            st.integers(-(2**70), 2**70).map(float),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_doubles_are_converted_to_their_exact_binary_fractions(given):
    given += [math.inf, -math.inf, math.nan]
    whole, fraction = decimals.doubles(np.array(given))
    finite = [max(min(x, 1e30), -1e30) for x in given]
    assert list(zip(whole.tolist(), fraction.tolist(), strict=True)) == [
        decimals.NO_NUMBER if math.isnan(x) else expected(str(Decimal(x)).encode()) for x in finite
    ]


@pytest.mark.parametrize(
    "bits", [0x7FF0000000000001, 0xFFF0000000000001, 0x7FF8000000000000, 0xFFFFFFFFFFFFFFFF]
)
def test_a_nan_is_no_number_whatever_its_bits_and_wherever_it_stands(bits):
    for count in range(1, 20):
        for at in range(count):
            given = np.ones(count)
            given[at : at + 1].view(np.uint64)[0] = bits
            whole, fraction = decimals.doubles(given)
            assert (whole[at], fraction[at]) == decimals.NO_NUMBER
            assert whole.sum() - whole[at] == count - 1


COLUMNS = {
    "int8": (pa.int8(), [-128, 127, None, 0]),
    "uint32": (pa.uint32(), [2**32 - 1, None, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, 2**62, None, 3]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None, 5]),
    "half": (pa.float16(), [np.float16(1.5), np.float16(-0.25), None]),
    "single": (pa.float32(), [1.5, -0.1, None, 3e38]),
    "double": (pa.float64(), [1.1, -1.1, None, 1e300, -1e-300]),
    "decimal": (pa.decimal128(18, 3), [Decimal("1.125"), Decimal("-1.125"), None, Decimal(0)]),
    "whole decimal": (pa.decimal128(18, 0), [Decimal(10**18 - 1), None, Decimal(-5)]),
    "wide decimal": (pa.decimal128(38, 20), [Decimal("1.125"), Decimal("-1e-20"), None]),
    "widest decimal": (pa.decimal256(70, 3), [Decimal("1.125"), Decimal(-(10**60)), None]),
    "thousands": (pa.decimal128(9, -3), [Decimal("5e3"), Decimal("-7e3"), None]),
}


@pytest.mark.parametrize("scale", [-96, -25, -19, -3, 0, 1, 9, 17, 18, 19, 20, 27, 38, 60, 96])
@pytest.mark.parametrize("bits", [32, 64, 128, 256])
def test_long_integers_are_divided_exactly_and_rounded_down(bits, scale):
    chance, power = random.Random(bits + scale), 10 ** abs(scale)
    given = [chance.choice((1, -1)) * chance.getrandbits(chance.randrange(bits)) for _ in range(50)]
    given += [0, -(2 ** (bits - 1))]
    if scale > 0:
        given += [
            sign * (edge * power + step)
            for sign in (1, -1)
            for edge in (1, WHOLE_LIMIT)
            for step in (-1, 0, 1)
        ]
    given = [number for number in given if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)]
    words = np.array([[*(number % 2**bits).to_bytes(bits // 8, "little")] for number in given], np.uint8)
    found = decimals.decimals(words.view("<u4"), scale)
    exactly = [Fraction(number) / power if scale > 0 else Fraction(number * power) for number in given]
    assert [*zip(*map(np.ndarray.tolist, found), strict=True)] == [
        divmod(math.floor(number * PARTS), PARTS)
        if abs(number) < WHOLE_LIMIT
        else (WHOLE_LIMIT if number > 0 else -WHOLE_LIMIT, 0)
        for number in exactly
    ]


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_every_type_of_number_are_exact(name, dictionary, sliced):
    kind, values = COLUMNS[name]
    column = pa.array(values, kind)
    if dictionary and name == "half":
        pytest.skip("pyarrow has no dictionaries of halves")
    if dictionary:
        column = column.dictionary_encode()
    if sliced:
        column, values = column[1:], values[1:]
    whole, fraction = columnar._value(column, {})
    assert (fraction is None) == pa.types.is_integer(kind)
    fractions = [0] * len(values) if fraction is None else fraction.tolist()
    found = list(zip(whole.tolist(), fractions, strict=True))
    held = pa.array(values, pa.float64() if pa.types.is_floating(kind) else kind).to_pylist()
    as_held = np.dtype(f"f{kind.bit_width // 8}").type if pa.types.is_floating(kind) else int
    numbers = [Decimal(float(as_held(v))) if isinstance(v, float) else v for v in held]
    assert found == [decimals.NO_NUMBER if n is None else expected(str(n).encode()) for n in numbers]
