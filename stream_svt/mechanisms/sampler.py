"""Exact integer noise, as a pure function of a secret key and a test's identity, or of entropy.

A geometric draw is G = floor(-ln(U) / rate) for U uniform in (0, 1), since then P(G >= k) = P(U <= e^(-k rate)) =
e^(-k rate) exactly. The first 64 bits of U confine it to [b, b + 1) / 2^64. If the image of this interval lies between
two integers, the draw is determined; floats decide this if their error is below a margin. Otherwise the sampler uses
further bits and exact arithmetic.

**The margin.** Let y = -ln(U), b >= 2^44, and let Y be the computed value of ``-log(float(b) * 2**-64)``.

* b to float64 rounds to nearest: relative error at most 2^-53, hence at most 2^-52 in the logarithm;
  scaling by 2^-64 is exact.
* U is anywhere in the interval: ln moves by at most 1/b <= 2^-44.
* numpy's log: allow 8 units in the last place of a result below 20 ln 2 < 14, at most 8 * 2^-49 = 2^-46
  (numpy promises fewer than 4).
* 1/rate is correctly rounded and the product is rounded: at most 2^-52 * 14 < 2^-48 in units of y.

The sum is less than 2^-44 + 2^-46 + 2^-48 + 2^-52 < 2^-43. So |X - y/rate| < 2^-43 / rate = `margin` for X =
Y/rate in floats. If X is at least the margin away from every integer, X and y/rate have the same floor. For b below
2^44 (one draw in a million) or X inside the margin (2^-42/rate of the draws) the draw is computed exactly. ``X -
rint(X)`` is exact below 2^52; with a margin of 1/4 or more (rates below 2^-41) every draw is computed exactly.

**Gumbel noise** is floor(-ln(-ln U) / rate), increasing in U. Floats serve for words b from 2^44 to 2^64 - 2^56,
where y = -ln U is at least 2^-8 (4 draws in a thousand lie outside). Relative error of Y: for U >= 1/16 at most
(2^-52 + 2^-60)/2^-8 for the rounding of b and the interval and 8 * 2^-52 for the logarithm, together below 2^-43.9;
for smaller U, y > 2.7 and the sum above gives less than 2^-45. So the error of -ln Y is less than 2^-43.9 for Y,
8 * 2^-50 for the second logarithm (below 5.6 in magnitude) and 2^-49 for 1/rate and the product: less than 2^-43
again, so the same margin serves.

**Tests by an integer bound.** A geometric draw is at least m > 0 if and only if U <= e^(-m rate), so that b is at most
floor(2^64 e^(-m rate)). One comparison of b with this bound finds the tests that may reach a bar; only these are drawn.
Those that do not reach it have b equal to the bound, with probability 2^-64. A table has the bounds; if it were large,
a test far from the bar would find its entry in another cache than one near it. Then floats give a bound that is too
large by a fraction of at most 2^-43, for every test alike: |m rate| is at most 45 and each of its two roundings errs by
at most 45 * 2^-53, the exponential and the conversion of b by less than 2^-49, together less than the factor 1 + 2^-44
by which the bound is raised. Bounds for m > 45/rate are 0, since 2^64 e^-45 < 1. All tests take the same steps,
whatever their values are.
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from stream_svt.errors import PackingError
from stream_svt.mechanisms.arguments import (
    checked_array,
    checked_integer,
    checked_integer_or_array,
    next_word,
    require,
)
from stream_svt.mechanisms.grid import NOISE_LIMIT, THRESHOLD_NOISE_LIMIT, VALUE_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise, to_decimal

KEY_BYTES = 32
SAMPLER_VERSION = 1
"""Stored with every run; changes whenever the same key and identity would give other noise."""

OFFSET_LIMIT = 2**48
ROW_LIMIT = 2**20
ATTEMPT_LIMIT = 2**8
BRANCH_LIMIT = 2**4

_WORD = 64
_VALUE_BITS = np.uint64(2**48 - 1)
_CHUNK = 16384
_TILE = 256
"""Tests whose salt is added at once; divides `_CHUNK`."""
_MIN_FAST_WORD = 2**44
_MAX_FAST_GUMBEL_WORD = 2**64 - 2**56
_MARGIN = 2.0**-43
_MAX_MARGIN = 0.25
_FARTHEST = 45
_MAX_BOUNDS = 4096
_RAISED = 2.0**64 * (1 + 2.0**-44)

Words = NDArray[np.uint64]
Salt = tuple[int, int] | tuple[Words, Words]
_FIRST = np.int64(0)
_NONE: Integers = np.zeros(0, dtype=np.int64)


def exact_draw(noise: Noise, word: Callable[[], int], rate: Fraction, limit: int = NOISE_LIMIT) -> int:
    """Return a geometric draw, P(k) proportional to e^(-rate k), or a Gumbel draw, P(G >= k) = 1 - exp(-e^(-rate k)).

    It is exact for any positive rational rate and saturates at `limit` in magnitude, in grid steps. `word` returns the
    next 64 bits of the uniform, most significant first; it is called until the draw is determined.

    For Gumbel noise y is at least about 2^-bits, and the slack is a fraction 10^-10 of it. Its logarithm stays below
    0.7 * bits, so the division and the second logarithm, correctly rounded, err by at most 10 * bits * 10^-p.
    """
    least_draw = -limit if noise.draw == "gumbel" else 0
    for lower, upper, slack, context in _exponents(word, rate):
        if noise.draw == "gumbel":
            low = -limit if upper is None else (-_logarithm(upper, context) - slack) // rate
            high = limit if lower <= 0 else (-_logarithm(lower, context) + slack) // rate
        else:
            low, high = lower // rate, limit if upper is None else upper // rate
        low, high = (max(least_draw, min(end, limit)) for end in (low, high))
        if low == high:
            return low
    raise AssertionError  # the refinements do not end


def decimal_context(digits: int) -> decimal.Context:
    """Return a decimal context with this many digits and unlimited exponents."""
    return decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)


def prefixes(word: Callable[[], int]) -> Iterator[tuple[int, int]]:
    """Yield ever longer prefixes of a uniform number, each with its number of bits."""
    prefix, bits = 0, 0
    while True:
        prefix, bits = prefix << _WORD | next_word(word), bits + _WORD
        yield prefix, bits


def _exponents(
    word: Callable[[], int], rate: Fraction
) -> Iterator[tuple[Fraction, Fraction | None, Fraction, decimal.Context]]:
    """Yield ever closer bounds of y = -ln U, the upper one None if U may be 0, with their slack and decimal context.

    ``decimal`` rounds its logarithm correctly, so p digits of a logarithm below 0.7 * bits err by at most
    5 * 10^-p * 0.7 * bits, two of them by less than bits * 10^(1 - p). This slack widens the interval on both sides.
    The points where a draw changes are countable, so the bounds determine it with probability one; each next step
    fails to with probability about 2^-64 times the number of such points in the interval before.
    """
    require(rate > 0, "a noise rate must be greater than 0")
    for prefix, bits in prefixes(word):
        digits = bits * 30103 // 100000 + len(str(rate.denominator // rate.numerator)) + 12
        context = decimal_context(digits)
        slack, logarithm = Fraction(bits, 10 ** (digits - 1)), _logarithm(1 << bits, context)
        lower = logarithm - _logarithm(prefix + 1, context) - slack
        upper = logarithm - _logarithm(prefix, context) + slack if prefix else None
        yield lower, upper, slack, context


def _logarithm(number: Fraction | int, context: decimal.Context) -> Fraction:
    """Return the natural logarithm of a positive rational, within the slack of its bounds."""
    with decimal.localcontext(context):
        return Fraction(to_decimal(number).ln())


def draw_threshold(law: Law, entropy: Callable[[int], bytes]) -> int:
    """Draw threshold noise exactly, in grid steps; `entropy(n)` returns n fresh random bytes of the operating system.

    The caller stores the noise durably before the first comparison, because each further draw costs the threshold
    charge again.
    """

    def word() -> int:
        drawn = entropy(8)
        require(len(drawn) == 8, "a source of entropy returned another number of bytes than was requested")
        return int.from_bytes(drawn, "big")

    match law.noise.draw:
        case "gumbel":
            return exact_draw(law.noise, word, law.rate, THRESHOLD_NOISE_LIMIT)
        case "difference":
            return _geometric_of_words(word, law.rate) - _geometric_of_words(word, law.rate)
        case "geometric":
            return _geometric_of_words(word, law.rate)


def _geometric_of_words(word: Callable[[], int], rate: Fraction) -> int:
    """Return one threshold draw, by floats if the module's margin allows it, since many datasets open at once."""
    first = word()
    if first >= _MIN_FAST_WORD and rate.denominator < rate.numerator << 40:
        inverse = rate.denominator / rate.numerator  # correctly rounded
        scaled = -math.log(first * 2.0**-_WORD) * inverse
        if abs(scaled - round(scaled)) >= _MARGIN * inverse:
            return int(scaled)
    words = itertools.chain([first], iter(word, None))
    return exact_draw(Noise.EXPONENTIAL, words.__next__, rate, THRESHOLD_NOISE_LIMIT)


