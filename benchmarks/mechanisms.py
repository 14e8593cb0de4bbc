"""Testing arrays with exact keyed noise: against numpy's inexact draws and OpenDP's exact ones alone.

`SparseVector.step` draws noise keyed by every test's identity, compares and reports; the peers only draw. The
same count on both sides of a ratio, repetitions in turns so that both see the same machine. OpenDP is called as
its users call it, with a Python list; the same call with scale 0 takes less than a fifth of the time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import median_ratio, say, seconds, show
from stream_svt.mechanisms import (
    Annealed,
    Correction,
    Exposure,
    Identity,
    KeyedSampler,
    SparseVector,
    adaptive,
    ladder,
    sparse_vector,
)

EPSILON, CUTOFF = 1, 1000
FAR_BELOW, THRESHOLD, FAR_ABOVE = 1000, 10**7, 10**8
STREAM = Exposure(expected_queries=10**7, false_alerts=Fraction(1))


class Side:
    """A mechanism that tests the same answers again and again, a share of them tops."""

    def __init__(self, mechanism: SparseVector, count: int, *, tops: float = 0.0, attempt: int = 0) -> None:
        generator = np.random.default_rng(1)
        self.mechanism = mechanism
        self.sampler = KeyedSampler(bytes(range(32)))
        self.run = mechanism.open(threshold_noise=5, salt=(1, 2))
        self.offsets = np.arange(count, dtype=np.int64)
        self.values = generator.integers(0, FAR_BELOW, count)
        self.values[generator.random(count) < tops] = FAR_ABOVE
        self.attempts = np.full(count, attempt, dtype=np.int64) if attempt else 0
        self.tops = 0

    def step(self) -> None:
        """Test all answers in a fresh run."""
        _, outcomes = self.mechanism.step(self.run, self.values, THRESHOLD, self.attempts, self._noise)
        assert outcomes.consumed == len(self.values), "the run lasts for all answers"
        self.tops = len(outcomes.tops)

    def _noise(self, branch: int) -> NDArray[np.int64]:
        identity = Identity(self.run.salt, self.offsets, 0, self.attempts, branch, self.values)
        return self.sampler.draw(self.mechanism.branch_laws[branch], identity)

    @property
    def scale(self) -> float:
        """Query-noise scale of the last branch, in grid steps: the peers draw at this one."""
        return float(1 / self.mechanism.branches[-1].rate)


def numpy_exponential(scale: float, count: int) -> Callable[[], object]:
    """Return numpy's float sampler: neither exact nor keyed."""
    generator = np.random.default_rng(2)
    return lambda: generator.exponential(scale, count)


def opendp_laplace(scale: float, count: int) -> Callable[[], object]:
    """Return OpenDP's exact discrete Laplace noise on a vector of integers."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain, metric = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    add_noise = dp.m.make_laplace(domain, metric, scale=scale)
    answers = [0] * count
    return lambda: add_noise(answers)


def figures(tests: int = 400_000, draws: int = 100_000, repetitions: int = 15) -> dict[str, float]:
    """Return the ratios of speeds, the two goals first; `draws` are those of OpenDP."""

    def build(
        form: Callable[..., SparseVector], correction: Correction = STREAM, cutoff: int = CUTOFF
    ) -> SparseVector:
        return form(epsilon=EPSILON, cutoff=cutoff, monotonic=True, correction=correction)

    plain = build(sparse_vector)
    many = build(sparse_vector, cutoff=tests)
    retried = build(sparse_vector, Annealed(end=Fraction(3)))
    sides = {
        "step_vs_numpy_exponential": Side(plain, tests),
        "step_vs_opendp_laplace": Side(plain, draws),
        "with_tops_vs_numpy_exponential": Side(plain, tests, tops=1e-3),
        "with_many_tops_vs_numpy_exponential": Side(many, tests, tops=0.1),
        "retried_vs_numpy_exponential": Side(retried, tests, attempt=5),
        "adaptive_vs_numpy_exponential": Side(build(adaptive), tests),
        "ladder_vs_numpy_exponential": Side(build(ladder), tests),
    }
    return {name: _ratio(name, side, repetitions) for name, side in sides.items()}


def _ratio(name: str, side: Side, repetitions: int) -> float:
    """Return how fast ``side`` steps where the peer draws as many numbers at speed 1: median of the turns."""
    count = len(side.values)
    peer = opendp_laplace if name.endswith("opendp_laplace") else numpy_exponential
    draw = peer(side.scale, count)
    turns = [(seconds(draw), seconds(side.step)) for _ in range(repetitions + 1)][1:]  # one to warm up
    theirs, ours = zip(*turns, strict=True)
    say(
        f"{name}: {1e9 * statistics.median(ours) / count:.1f} ns a test ({len(side.mechanism.branches)} branches, "
        f"{side.tops} tops of {count}), {1e9 * statistics.median(theirs) / count:.1f} ns a draw"
    )
    return median_ratio(name, theirs, ours)


if __name__ == "__main__":
    show(figures)
