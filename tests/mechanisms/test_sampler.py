"""The sampler is exact and keyed by the identity of a test; floats and exact arithmetic give the same draw."""

from __future__ import annotations

import decimal
import functools
import inspect
import itertools
import math
import textwrap
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from stream_svt.errors import MisuseError, PackingError
from stream_svt.mechanisms import Identity, KeyedSampler, Law, Noise, draw_threshold, exact_draw, sampler
from stream_svt.mechanisms.grid import NOISE_LIMIT, THRESHOLD_NOISE_LIMIT
from stream_svt.mechanisms.noise import least_integer
from stream_svt.mechanisms.sampler import Packing, Sampler

KEY = bytes(range(32))
SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
FURTHER = 0x9E3779B97F4A7C15
RATES = [*map(Fraction, ("1/3", "1/10", "7/3", "50", "1/1000", "0.123456789")), Fraction(1, 2**30)]

EXACT = decimal.Context(prec=200)
ERROR = Fraction(1, 10**190)


def exp(exponent):
    """Exponential of a rational, to within `ERROR`."""
    return Fraction(EXACT.exp(EXACT.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))))


def slow(noise, words, rate):
    """Largest k with U <= e^(-rate k), of Gumbel noise with U >= exp(-e^(-rate k)); U from all the words at once."""
    number = int.from_bytes(b"".join(word.to_bytes(8, "big") for word in words), "big")
    low, high = (Fraction(end, 2 ** (64 * len(words))) for end in (number, number + 1))

    def reaches(k):
        if noise is Noise.GUMBEL:
            if -rate * k > 10:
                return True  # U would have to be below e^-22026
            bound = exp(-exp(-rate * k))
            reached, missed = low >= bound + ERROR, high <= bound - ERROR
        else:
            bound = exp(-rate * k)
            reached, missed = k <= 0 or high <= bound - ERROR, low >= bound + ERROR
        assert reached or missed, "these bits do not determine the draw"
        return reached

    return least_integer(lambda k: not reaches(k)) - 1


def slow_draw(noise, rate, *, salt=SALT, offset, row=0, attempt=0, branch=0, value=0):
    """Compute one draw by the specification: pack, encrypt, and decide with five words in exact arithmetic."""
    packed = (offset << 80) | (row << 60) | (attempt << 52) | (branch << 48) | (value % 2**48)
    packed ^= salt[0] << 64 | salt[1]
    block = (packed >> 64).to_bytes(8, "little") + (packed % 2**64).to_bytes(8, "little")

    def encrypt(key, data):
        return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(data)  # noqa: S305 - one block

    outputs = [encrypt(KEY[:16], block)]
    for _ in range(4):
        block = encrypt(KEY[16:], block)
        outputs.append(block)
    up, down = ([int.from_bytes(o[8 * h : 8 * h + 8], "little") for o in outputs] for h in (0, 1))
    return slow(noise, up, rate) - (slow(noise, down, rate) if noise is Noise.LAPLACE else 0)


def draw(noise, rate, count=1000, *, sampler_of=KeyedSampler, **identity):
    """Draws of a sampler with the test's key, at offsets 0, 1, .."""
    identity = {"salt": SALT, "row": 0, "attempt": 0, "branch": 0} | identity
    identity.setdefault("offset", np.arange(count))
    identity.setdefault("value", np.zeros(len(identity["offset"]), dtype=np.int64))
    return sampler_of(KEY).draw(Law(noise, rate), Identity(**identity))


@pytest.mark.parametrize("rate", RATES, ids=str)
@pytest.mark.parametrize("noise", Noise)
def test_draws_equal_the_slow_exact_reference(noise, rate):
    chance = np.random.default_rng(5)
    offset, row, attempt = (chance.integers(0, 2**bits, 20) for bits in (48, 20, 8))
    value = chance.integers(-(2**47) + 1, 2**47, 20)
    drawn = draw(noise, rate, offset=offset, row=row, attempt=attempt, branch=13, value=value)
    expected = [
        slow_draw(noise, rate, offset=int(o), row=int(r), attempt=int(a), branch=13, value=int(v))
        for o, r, a, v in zip(offset, row, attempt, value, strict=True)
    ]
    assert drawn.tolist() == expected


@pytest.mark.parametrize("rate", RATES, ids=str)
@pytest.mark.parametrize("noise", Noise)
def test_the_exact_way_gives_what_the_fast_way_gives(noise, rate, monkeypatch):
    fast = draw(noise, rate, 700)
    monkeypatch.setattr(sampler, "_MARGIN", 1e30)
    assert (draw(noise, rate, 700) == fast).all()