class Identity(NamedTuple):
    """Identity of tests, which determines their noise: integers for all tests, or arrays of shape (tests,)."""

    salt: Salt
    """Secret 128 bits of the run, as two integers or two uint64 arrays."""
    offset: Integers | int
    """Offset of the query's record; `row` is the row within it. One of the two is an array."""
    row: Integers | int
    attempt: Integers | int
    branch: int
    value: Integers
    """Answer in grid steps."""
    packing: Packing | None = None
    """These columns packed, if they were packed before; the salt is then two integers."""


class Packing:
    """Packed columns of tests without salt and branch, made once if several monitors test the same queries.

    The columns of the `Identity` are checked (see `Sampler.draw`) and not changed afterwards. ``words`` has two
    words for each test, its block without salt and branch, in tiles; after the last test they are arbitrary.
    """

    __slots__ = ("columns", "words")

    def __init__(self, offset: Integers | int, row: Integers | int, value: Integers) -> None:
        count = len(value)
        checked = _checked(Identity((0, 0), offset, row, 0, 0, value))
        self.columns = checked.offset, checked.row, 0, checked.value
        self.words: Words = np.empty((-(-count // _TILE), 2 * _TILE), dtype="<u8")
        _pack(checked, slice(0, count), self.words.reshape(-1, 2)[:count], np.empty(count, dtype=np.uint64))

    def is_of(self, identity: Identity) -> bool:
        """Return whether an identity has the same column objects."""
        return all(map(is_, self.columns, (identity.offset, identity.row, identity.attempt, identity.value)))


class WordSource(Protocol):
    """Source of the uniform words from which the noise of tests follows."""

    def words(self, identity: Identity, part: slice, *, other_branch: bool = False) -> Words:
        """Return the first 64 bits of both uniforms of some tests, shape (tests, 2), valid until the next call.

        ``other_branch``: only the branch differs from the last call.
        """

    def further(self, half: int, index: int) -> Iterator[int]:
        """Yield the following words of one of the two uniforms of a test of the last call, without end."""


class Blocks:
    """Blocks of tests: ``salt XOR pack(offset 48 | row 20 | attempt 8 | branch 4 | value 48)``, as two words each.

    Attributes:
        bytes: The memory of the blocks, for encryption.
    """

    def __init__(self) -> None:
        self._tiles = np.empty((_CHUNK // _TILE, 2 * _TILE), dtype="<u8")
        self._tile = np.empty(2 * _TILE, dtype="<u8")
        self._blocks: Words = self._tiles.reshape(_CHUNK, 2)
        self._word = np.empty(_CHUNK, dtype=np.uint64)
        self._branch = 0
        self.bytes = self._tiles.data.cast("B")

    def of(self, identity: Identity, part: slice, *, other_branch: bool = False) -> Words:
        """Return the blocks of some tests, at most 16,384, shape (tests, 2), valid until the next call.

        ``other_branch``: see `WordSource`.
        """
        blocks = self._blocks[: part.stop - part.start]
        if other_branch:
            blocks[:, 1] ^= np.uint64((identity.branch ^ self._branch) << 48)
        elif identity.packing is not None:
            self._salt(identity.packing, identity, part)
        else:
            _pack(identity, part, blocks, self._word[: len(blocks)])
        self._branch = identity.branch
        return blocks

    def _salt(self, packing: Packing, identity: Identity, part: slice) -> None:
        """Write packed tests, salted, to the blocks."""
        high, low = identity.salt
        self._tile[0::2], self._tile[1::2] = high, low ^ identity.branch << 48
        tiles = packing.words[part.start // _TILE : -(-part.stop // _TILE)]
        np.bitwise_xor(tiles, self._tile, out=self._tiles[: len(tiles)])


class KeyedWords:
    """Words as a keyed function of the test's identity: the same test always gets the same words.

    One AES-128 block per test, ``AES_k1`` of its block in `Blocks`. Its halves are the first words of both uniforms.
    Further bits come from ``AES_k2`` of the same input, then of its own output. If AES is indistinguishable from a
    random permutation, different identities and salts have independent words.
    """

    def __init__(self, key: bytes) -> None:
        require(len(key) == KEY_BYTES, f"a sampler key has {KEY_BYTES} bytes, this one has {len(key)}")
        self._noise_cipher = Cipher(algorithms.AES(key[:16]), modes.ECB()).encryptor()  # noqa: S305 - a PRF
        self._refinement_cipher = Cipher(algorithms.AES(key[16:]), modes.ECB()).encryptor()  # noqa: S305
        self._blocks = Blocks()
        self._output = bytearray(16 * _CHUNK + 15)  # update_into requires 15 bytes beyond the output
        self._bits = np.frombuffer(self._output, dtype="<u8", count=2 * _CHUNK).reshape(_CHUNK, 2)

    def words(self, identity: Identity, part: slice, *, other_branch: bool = False) -> Words:
        """Return the words of some tests, at most 16,384; see `WordSource`."""
        size = len(self._blocks.of(identity, part, other_branch=other_branch))
        self._noise_cipher.update_into(self._blocks.bytes[: 16 * size], self._output)
        return self._bits[:size]

    def further(self, half: int, index: int) -> Iterator[int]:
        """Yield the following words of a test of the last call; see `WordSource`."""
        block = bytes(self._blocks.bytes[16 * index : 16 * index + 16])
        while True:
            block = self._refinement_cipher.update(block)
            yield int.from_bytes(block[8 * half : 8 * half + 8], "little")


class Sampler:
    """Query noise from two uniforms a test.

    The first gives the geometric or Gumbel draw, the second the geometric draw that discrete Laplace noise subtracts.
    Not thread-safe: all calls share scratch memory.
    """

    def __init__(self, source: WordSource) -> None:
        self._source = source
        self._scaled = np.empty(_CHUNK, dtype=np.float64)
        self._distance = np.empty(_CHUNK, dtype=np.float64)
        self._down = np.empty(_CHUNK, dtype=np.int64)

    def draw(self, law: Law, given: Identity) -> Integers:
        """Return the noise of each test in grid steps, int64, shape (tests,); geometric draws saturate at 2^62.

        `PackingError` if a part of an identity does not fit its field, `MisuseError` if an array is not one integer per
        test, since two tests would share their noise; nothing is drawn then.
        """
        identity = _checked(given, law)
        result = np.empty(len(identity.value), dtype=np.int64)
        for part in _parts(len(result)):
            self._noise(law, self._source.words(identity, part), None, result[part])
        return result

    def reaching(
        self,
        laws: Sequence[Law],
        given: Identity,
        leasts: Sequence[Integers],
        among: NDArray[np.bool_] | None = None,
    ) -> list[tuple[Integers, Integers]]:
        """Return by branch the tests whose noise is at least `least`, ascending, and their noise.

        `leasts` are int64, shape (tests,), for each of the laws, those of branches 0, 1, ..; the branch of the
        identity is not used. `among` is a mask of the tests that count, None for all. They and the errors are the
        same as in `draw`. For geometric noise only they are drawn; see the module.
        """
        identity = _checked(given, *laws)
        found: list[list[tuple[Integers, Integers]]] = [[(_NONE, _NONE)] for _ in laws]
        for part in _parts(len(identity.value)):
            counted = None if among is None else among[part]
            for branch, (law, least) in enumerate(zip(laws, leasts, strict=True)):
                own = identity if branch == identity.branch else identity._replace(branch=branch)
                words = self._source.words(own, part, other_branch=branch > 0)
                tests, noise = self._reached(law, words, least[part], counted)
                if len(tests):
                    found[branch].append((tests + part.start, noise))
        return [_joined(parts) for parts in found]

    def _reached(
        self, law: Law, words: Words, least: Integers, among: NDArray[np.bool_] | None
    ) -> tuple[Integers, Integers]:
        """Return the tests of the last words, of a mask, whose noise is at least `least`, and their noise."""
        rows = _candidates(law.rate, least, words[:, 0], among) if law.noise.draw == "geometric" else None
        if rows is not None and not len(rows):
            return _NONE, _NONE
        least = least if rows is None else least[rows]
        noise = np.empty(len(least), dtype=np.int64)
        self._noise(law, words, rows, noise)
        reached = noise >= least
        if rows is None and among is not None:
            reached &= among
        found = np.flatnonzero(reached)
        return found if rows is None else rows[found], noise[found]

    def _noise(self, law: Law, words: Words, rows: Integers | None, out: Integers) -> None:
        """Write the noise of some rows of the last words, or of all, to `out`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            self._floors(law, 0, words, rows, out)
            if law.noise.draw == "difference":
                down = self._down[: len(out)]
                self._floors(law, 1, words, rows, down)
                out -= down

    def _floors(self, law: Law, half: int, words: Words, rows: Integers | None, out: Integers) -> None:
        """Write the geometric or Gumbel draws of one half to `out`."""
        size, is_gumbel = len(out), law.noise.draw == "gumbel"
        words = words[:, half] if rows is None else words[:, half].take(rows)
        scaled, distance = self._scaled[:size], self._distance[:size]
        inverse = _inverse(*law.rate.as_integer_ratio())
        margin = _MARGIN * inverse
        if margin >= _MAX_MARGIN:
            self._draw_exactly(law, half, words, np.arange(size), rows, out)
            return
        np.multiply(words, 2.0**-_WORD, out=scaled)
        np.log(scaled, out=scaled)
        if is_gumbel:
            np.negative(scaled, out=scaled)
            np.log(scaled, out=scaled)
        np.multiply(scaled, -inverse, out=scaled)
        np.rint(scaled, out=distance)
        np.subtract(scaled, distance, out=distance)
        np.abs(distance, out=distance)
        above_fast = is_gumbel and bool(words.max() > _MAX_FAST_GUMBEL_WORD)
        if is_gumbel:
            np.floor(scaled, out=scaled)
        np.copyto(out, scaled, casting="unsafe")  # truncates; negative numbers here are integers
        if above_fast or distance.min() < margin or words.min() < _MIN_FAST_WORD:
            inexact = (distance < margin) | (words < _MIN_FAST_WORD)
            if above_fast:
                inexact |= words > _MAX_FAST_GUMBEL_WORD
            self._draw_exactly(law, half, words, np.flatnonzero(inexact), rows, out)

    def _draw_exactly(
        self, law: Law, half: int, words: Words, chosen: Integers, rows: Integers | None, out: Integers
    ) -> None:
        """Write the draws of the chosen words to `out`, by exact arithmetic."""
        for index in chosen.tolist():
            row = index if rows is None else int(rows[index])
            bits = itertools.chain([int(words[index])], self._source.further(half, row))
            out[index] = exact_draw(law.noise, bits.__next__, law.rate)


class KeyedSampler(Sampler):
    """Query noise as a keyed function of the test's identity: the same test always gets the same noise.

    Args:
        key: 32 secret bytes, 16 for the noise and 16 for further bits. The caller stores it durably before first use.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__(KeyedWords(key))

    def __repr__(self) -> str:
        """Return a text without the key."""
        return "KeyedSampler()"


def _candidates(
    rate: Fraction, least: Integers, words: Words, among: NDArray[np.bool_] | None = None
) -> Integers:
    """Return the tests, of a mask, whose geometric draw may be at least `least`, given their first words."""
    bounds, last = _bounds(*rate.as_integer_ratio())
    steps = least.clip(_FIRST, last)
    if bounds is not None:
        below = words <= bounds.take(steps, mode="clip")
    else:
        raised = np.multiply(steps, -float(rate))
        np.exp(raised, out=raised)
        raised *= _RAISED
        below = words.astype(np.float64) <= raised
    if among is not None:
        below &= among
    return below.nonzero()[0]


@lru_cache(maxsize=256)
def _inverse(numerator: int, denominator: int) -> float:
    """Return 1/rate, correctly rounded, at most 2^50, where every draw is computed exactly."""
    return min(denominator, numerator << 50) / numerator


@lru_cache(maxsize=256)
def _bounds(numerator: int, denominator: int) -> tuple[Words | None, np.int64]:
    """Return floor(2^64 e^(-m rate)) of m = 0 (there 2^64 - 1) to ceil(45/rate), where it is 0, and the last m.

    None instead of more than 4,096 bounds. Integers bound the powers from below and above; if their floors differ,
    they are computed again with twice the bits.
    """
    rate = Fraction(numerator, denominator)
    last = min(math.ceil(_FARTHEST / rate), NOISE_LIMIT)
    if last >= _MAX_BOUNDS:
        return None, np.int64(last)
    bits = 3 * _WORD
    while True:
        lower, upper = _powers(rate, last - 1, bits)
        if lower == upper:
            return np.array([2**_WORD - 1, *lower, 0], dtype=np.uint64), np.int64(last)
        bits *= 2


def _powers(rate: Fraction, count: int, bits: int) -> tuple[list[int], list[int]]:
    """Return the floors of a lower and an upper bound of 2^64 e^(-m rate), m from 1 to `count`.

    Decimals have 5 digits more than these bits, so that e^-rate, for rates below 45, errs by less than 2^-bits.
    """
    if not count:
        return [], []
    with decimal.localcontext(decimal_context(bits * 30103 // 100000 + 6)):
        base = math.floor(Fraction((-to_decimal(rate)).exp()) * 2**bits)
    low = lower = base - 1
    high = upper = base + 2
    floors: tuple[list[int], list[int]] = [], []
    for _ in range(count):
        floors[0].append(lower >> bits - _WORD)
        floors[1].append(upper >> bits - _WORD)
        lower, upper = lower * low >> bits, (upper * high >> bits) + 1
    return floors


def _checked(given: Identity, *laws: Law) -> Identity:
    """Return the identity of tests, checked as `Sampler.draw` says."""
    for law in laws:
        require(law.rate.numerator > 0, "a noise rate must be greater than 0")
    branch = checked_integer(given.branch, "branch", 0, BRANCH_LIMIT, PackingError)
    positions = given.offset if isinstance(given.offset, np.ndarray) else given.row
    count = positions.size if isinstance(positions, np.ndarray) else 1
    salt = _checked_salt(given.salt, count)
    if given.packing is not None and given.packing.is_of(given) and isinstance(salt[0], int):
        return given
    return Identity(  # without the packing of other columns
        salt,
        checked_integer_or_array(given.offset, count, "offset", 0, OFFSET_LIMIT, PackingError),
        checked_integer_or_array(given.row, count, "row", 0, ROW_LIMIT, PackingError),
        checked_integer_or_array(given.attempt, count, "attempt", 0, ATTEMPT_LIMIT, PackingError),
        branch,
        checked_array(given.value, count, "value", 1 - VALUE_LIMIT, VALUE_LIMIT, PackingError),
    )


def _pack(identity: Identity, part: slice, block: Words, word: Words) -> None:
    """Write the identities of some tests to ``block``, a row of two words each; ``word`` is scratch memory."""
    high, low = _words(identity.salt[0], part), _words(identity.salt[1], part)
    offset, row = _words(identity.offset, part), _words(identity.row, part)
    attempt, value = _words(identity.attempt, part), _words(identity.value, part)
    # Numbers first: a number for all tests costs no pass over them.
    high = high ^ offset << 16
    low = low ^ identity.branch << 48 ^ attempt << 52
    np.bitwise_and(value, _VALUE_BITS, out=word)
    if isinstance(row, np.ndarray):
        np.bitwise_xor(high, row >> 4, out=block[:, 0])
        np.bitwise_xor(word, row << 60, out=word)
    else:
        block[:, 0] = high ^ row >> 4
        low = low ^ (row & 15) << 60  # a shift of words drops the other bits
    np.bitwise_xor(word, low, out=block[:, 1])


def _joined(parts: Sequence[tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    if len(parts) < 3:
        return parts[-1]
    tests, noises = zip(*parts, strict=True)
    return np.concatenate(tests), np.concatenate(noises)


def _parts(count: int) -> list[slice]:
    return [slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]


def _words(numbers: Integers | Words | int, part: slice) -> Any:  # noqa: ANN401 - words or a number
    return numbers[part].view(np.uint64) if isinstance(numbers, np.ndarray) else numbers


def _checked_salt(salt: Salt, count: int) -> Salt:
    for half in salt:
        if isinstance(half, np.ndarray):
            fits = half.dtype == np.uint64 and half.shape == (count,)
        else:
            fits = type(half) is int and 0 <= half < 2**64
        require(fits, "a salt must be two integers of 64 bits, or two uint64 arrays with one entry per test")
    return salt
