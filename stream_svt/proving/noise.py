"""Noise that is handed to the engine: drawn for the first stream, moved for its neighbour as the alignment says.

The engine asks for threshold noise by reading entropy and for query noise by the identity of a test. Both are answered
here so that the run and the test are known: a run's salt is its number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np

from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.grid import Integers
from stream_svt.mechanisms.noise import MONITORED, Law, Noise
from stream_svt.mechanisms.sampler import Salt, draw_threshold

Test = tuple[int, int, int, int, int]
"""Number of the run, offset, row, attempt and branch."""

_SALT_BYTES = 16
_WORD = 64
_LEAST_WORD = 1 << 46
"""Smaller words lead to threshold noise that no word of the neighbour could be found for."""


class Chance(Protocol):
    """A source of pseudo-random numbers, such as `random.Random`."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a whole number in [0, stop)."""
        ...

    def getrandbits(self, bits: int, /) -> int:
        """Return so many bits."""
        ...


def threshold_of(words: list[int], law: Law) -> int:
    """Return the threshold noise that words lead to."""
    given = iter(words)
    return draw_threshold(law.noise, law.rate, lambda _: next(given).to_bytes(8, "big"))


def words_for(steps: int, law: Law) -> list[int] | None:
    """Return words that lead to so many steps of threshold noise, None where none are found."""
    sizes = [max(steps, 0), max(-steps, 0)] if law.noise is Noise.LAPLACE else [steps]
    words = [
        min((1 << _WORD) - 1, int(math.exp(-(size + 0.5) * float(law.rate)) * 2.0**_WORD)) for size in sizes
    ]
    try:
        found = min(words) > 0 and threshold_of(words, law) == steps
    except (StopIteration, RuntimeError):
        return None
    return words if found else None


@dataclass(slots=True)
class NoiseSource:
    """All noise of a stream, drawn when it is first asked for.

    Called, it returns entropy for runs: words of threshold noise, then a salt that is the run's number.

    Attributes:
        first: The noise of the first stream, for its neighbour; `wanted` are the words of its runs' threshold noise,
            `moved` the tests whose noise moves, with what to add to it less the test's value.
        words: What was given for the threshold noise of each run, by its number.
        opened: Runs since the last commit, in order.
        drawn, values: Noise and grid value of every test asked for.
    """

    chance: Chance
    first: NoiseSource | None = None
    wanted: Mapping[int, list[int]] = field(default_factory=dict)
    moved: Mapping[Test, int] = field(default_factory=dict)
    words: list[list[int]] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    drawn: dict[Test, int] = field(default_factory=dict)
    values: dict[Test, int] = field(default_factory=dict)
    _current: list[int] = field(default_factory=list)

    def __call__(self, count: int) -> bytes:
        """Return so many bytes: eight for a word, sixteen for the salt that ends a run's draws."""
        number = len(self.words)
        if count == _SALT_BYTES:
            self.words.append(self._current)
            self.opened.append(number)
            self._current = []
            return number.to_bytes(8, "little") + bytes(8)
        wanted = self.wanted.get(number, [])
        place = len(self._current)
        word = wanted[place] if place < len(wanted) else max(_LEAST_WORD, self.chance.getrandbits(_WORD))
        self._current.append(word)
        return word.to_bytes(8, "big")

    def draw(
        self,
        noise: Noise,
        rate: Fraction,
        *,
        salt: Salt,
        offset: Integers,
        row: Integers | int,
        attempt: Integers | int,
        branch: int,
        value: Integers,
    ) -> Integers:
        """Return the noise of each test."""
        count = len(offset)
        columns = [
            np.broadcast_to(np.asarray(column), count).tolist() for column in (salt[0], offset, row, attempt)
        ]
        drawn = []
        for run, at, place, tried, seen in zip(*columns, value.tolist(), strict=True):
            test = (run, at, place, tried, branch)
            known = self.drawn.get(test)
            if known is None or self.values[test] != seen:
                # A test is its identity and its value: a waiting query that met a new value is another test.
                known = self._new(test, seen, noise, rate)
                self.drawn[test], self.values[test] = known, seen
            drawn.append(known)
        return np.array(drawn, dtype=np.int64)

    def _new(self, test: Test, value: int, noise: Noise, rate: Fraction) -> int:
        if self.first is not None and test in self.first.drawn:
            moved = self.moved.get(test)
            return self.first.drawn[test] + (0 if moved is None else moved - value)
        require(noise in MONITORED, f"the neighbour test draws no {noise} noise")
        signs = (1, -1) if noise is Noise.LAPLACE else (1,)
        return sum(sign * int(-math.log1p(-self.chance.random()) / float(rate)) for sign in signs)
