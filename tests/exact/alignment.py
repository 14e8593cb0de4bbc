"""Randomness alignments as programs: the privacy proof, executed on the package's own `step`.

A case is a stream of values that may change between tests, a neighbour of it, and noise. The run on the first
stream is aligned: threshold noise and the noise of the branches that fired are moved, everything else is
kept. The proof holds if the run on the second stream with the moved noise gives the same outputs, no noise of
a one-sided family moves down, and the cost of the moves (rate times distance) is at most the output's charge.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import product

import numpy as np

from stream_svt.mechanisms import (
    UNITS_PER_EPSILON,
    Explicit,
    Noise,
    SparseVector,
    adaptive,
    ladder,
    sparse_vector,
)

STEPS = 14
RETRIES = 2


class Direction(StrEnum):
    """How the second stream differs from the first."""

    UP = "up"
    DOWN = "down"
    MIXED = "mixed"


@dataclass(frozen=True)
class Noises:
    """All noise of a case: one threshold noise a run, one query noise a test and branch."""

    thresholds: tuple[int, ...]
    queries: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Output:
    """What one test tells, and the run it belongs to."""

    run: int
    query: int
    attempt: int
    threshold: int
    branch: int
    gap: int
    left: int


def play(mechanism: SparseVector, values: tuple[int, ...], noises: Noises, *, resample: bool) -> list[Output]:
    """Test by test, with a schedule that depends on past outputs in order, threshold and retries (APPEND)."""
    waiting = [(query, 0) for query in range(6)]
    outputs: list[Output] = []
    number, run = 0, mechanism.open(noises.thresholds[0], (0, 0))
    for test, value in enumerate(values):
        if mechanism.is_over(run):
            if not resample:
                break
            number += 1
            run = mechanism.open(noises.thresholds[number], (0, 0))
        if not waiting:
            break
        last_was_top = bool(outputs) and outputs[-1].branch >= 0
        query, attempt = waiting.pop(-1 if last_was_top else 0)
        threshold = (query + run.tops) % 3
        drawn = noises.queries[test]
        run, outcomes = mechanism.step(
            run, np.array([value]), threshold, attempt, lambda branch, drawn=drawn: np.array([drawn[branch]])
        )
        branch, gap = (outcomes.tops[0].branch, outcomes.tops[0].gap) if outcomes.tops else (-1, 0)
        outputs.append(Output(number, query, attempt, threshold, branch, gap, run.left))
        if branch < 0 and attempt < RETRIES:
            waiting.append((query, attempt + 1))
    return outputs


def align(
    mechanism: SparseVector,
    outputs: list[Output],
    noises: Noises,
    first: tuple[int, ...],
    second: tuple[int, ...],
    direction: Direction,
) -> Noises:
    """Noise with which the second stream gives the outputs of the first."""
    lift = 0 if direction is Direction.DOWN else mechanism.sensitivity
    used = {output.run for output in outputs}
    queries = [list(row) for row in noises.queries]
    for test, output in enumerate(outputs):
        if output.branch >= 0:
            queries[test][output.branch] += lift + first[test] - second[test]
    return Noises(
        tuple(rho + lift if number in used else rho for number, rho in enumerate(noises.thresholds)),
        tuple(tuple(row) for row in queries),
    )


def charge(mechanism: SparseVector, outputs: list[Output]) -> int:
    """Units that the package charges for these outputs."""
    tops = sum(mechanism.branches[output.branch].charge for output in outputs if output.branch >= 0)
    return len({output.run for output in outputs}) * mechanism.threshold_charge + tops


def cost(mechanism: SparseVector, before: Noises, after: Noises) -> Fraction:
    """Units that the moves cost: rate times distance."""
    total = sum(
        (
            mechanism.threshold_rate * abs(b - a)
            for a, b in zip(before.thresholds, after.thresholds, strict=True)
        ),
        Fraction(0),
    )
    for old, new in zip(before.queries, after.queries, strict=True):
        for branch, a, b in zip(mechanism.branches, old, new, strict=True):
            total += branch.rate * abs(b - a)
    return total * UNITS_PER_EPSILON


def moves_down(mechanism: SparseVector, before: Noises, after: Noises) -> bool:
    """Whether noise of a one-sided family moved down, where it may leave its support."""
    thresholds = any(b < a for a, b in zip(before.thresholds, after.thresholds, strict=True))
    queries = any(
        b < a
        for old, new in zip(before.queries, after.queries, strict=True)
        for a, b in zip(old, new, strict=True)
    )
    return (mechanism.threshold_noise is Noise.EXPONENTIAL and thresholds) or (
        mechanism.query_noise is Noise.EXPONENTIAL and queries
    )


@dataclass(frozen=True)
class Case:
    """Two neighbouring streams and the noise of the run on the first."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    noises: Noises