class ScriptedWords:
    """Scripted first words; all further words are another one."""

    def __init__(self, words, following):
        self.script, self.following = np.array(words, dtype=np.uint64), following

    def words(self, identity, part, *, other_branch=False):
        del identity, other_branch
        return np.stack([self.script[part]] * 2, axis=1)

    def further(self, half, index):
        del half, index
        return itertools.repeat(self.following)


def scripted(noise, rate, words, refinement):
    """Return draws from these words, all further words being the other one."""
    sampler_of = partial(Sampler, ScriptedWords(words, refinement))
    return draw(noise, rate, len(words), sampler_of=lambda _: sampler_of()).tolist()


def boundary_words(rate, k):
    """Return the 64-bit word whose interval contains e^(-rate k), and the next 64 bits of this number."""
    return divmod(int(exp(-rate * k) * 2**128), 2**64)


def threshold_of(noise, rate, *words):
    """Threshold noise from these words, all of which it reads or not."""
    feed = iter(words)
    drawn = draw_threshold(Law(noise, rate), lambda _: next(feed).to_bytes(8, "big"))
    return drawn, list(feed)


@pytest.mark.parametrize("k", [1, 2, 7, 40])
@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(1, 10), Fraction(7, 30)], ids=str)
def test_a_word_on_a_cell_boundary_is_settled_by_further_bits(rate, k):
    word, following = boundary_words(rate, k)
    for refinement, expected in ((following - 1, k), (following + 1, k - 1), (0, k), (2**64 - 1, k - 1)):
        assert scripted(Noise.EXPONENTIAL, rate, [word] * 3, refinement) == [expected] * 3
        assert threshold_of(Noise.EXPONENTIAL, rate, word, refinement) == (expected, [])


@pytest.mark.parametrize("rate", RATES[:6], ids=str)
@pytest.mark.parametrize("noise", [Noise.EXPONENTIAL, Noise.GUMBEL])
def test_scripted_words_of_every_size_equal_the_reference(noise, rate):
    edge = sampler._MAX_FAST_GUMBEL_WORD
    words = [0, 1, 2**20, 2**44 - 1, 2**44, 2**44 + 1, 2**60, 2**63, edge, edge + 1]
    words += [2**64 - 2**20, 2**64 - 2, 2**64 - 1]
    for k in (-3, -1, 0, 1, 3, 4, 9):  # words near those whose interval holds the end of a cell
        chance = exp(-exp(min(-rate * k, Fraction(9)))) if noise is Noise.GUMBEL else exp(-rate * max(k, 0))
        steps = (-(2**14), -(2**10), -1, 0, 1, 2**10, 2**14)
        words += [min(max(int(chance * 2**64) + step, 0), 2**64 - 1) for step in steps]
    expected = [slow(noise, [word] + [FURTHER] * 4, rate) for word in words]
    assert scripted(noise, rate, words, FURTHER) == expected
    assert [threshold_of(noise, rate, word, *[FURTHER] * 4)[0] for word in words] == expected


def test_numpy_takes_logarithms_within_the_margin_that_the_proof_allows():
    chance = np.random.default_rng(3)
    words = np.concatenate(
        [chance.integers(2**63, 2**64, 500, dtype=np.uint64) >> np.uint64(s) for s in range(20)]
    )
    words = np.concatenate([words, np.uint64(2**64 - 1) - np.arange(200, dtype=np.uint64)])
    uniform = np.multiply(words, 2.0**-64)
    context = decimal.Context(prec=40)
    for u, logarithm in zip(uniform.tolist(), np.log(uniform).tolist(), strict=True):
        exact = context.ln(Decimal(u))
        assert abs(Decimal(logarithm) - exact) <= Decimal(8 * float(np.spacing(abs(logarithm))))


def test_arrays_scalars_and_the_position_in_a_batch_do_not_matter():
    count = 20_000
    offset, value, scalars = np.arange(count), np.arange(count) - 500, {"row": 21, "attempt": 2}

    def drawn(part=slice(None), **options):
        return draw(
            Noise.LAPLACE, Fraction(1, 9), offset=offset[part], value=value[part], **scalars | options
        )

    arrays = {name: np.full(count, number) for name, number in scalars.items()}
    salts = tuple(np.full(count, half, dtype=np.uint64) for half in SALT)
    assert (drawn() == drawn(**arrays, salt=salts)).all()
    assert (drawn() == drawn(slice(None, None, -1))[::-1]).all()
    assert drawn(slice(777, 778))[0] == drawn()[777]


