"""The functions of arrays: exact for all kinds of numbers, fresh noise, and no Kafka."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import stream_svt
from stream_svt import library
from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Adjacency, Annealed, KeyedSampler, sparse_vector
from stream_svt.mechanisms.numbers import grid_steps

SEED = b"for tests only"
LEAST_NOISE = 10_000
"""The largest epsilon: at sensitivity 1 all noise is 0."""
COUNTS = [12, 950, 30, 700, 8, 499, 500]
CALLS = {
    "svt": partial(library.svt, threshold=500, cutoff=3),
    "svt once": partial(library.svt, threshold=500, cutoff=3, sweep=False),
    "top_k": partial(library.top_k, k=3),
    "quantile": partial(library.quantile, level="1/2", base="1.01"),
}


def test_a_program_that_analyses_arrays_loads_no_service_and_an_import_loads_no_array():
    program = """
import sys, stream_svt
assert "numpy" not in sys.modules
for found in (stream_svt.svt([1, 9], 5), stream_svt.top_k([1, 9], 1), stream_svt.quantile([1, 9], 0.5)):
    assert found.charge <= 0.5
unwanted = {"aiokafka", "faust", "aiohttp", "pydantic", "scipy", "pyarrow", "stream_svt.monitor"}
assert not unwanted & set(sys.modules), unwanted & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_public_names_are_in_order_and_all_there():
    names = stream_svt.__all__
    assert names == sorted(names)
    assert {type(getattr(stream_svt, name)).__name__ for name in names} >= {"function", "type"}
    assert names == dir(stream_svt)  # completion offers nothing else
    with pytest.raises(AttributeError, match="'stream_svt' has no attribute 'nothing'"):
        _ = stream_svt.nothing


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_numbers_mean_the_same_in_every_form(call):
    prices = ["19.99", "0.1", "7", "-3.5", "1e2", "0.3", "55.55"]
    call = partial(call, granularity="0.01", epsilon=0.25, seed=SEED)
    expected = call([Fraction(price) for price in prices])
    floats = np.array(prices, dtype=np.float64)
    forms = [prices, list(map(Decimal, prices)), list(map(float, prices)), floats, floats.astype(np.float32)]
    for form in [*forms, np.array(list(map(Fraction, prices)), dtype=object), tuple(prices)]:
        assert call(form) == expected
    for epsilon in (Fraction(1, 4), "0.25", "1/4", Decimal("0.25"), np.float64(0.25)):
        assert call(prices, epsilon=epsilon) == expected


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, object])
def test_integers_mean_the_same_in_every_width(call, dtype):
    values = [3, 120, 7, 119, 0]
    assert call(np.array(values, dtype=dtype), granularity=1, seed=SEED) == call(values, seed=SEED)


@pytest.mark.parametrize(
    ("dtype", "large"),
    [(np.float16, 65504), (np.float32, 123456789), (np.float64, 2**60 + 256), (np.longdouble, 2**61 + 1)],
)
def test_how_a_float_is_read_depends_on_no_other_entry(dtype, large):
    """Else one person could change all values. The shortest decimal of a large float is another whole number."""
    grid = Fraction(1, 7) if dtype is np.float16 else Fraction(large, 2**46)
    first, *_ = grid_steps(np.array([large, 1], dtype=dtype), grid, "values")
    second, *_ = grid_steps(np.array([large, 1.5], dtype=dtype), grid, "values")
    alone, *_ = grid_steps([np.array([large], dtype=dtype)[0]], grid, "values")
    assert first == second == alone


def test_masked_entries_are_not_read():
    with pytest.raises(MisuseError, match=r"^values must have no masked entries"):
        library.svt(np.ma.array([1, 900], mask=[False, True]), 500)
    assert library.svt(np.ma.array([1, 900]), 500, epsilon=LEAST_NOISE, cutoff=1).indices == [1]