def random_case(mechanism: SparseVector, direction: Direction, chance: random.Random) -> Case:
    """Values near the thresholds, so that tops and bottoms mix."""
    reach = mechanism.sensitivity
    low, high = (0, reach) if direction is Direction.UP else (-reach, 0)
    if direction is Direction.MIXED:
        low, high = -reach, reach
    first = tuple(chance.randint(-4, 8) for _ in range(STEPS))
    # Half of the cases sit on the extremes, where the charge is attained.
    extreme = chance.random() < 0.5
    second = tuple(v + (chance.choice((low, high)) if extreme else chance.randint(low, high)) for v in first)

    def draw(noise: Noise) -> int:
        size = min(int(chance.expovariate(0.5)), 30)
        return -size if noise is Noise.LAPLACE and chance.random() < 0.5 else size

    return Case(
        first,
        second,
        Noises(
            tuple(draw(mechanism.threshold_noise) for _ in range(STEPS)),
            tuple(tuple(draw(mechanism.query_noise) for _ in mechanism.branches) for _ in range(STEPS)),
        ),
    )


@dataclass
class Findings:
    """What a number of cases showed; `largest` is cost / charge."""

    cases: int = 0
    outputs_differ: int = 0
    noise_moved_down: int = 0
    over_charge: int = 0
    largest: Fraction = Fraction(0)

    @property
    def sound(self) -> bool:
        """Whether the proof held every time."""
        return not (self.outputs_differ or self.noise_moved_down or self.over_charge)


Align = Callable[
    [SparseVector, list[Output], Noises, tuple[int, ...], tuple[int, ...], Direction],
    Noises,
]


def check(
    mechanism: SparseVector,
    direction: Direction,
    *,
    resample: bool,
    cases: int,
    seed: int,
    alignment: Align = align,
) -> Findings:
    """Execute the proof on random cases."""
    chance, found = random.Random(seed), Findings()
    for _ in range(cases):
        case = random_case(mechanism, direction, chance)
        outputs = play(mechanism, case.first, case.noises, resample=resample)
        moved = alignment(mechanism, outputs, case.noises, case.first, case.second, direction)
        found.cases += 1
        found.outputs_differ += outputs != play(mechanism, case.second, moved, resample=resample)
        found.noise_moved_down += moves_down(mechanism, case.noises, moved)
        ratio = cost(mechanism, case.noises, moved) / charge(mechanism, outputs)
        found.over_charge += ratio > 1
        found.largest = max(found.largest, ratio)
    return found


def registry() -> Iterator[tuple[str, SparseVector, Direction, bool]]:
    """Every form of the mechanism with every pair of families, kind of neighbours and threshold mode."""
    falling = Explicit((3, 1, -1))
    builders: dict[str, Callable[..., SparseVector]] = {
        "plain": sparse_vector,
        "adaptive": adaptive,
        "ladder": ladder,
    }
    for (name, build), threshold_noise, query_noise in product(builders.items(), Noise, Noise):
        for direction in Direction:
            mechanism = build(
                epsilon=1_234_567_891,
                cutoff=3,
                monotonic=direction is not Direction.MIXED,
                correction=falling,
                sensitivity=1 if name == "plain" else 2,
                threshold_noise=threshold_noise,
                query_noise=query_noise,
            )
            if name != "plain":  # bring the upper branches' bars into the range of the small noise
                branches = tuple(
                    replace(branch, corrections=(4, 3, 2))
                    if number == 0
                    else replace(branch, corrections=(3, 1))
                    for number, branch in enumerate(mechanism.branches)
                )
                mechanism = replace(mechanism, branches=branches)
            yield f"{name}-{threshold_noise}-{query_noise}-{direction}-shared", mechanism, direction, False
            one = replace(
                mechanism, epsilon=mechanism.threshold_charge + max(b.charge for b in mechanism.branches)
            )
            yield f"{name}-{threshold_noise}-{query_noise}-{direction}-resample", one, direction, True