def test_known_draws_stay_as_they_are():
    """Pinned: a change here needs a new SAMPLER_VERSION, since a replay must give the old noise."""
    assert sampler.SAMPLER_VERSION == 1
    hundredth = Fraction(1, 100)
    assert draw(Noise.EXPONENTIAL, hundredth, 8).tolist() == [373, 146, 3, 57, 117, 60, 76, 23]
    assert draw(Noise.LAPLACE, hundredth, 8).tolist() == [324, 129, -13, -58, 105, 48, 6, -13]
    assert draw(Noise.GUMBEL, hundredth, 8).tolist() == [-132, -39, 349, 55, -17, 50, 26, 143]


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("offset", 2**48),
        ("offset", -1),
        ("row", 2**20),
        ("attempt", 2**8),
        ("attempt", -1),
        ("branch", 16),
        ("value", 2**47 + 1234567),
        ("value", -(2**47) - 1234567),
    ],
)
def test_what_does_not_fit_the_packing_is_refused_without_telling_the_number(field, number):
    identity = {"offset": np.zeros(2, dtype=np.int64), field: np.array([0, number])}
    if field == "branch":
        identity[field] = number
    with pytest.raises(PackingError, match=f"the {field} of a test") as refusal:
        draw(Noise.LAPLACE, Fraction(1), **identity)
    assert "1234567" not in str(refusal.value)


def test_the_widest_identity_that_fits_is_drawn():
    widest = {"row": 2**20 - 1, "attempt": 2**8 - 1, "branch": 15, "salt": (2**64 - 1, 2**64 - 1)}
    ends = {"offset": np.array([2**48 - 1]), "value": np.array([1 - 2**47])}
    expected = slow_draw(Noise.LAPLACE, Fraction(1, 5), offset=2**48 - 1, value=1 - 2**47, **widest)
    assert draw(Noise.LAPLACE, Fraction(1, 5), **ends, **widest).tolist() == [expected]


def test_draws_saturate_at_the_limit():
    assert draw(Noise.EXPONENTIAL, Fraction(1, 2**80), 20).tolist() == [NOISE_LIMIT] * 20
    assert exact_draw(Noise.EXPONENTIAL, iter([0] * 9).__next__, Fraction(1, 2**58)) == NOISE_LIMIT
    assert exact_draw(Noise.GUMBEL, iter([0] * 9).__next__, Fraction(1, 2**62)) == -NOISE_LIMIT
    assert exact_draw(Noise.GUMBEL, iter([2**64 - 1] * 9).__next__, Fraction(1, 2**62)) == NOISE_LIMIT


def test_rates_beyond_any_float_still_give_the_right_draw():
    assert draw(Noise.EXPONENTIAL, Fraction(10**400), 50).tolist() == [0] * 50
    assert exact_draw(Noise.EXPONENTIAL, iter([0, 2**63]).__next__, Fraction(10**400)) == 0


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(-1)])
def test_a_rate_that_is_not_positive_is_refused(rate):
    with pytest.raises(MisuseError):
        draw(Noise.EXPONENTIAL, rate)
    for noise in Noise:
        with pytest.raises(MisuseError):
            exact_draw(noise, lambda: 1, rate)


def test_a_key_of_another_length_is_refused_and_never_shown():
    with pytest.raises(MisuseError, match="32 bytes"):
        KeyedSampler(bytes(16))
    assert repr(KeyedSampler(KEY)) == "KeyedSampler()"


@pytest.mark.parametrize("rate", RATES[:6], ids=str)
def test_laplace_threshold_noise_is_the_difference_of_two_draws(rate):
    words = [0x0F1E2D3C4B5A6978, 0xFEDCBA9876543210]
    up, down = (slow(Noise.EXPONENTIAL, [word] + [0] * 3, rate) for word in words)
    assert threshold_of(Noise.LAPLACE, rate, *words) == (up - down, [])


def test_threshold_noise_saturates_within_what_a_run_accepts():
    assert draw_threshold(Law(Noise.EXPONENTIAL, Fraction(1, 2**70)), bytes) == THRESHOLD_NOISE_LIMIT


REACHING = [
    *map(Fraction, ("1/3", "1/10", "7/3", "50", "1/91", "1/92", "1/1000", "0.123456789")),
    Fraction(1, 2**30),
]
"""Rates of tests by an integer bound: the first with a table of bounds, the others with bounds in floats."""