def test_values_are_rounded_down_and_thresholds_up_without_an_error_of_floats():
    exactly = partial(library.svt, epsilon=LEAST_NOISE, cutoff=1, sensitivity="0.1", granularity="0.1")
    assert exactly([0.3], threshold=0.3).indices == [0]  # 0.3 / 0.1 is less than 3 in floats
    assert exactly([0.29], threshold=0.3).indices == []
    assert exactly([0.3], threshold="0.301").indices == []
    assert exactly([10**12 + 1, 0], threshold=10**12 + 1).indices == [0]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "values",
    [
        [0.2, 0.9, 0.5],
        [1, 2, 3.0],
        ["1", "2", "3"],
        np.array([1.0, 2, 3]),
        pd.Series([1.0, 2, 3]),
        [Decimal(1)] * 3,
    ],
)
def test_values_of_no_integer_type_need_a_granularity(call, values):
    """Fractions would be cut off; the type decides, not a value."""
    with pytest.raises(MisuseError, match=r"^granularity must be given"):
        call(values)
    assert call(values, granularity=1).charge <= 0.5


def test_results_are_tables_of_numbers():
    found = library.svt(COUNTS, 500, epsilon=LEAST_NOISE, cutoff=3, monotonic=True)
    table = pd.DataFrame(found.answers)
    assert table["charge"].sum() == pytest.approx(sum(one.charge for one in found.answers))
    for frame in (table, pl.DataFrame(found.answers).to_pandas()):
        assert all(kind.kind in "if" for kind in frame.dtypes)
        assert list(frame["index"]) == found.indices
        assert frame["charge_units"].sum() == sum(one.charge_units for one in found.answers)
    for one in (library.quantile(COUNTS, 0.5), *library.top_k(COUNTS, 2).answers):
        assert all(kind.kind in "if" for kind in pd.DataFrame([one]).dtypes)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_column_of_a_table_is_as_good_as_an_array(call):
    expected = call(COUNTS, seed=SEED)
    for column in (pd.Series(COUNTS), pl.Series(COUNTS), pd.DataFrame({"count": COUNTS})["count"]):
        assert call(column, seed=SEED) == expected


def test_large_values_are_found_first_and_thresholds_may_differ():
    found = library.svt(COUNTS, 500, epsilon=LEAST_NOISE, cutoff=3)
    assert sorted(found.indices) == [1, 3, 6]
    each = library.svt(COUNTS, [0, 951, 31, 701, 9, 500, 501], epsilon=LEAST_NOISE, cutoff=3)
    assert each.indices == [0]
    [best] = library.svt([490] * 100 + [10**6], 500, epsilon=1, cutoff=1, monotonic=True).answers
    assert best.index == 100


def test_once_tests_in_order_and_ends_at_the_cutoff():
    found = library.svt(COUNTS * 9, 500, epsilon=LEAST_NOISE, cutoff=2, sweep=False)
    assert found.indices == [1, 3]


@pytest.mark.parametrize("sweep", [True, False])
def test_the_charge_is_that_of_the_threshold_and_of_each_answer(sweep):
    mechanism = sparse_vector(epsilon=0.5, cutoff=20, monotonic=False, correction=Annealed())
    for high in (0, 3, 30):
        found = library.svt([10**6] * high + [-(10**6)] * 9, 0, sweep=sweep)
        assert len(found.answers) == min(high, 20)
        if sweep:
            of_answers = sum(one.charge_units for one in found.answers)
            assert found.charge_units == mechanism.threshold_units + of_answers
            assert {one.charge_units for one in found.answers} <= {mechanism.branches[0].charge_units}
        assert found.charge <= 0.5
        assert (found.charge == 0.5) == (high == 30)
        assert round(found.charge * 10**9) == found.charge_units


@pytest.mark.parametrize("unit", [Fraction(1, 3), Fraction(1000)])
def test_results_are_in_the_units_of_the_values(unit):
    values = [unit * count for count in COUNTS]
    options = {"sensitivity": unit, "granularity": unit, "seed": SEED}
    plain, scaled = (
        library.svt(COUNTS, 500, epsilon=3, seed=SEED),
        library.svt(values, 500 * unit, epsilon=3, **options),
    )
    assert plain.indices == scaled.indices
    assert any(one.bound is not None for one in plain.answers)
    for one, other in zip(plain.answers, scaled.answers, strict=True):
        for name in ("gap", "bound", "estimate"):
            before, after = getattr(one, name), getattr(other, name)
            assert after == (None if before is None else pytest.approx(before * float(unit)))
    plain, scaled = library.top_k(COUNTS, 2, seed=SEED), library.top_k(values, 2, **options)
    assert [one.gap * float(unit) for one in plain.answers] == pytest.approx(
        [one.gap for one in scaled.answers]
    )
    options.pop("sensitivity")
    plain, scaled = library.quantile(COUNTS, 0.5, seed=SEED), library.quantile(values, 0.5, **options)
    assert plain.value * float(unit) == pytest.approx(scaled.value)


def test_a_bound_is_wrong_for_few_reported_answers():
    """One in five at beta 1/5, among values of which most lie below the threshold; 600 runs."""
    chance, wrong, given = random.Random(5), 0, 0
    values = [chance.randrange(60, 130) for _ in range(40)]
    for number in range(600):
        found = library.svt(
            values, 100, epsilon=2, cutoff=3, beta=0.2, monotonic=True, seed=number.to_bytes(2)
        )
        given += len(found.answers)
        wrong += sum(one.bound is not None and one.bound > values[one.index] for one in found.answers)
    assert given > 600
    assert 0 < wrong / given < 0.2 + 4 * math.sqrt(0.16 / given)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_two_tests_share_a_draw(call, monkeypatch):
    drawn, salts = Counter(), set()

    def record(sampler, law, identity):
        salts.add(identity.salt)
        drawn.update((offset, identity.attempt, identity.branch) for offset in identity.offset.tolist())
        return np.zeros(len(identity.offset), dtype=np.int64)

    monkeypatch.setattr(KeyedSampler, "draw", record)
    call(np.arange(50) * 10_000)
    assert drawn
    assert set(drawn.values()) == {1}
    assert len(salts) == 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_draws_fresh_secrets_of_the_operating_system_unless_a_test_gives_a_seed(call, monkeypatch):
    values = list(range(0, 4000, 7))
    assert len({repr(call(values, epsilon=0.01)) for _ in range(4)}) > 1
    assert call(values, seed=SEED) == call(values, seed=SEED)
    asked, urandom = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or urandom(count))
    call(values, seed=SEED)
    assert asked == []
    call(values)
    assert sum(asked) >= 48


def test_the_largest_values_come_in_order_with_their_leads():
    found = library.top_k(COUNTS, 3, epsilon=LEAST_NOISE)
    assert (found.indices, found.charge) == ([1, 3, 6], LEAST_NOISE)
    assert [one.gap for one in found.answers] == [250.0, 200.0, 0.0]  # 499 precedes 500: a tie would lose
    everything = library.top_k(COUNTS, 7, epsilon=LEAST_NOISE)
    assert everything.indices == [1, 3, 6, 5, 2, 0, 4]
    assert everything.answers[-1].gap is None


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("level", "expected"), [(0.1, 100), ("1/2", 500), (Fraction(9, 10), 900)])
def test_a_quantile_of_records_above_a_public_bound(adjacency, level, expected):
    records = np.random.default_rng(1).permutation(np.arange(1000)) - 50
    found = library.quantile(records, level, epsilon=20, lower=-50, base="1.01", adjacency=adjacency.value)
    assert abs(found.value - (expected - 50)) < 0.02 * expected + 5
    assert 0 <= found.gap < 20
    assert found.charge <= 20