@pytest.mark.parametrize("rate", [rate for rate in REACHING if rate > Fraction(1, 92)], ids=str)
def test_the_bounds_of_a_table_are_exact(rate):
    bounds, last = sampler._bounds(*rate.as_integer_ratio())
    checked = [m for m in (*range(1, 20), *range(20, last, 1 + last // 200), last - 1) if 0 < m < last]
    assert bounds[checked].tolist() == [int(exp(-rate * m) * 2**64) for m in checked]
    assert len(bounds) == last + 1
    assert (bounds[0], bounds[last]) == (2**64 - 1, 0)
    assert exp(-rate * last) * 2**64 < 1


@pytest.mark.parametrize("rate", [Fraction(45, 4095), Fraction(45, 4096)], ids=str)
def test_a_large_table_is_replaced_by_floats(rate):
    bounds, last = sampler._bounds(*rate.as_integer_ratio())
    assert (bounds is None) == (last >= 4096)
    assert last in (4095, 4096)


def near_bar(noise, rate, count, seed, **options):
    """Identities, bars at which about every third draw of them is a top, and all draws."""
    chance = np.random.default_rng(seed)
    given = Identity(SALT, chance.integers(0, 2**48, count), 0, 0, 0, chance.integers(-(2**40), 2**40, count))
    keyed, law = KeyedSampler(KEY), Law(noise, rate)
    scales = chance.choice([0.1, 1, 4, 50], count)
    least = np.floor(chance.normal(0.5, 1, count) * scales / float(rate)).astype(np.int64)
    return keyed, law, given, least


@pytest.mark.parametrize("rate", REACHING, ids=str)
@pytest.mark.parametrize("noise", Noise)
def test_tests_by_a_bound_have_the_outcomes_and_noise_of_all_draws(noise, rate):
    count = 300_000 if noise is Noise.EXPONENTIAL and rate > Fraction(1, 10**6) else 3_000
    keyed, law, given, least = near_bar(noise, rate, count, 11)
    [(tests, noises)] = keyed.reaching([law], given, [least])
    drawn = keyed.draw(law, given)
    assert tests.tolist() == np.flatnonzero(drawn >= least).tolist()
    assert noises.tolist() == drawn[tests].tolist()
    assert len(tests) > count / 20


def bound_of(rate, bar):
    """Largest first word of a draw that is at least the bar."""
    return min(int(exp(-rate * min(max(bar, 0), 90 / rate)) * 2**64), 2**64 - 1)


def beside_bounds(rate):
    """Bars below 0, at 0, up to the end of the table and beyond it, each with the words next to its bound."""
    bars, words = [], []
    last = math.ceil(45 / rate)
    for bar in (-(2**60), -1, 0, 1, 2, 3, 7, last // 2, last - 2, last - 1, last, last + 1, 2**60):
        bound = bound_of(rate, bar)
        for step in (-(2**30), -1, 0, 1, 2, 2**30):
            bars.append(bar)
            words.append(min(max(bound + step, 0), 2**64 - 1))
    return np.array(bars), words


FOLLOWING = (2**20, FURTHER, 2**64 - 2**20)


@functools.cache
def expected_beside_bounds(rate):
    """Tests that reach these bars and their noise, with small, usual and large further words."""
    bars, words = beside_bounds(rate)
    expected = []
    for following in FOLLOWING:
        draws = np.array([slow(Noise.EXPONENTIAL, [word] + [following] * 3, rate) for word in words])
        tests = np.flatnonzero(draws >= bars)
        expected.append([tests.tolist(), draws[tests].tolist()])
    return expected


def found_beside_bounds(rate):
    """What a sampler finds of them."""
    bars, words = beside_bounds(rate)
    given = Identity(SALT, np.arange(len(words)), 0, 0, 0, np.zeros(len(words), dtype=np.int64))
    law, samplers = Law(Noise.EXPONENTIAL, rate), [Sampler(ScriptedWords(words, one)) for one in FOLLOWING]
    return [[part.tolist() for part in one.reaching([law], given, [bars])[0]] for one in samplers]


@pytest.mark.parametrize("rate", [REACHING[index] for index in (0, 1, 4, 5, 6)], ids=str)
def test_words_on_either_side_of_a_bound_are_tested_exactly(rate):
    assert found_beside_bounds(rate) == expected_beside_bounds(rate)


MUTANTS = {
    "a draw equal to the bar is none": (Sampler, "_reached", "noise >= ", "noise > "),
    "a word equal to the bound is none": (sampler, "_candidates", "words <= bounds", "words < bounds"),
    "the bound of the next step": (sampler, "_candidates", "take(steps,", "take(steps + 1,"),
    "the table begins late": (sampler, "_bounds", "*lower, 0]", "*lower[1:], 0, 0]"),
    "bars below 0 are 1": (sampler, "_candidates", "clip(_FIRST,", "clip(_FIRST + 1,"),
    "far bars wrap around": (sampler, "_candidates", "clip(_FIRST, last)", "clip(_FIRST, None) % last"),
    "no bound at all": (sampler, "_candidates", "<= bounds.take", ">= 0 * bounds.take"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_test_by_a_bound_is_detected(name, monkeypatch):
    owner, function, right, wrong = MUTANTS[name]
    source = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert source.count(right) == 1
    scope = dict(vars(sampler))
    exec(source.replace(right, wrong), scope)  # noqa: S102 - our own source
    monkeypatch.setattr(owner, function, scope[function])
    rate = Fraction(1, 10)
    bars, words = beside_bounds(rate)
    candidates = sampler._candidates(rate, bars, np.array(words, dtype=np.uint64))
    few = len(candidates) <= sum(
        bound_of(rate, bar) >= word for bar, word in zip(bars.tolist(), words, strict=True)
    )
    assert not few or found_beside_bounds(rate) != expected_beside_bounds(rate)


@pytest.mark.parametrize("noise", Noise)
def test_branches_that_are_tested_together_have_the_noise_of_each(noise):
    keyed, law, given, least = near_bar(noise, Fraction(1, 30), 40_000, 14)
    laws, leasts = [law, Law(noise, Fraction(1, 7)), law], [least, least // 2, least + 1]
    among = np.random.default_rng(16).random(40_000) < 0.5
    for branch, (tests, noises) in enumerate(keyed.reaching(laws, given, leasts, among)):
        drawn = keyed.draw(laws[branch], given._replace(branch=branch))
        assert tests.tolist() == np.flatnonzero((drawn >= leasts[branch]) & among).tolist()
        assert noises.tolist() == drawn[tests].tolist()
        assert len(tests) > 1000


@pytest.mark.parametrize("count", [1, 255, 256, 40_000])
def test_tests_that_are_packed_once_have_the_noise_of_others(count):
    keyed, law, given, least = near_bar(Noise.EXPONENTIAL, Fraction(1, 30), count, 17)
    offset, row, attempt, value = (packing := Packing(given.offset, given.row, given.value)).columns
    packed = given._replace(offset=offset, row=row, attempt=attempt, value=value, packing=packing)
    laws, leasts = [law, Law(Noise.LAPLACE, Fraction(1, 7))], [least, least + 1]
    for salt in ((3, 2**64 - 1), given.salt, (np.full(count, 5, np.uint64), np.full(count, 7, np.uint64))):
        found, expected = (keyed.reaching(laws, one._replace(salt=salt), leasts) for one in (packed, given))
        assert [[*map(list, one)] for one in found] == [[*map(list, one)] for one in expected]
    moved = packed._replace(value=value + 1)
    assert keyed.draw(law, moved).tolist() == keyed.draw(law, given._replace(value=value + 1)).tolist()
    with pytest.raises(PackingError, match="offset"):
        Packing(2**48, np.arange(count), value)


def test_rows_of_one_record_have_the_noise_of_each_by_itself():
    keyed, law, given, _ = near_bar(Noise.EXPONENTIAL, Fraction(1, 30), 40_000, 15)
    rows = np.arange(40_000)
    together = keyed.draw(law, given._replace(offset=7, row=rows))
    assert together.tolist() == keyed.draw(law, given._replace(offset=np.full(40_000, 7), row=rows)).tolist()


@pytest.mark.parametrize("rate", REACHING, ids=str)
def test_hardly_any_test_is_drawn_that_does_not_reach_its_bar(rate):
    """Else the time of a batch would tell how many answers are near the bar."""
    _, law, _, least = near_bar(Noise.EXPONENTIAL, rate, 300_000, 12)
    words = np.random.default_rng(13).integers(0, 2**64, len(least), dtype=np.uint64)
    found = sampler._candidates(law.rate, least, words)
    given = Identity(SALT, np.arange(len(least)), 0, 0, 0, np.zeros(len(least), dtype=np.int64))
    [(tests, _)] = Sampler(ScriptedWords(words, FURTHER)).reaching([law], given, [least])
    assert found.tolist() == tests.tolist()