def test_a_quantile_beyond_the_grid_is_none_and_costs_its_threshold():
    found = library.quantile([2**46] * 1000, 0.999, epsilon=50, base=2)
    assert found.value in {None, 2.0**47 - 1} or found.value > 2**46
    nothing = library.quantile([2**46] * 1000, "999/1000", epsilon=50, base=2**23)
    assert (nothing.value, nothing.gap) == (None, None)
    assert 0 < nothing.charge < 50


def test_several_calls_share_one_ledger():
    from stream_svt.errors import BudgetExceeded
    from stream_svt.privacy.ledger import Ledger
    from stream_svt.privacy.loss import Kind

    ledger = Ledger(Kind.PURE, limit=10**9)
    for found in (library.top_k(COUNTS, 2), library.top_k(COUNTS, 2)):
        ledger.charge(found.charge_units)
    assert ledger.available == 0
    with pytest.raises(BudgetExceeded, match="epsilon"):
        ledger.charge(library.svt(COUNTS, 500).charge_units)


def test_what_is_secret_is_in_no_message():
    for values in (
        987654321,
        "987654321",
        [1, float("nan"), 987654321],
        [987654321, "x"],
        [[987654321]],
    ):
        for call in CALLS.values():
            with pytest.raises(MisuseError, match=r"^values must") as refusal:
                call(values, granularity=1)
            assert "98765" not in str(refusal.value)


@pytest.mark.parametrize("adjacency", ["add_remove", "swap"])
@pytest.mark.parametrize("none", [[], (), np.array([]), np.array([], dtype=np.int64)], ids=repr)
def test_a_quantile_of_no_records_is_an_answer_as_any_other(none, adjacency):
    """Whether there is a record is private."""
    answers = {library.quantile(none, 0.5, 1, adjacency=adjacency, seed=bytes([n])).value for n in range(20)}
    of_one = {library.quantile([5], 0.5, 1, adjacency=adjacency, seed=bytes([n])).value for n in range(20)}
    assert answers & of_one


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("far", [10**15, 10**40, 1e30, -(10**40), Decimal("1e50"), Fraction(10**60, 7)])
def test_a_value_beyond_the_grid_counts_as_on_its_last_step(call, far):
    """An error would tell that there is one."""
    last = (2**47 - 1) * (1 if far > 0 else -1)
    given = partial(call, granularity=1, epsilon=1, seed=SEED)
    assert given([5, far, 7, 9]) == given([5, last, 7, 9])
    assert given(np.array([5.0, float(far), 7, 9])) == given([5, last, 7, 9])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("odd", "same"),
    [
        *((kind(text), 2**47 - 1) for kind in (Decimal, str) for text in ("1e400", "1e999999999", "9" * 80)),
        *((kind(text), 1 - 2**47) for kind in (Decimal, str) for text in ("-1e400", "-1e999999999")),
        *((kind(text), 0) for kind in (Decimal, str) for text in ("1e-400", "-1e-999999999", "0e999999999")),
        (Decimal(np.nextafter(0, 1).item()), 0),
        (f"7.{'1' * 500}", 7),
    ],
)
def test_no_number_of_digits_or_exponent_is_refused(call, odd, same):
    """An error would tell that there is one."""
    given = partial(call, granularity=1, epsilon=1, seed=SEED)
    assert given([5, odd, 7, 9]) == given([5, same, 7, 9])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "column", [pa.array, pl.Series, pd.Series, lambda entries: pa.chunked_array([entries]), np.array, list]
)
def test_the_type_of_a_column_decides_whether_a_granularity_must_be_given(call, column):
    """Whether floats are whole is secret."""
    assert call(column([5, 6, 7]), epsilon=1)
    for floats in ([5.0, 6.0, 7.0], [5.0, 6.5, 7.0]):
        with pytest.raises(MisuseError, match=r"^granularity must be given"):
            call(column(floats), epsilon=1)
