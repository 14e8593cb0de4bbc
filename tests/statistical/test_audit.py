"""Audit of the real samplers: epsilon measured on millions of draws never exceeds the charge, in either direction.

The audit plays many runs at once, with keyed query noise and a salt per run, threshold noise from `draw_threshold`,
and decisions by the mechanism's own `reached`. The step of top-k takes one run, so top-k is sorted here and
compared with its step. An event is fixed beforehand; Clopper & Pearson's intervals bound its probability on two
neighbours, and the ratio of a lower to an upper bound is a lower bound of e^epsilon. Each mechanism is audited from the
first dataset to the second and with the datasets exchanged. The same audit must detect broken variants. Keys are
fixed, so the result is always the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stream_svt.mechanisms import (
    Explicit,
    Identity,
    KeyedSampler,
    LastGap,
    Law,
    Noise,
    SparseVector,
    TopK,
    above_threshold,
    adaptive,
    draw_threshold,
    sparse,
)
from stream_svt.mechanisms.contract import Integers

EXP, LAP, GUM = Noise.EXPONENTIAL, Noise.LAPLACE, Noise.GUMBEL
CONFIDENCE = 0.999
TESTS = 19
RUNS = 125_000
"""Runs on each dataset and in each order: 4 * 125,000 * (19 tests + 1 threshold) draws, ten million in all."""

SOME_RUNS = 40_000
"""Runs for events likely enough to be measured with fewer."""

BROKEN_RUNS = 30_000
"""Runs for broken variants, whose loss is far above the charge."""

BOTTOM = -1
"""Stands for the branch of a test that no branch reported."""

UNMADE = -2
"""Stands for the branch of a test that a run did not reach."""

ONE = 1
HIGH = 30
"""Bar of the top branch of Adaptive SVT, which answers near 0 do not reach."""


@dataclass(frozen=True)
class Played:
    """Outputs of many runs.

    Attributes:
        reported: Branch that reported each test, `BOTTOM` or `UNMADE`, shape (tests, runs); of a top-k the
            answers by rank.
        gaps: Their gaps, 0 where nothing was reported.
    """

    reported: Integers
    gaps: Integers

    def shows(self, *reported: int) -> Integers:
        """Whether each run reported exactly this in its last tests, and bottoms before."""
        lead = len(self.reported) - len(reported)
        return (self.reported == np.array([BOTTOM] * lead + list(reported))[:, np.newaxis]).all(axis=0)


@dataclass(frozen=True)
class Witness:
    """An event and two neighbouring streams of answers; its log-ratio is close to `limit`.

    Attributes:
        first, second: Answers on the two datasets.
        event: Function from outputs to the event.
        limit: Largest log-ratio that the theory allows, in epsilon.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    event: Callable[[Played], Integers]
    limit: float


def bottoms_then_top(near, top, least_gap):
    """Bottoms on answers that rise and a top on one that falls, which costs the whole charge.

    Args:
        near: Number of bottoms near the threshold, which indicate high threshold noise; the others are far below.
        top: Answer of the last test. High answers are reported often; low ones and large gaps reveal more of the
            threshold noise.
        least_gap: Least gap of the top.
    """
    far = (-(10**4),) * (TESTS - near - 1)
    return Witness(
        (*far, *(-1,) * near, top),
        (*far, *(0,) * near, top - 1),
        lambda played: played.shows(0) & (played.gaps[-1] >= least_gap),
        1.0,
    )


def plain(noises, *, monotonic=False):
    families = {"threshold_noise": noises[0], "query_noise": noises[1]}
    return above_threshold(epsilon=ONE, monotonic=monotonic, split=Fraction(3), **families)


def two_branches():
    """Threshold 1/4, tops of the top branch 3/8 each, of the middle one 3/4."""
    bars = {"correction": Explicit((0,)), "margin": HIGH}
    return adaptive(epsilon=ONE, cutoff=1, monotonic=True, theta=Fraction(1, 4), **bars)


def repeated(split):
    """RESAMPLE: two tops, each with a threshold of its own."""
    return sparse(epsilon=ONE, cutoff=2, monotonic=True, split=split)


def identified(salts, value, *, offset, branch=0):
    """Identity of one test in every run."""
    values = np.full(np.shape(offset), value) if np.ndim(value) == 0 else value
    return Identity(salts, offset, 0, 0, branch, values)


def drawn(keyed, law, salts, value, *, scale=1, **test):
    """Noise of one test in every run, keyed as in production."""
    return keyed.draw(Law(law.noise, law.rate * scale), identified(salts, value, **test))


def thresholds(svt, runs, keyed, salts, entropy):
    """Threshold noise of every run, drawn as in production; Gumbel noise, which monitors do not use, by key."""
    law = svt.threshold_law
    if law.noise is GUM:
        return drawn(keyed, law, salts, 0, offset=np.zeros(runs, dtype=np.int64), branch=15)
    return np.fromiter((draw_threshold(law, entropy) for _ in range(runs)), np.int64, runs)


def secrets(mechanism, runs, label):
    """Sampler, a salt for every run, and entropy for the thresholds: the same in every run of the tests."""
    key = hashlib.sha256(label + repr(mechanism).encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16])))
    salts = tuple(rng.integers(0, 2**64, (2, runs), dtype=np.uint64))
    return KeyedSampler(key), salts, rng.bytes


def fired(svt, gaps, left):
    """First branch of every run that reaches the threshold and that the run can pay for, or `BOTTOM`."""
    result = np.full(gaps.shape[1], BOTTOM)
    for number in reversed(range(len(svt.branches))):
        result[(gaps[number] >= 0) & (left >= svt.branches[number].charge_units)] = number
    return result


def play(svt: SparseVector, values, runs, label, *, rounds=1, query_scale=1):
    """Play a sparse vector on a stream in every run; a spent run gets a fresh threshold for further `rounds`."""
    keyed, salts, entropy = secrets(svt, runs, label)
    charges = np.array([branch.charge_units for branch in svt.branches])
    tops_charge = svt.top_units
    rho = thresholds(svt, runs, keyed, salts, entropy)
    left, used = np.full(runs, tops_charge), np.ones(runs, dtype=np.int64)
    reported = np.full((len(values), runs), UNMADE, dtype=np.int64)
    gaps = np.zeros((len(values), runs), dtype=np.int64)
    for test, value in enumerate(values):

        def noise(leasts, test=test, value=value):
            laws = [Law(law.noise, law.rate * query_scale) for law in svt.branch_laws]
            return keyed.reaching(laws, identified(salts, value, offset=np.full(runs, test)), leasts)

        drawn_gaps = np.full((len(svt.branches), runs), -1)
        reached, gaps_there = svt.reached(np.full(runs, value), 0, rho, left, 0, noise)
        drawn_gaps[:, reached] = gaps_there
        playing = left >= svt.smallest_units
        reported[test, playing] = fired(svt, drawn_gaps, left)[playing]
        tops = np.flatnonzero(reported[test] >= 0)
        gaps[test, tops] = drawn_gaps[reported[test, tops], tops]
        left[tops] -= charges[reported[test, tops]]
        spent = np.flatnonzero((left < svt.smallest_units) & (used < rounds))
        if len(spent):
            rho[spent] = thresholds(svt, len(spent), keyed, salts, entropy)
            left[spent] = tops_charge
            used[spent] += 1
    return Played(reported, gaps)


def play_top_k(top_k: TopK, values, runs, label, *, query_scale=1):
    """Rank answers in every run: the first k by noisy value, equal ones by index."""
    keyed, salts, _ = secrets(top_k, runs, label)
    (law,) = top_k.branch_laws
    noisy = np.array(
        [
            value + drawn(keyed, law, salts, value, offset=np.full(runs, row), scale=query_scale)
            for row, value in enumerate(values)
        ]
    )
    order = np.argsort(-noisy, axis=0, kind="stable")[: top_k.k + 1]
    gaps = -np.diff(np.take_along_axis(noisy, order, axis=0), axis=0)
    if top_k.last_gap is LastGap.LEXICOGRAPHIC:
        gaps[-1] -= order[-1] < order[-2]
    return Played(order[:-1], gaps)


def measured(hits_first, hits_second, runs):
    """Lower confidence bound of epsilon from an event's hits on two neighbours."""
    from scipy.stats import binomtest

    first, second = (
        binomtest(int(hits), runs).proportion_ci(2 * CONFIDENCE - 1) for hits in (hits_first, hits_second)
    )
    return math.log(first.low / second.high) if first.low else -math.inf


def audit(mechanism: Any, witness: Witness, runs, *, exchanged=False, **options):
    """Lower bound of epsilon from the ratio of an event's probabilities on the first and the second dataset.

    `exchanged` swaps the noise, salts and keys of the two datasets.
    """
    game = play_top_k if isinstance(mechanism, TopK) else play
    labels = (b"other", b"one") if exchanged else (b"one", b"other")
    likelier, rarer = (
        witness.event(game(mechanism, values, runs, label, **options)).sum()
        for values, label in zip((witness.first, witness.second), labels, strict=True)
    )
    return measured(likelier, rarer, runs)


def rising(tops, event, limit):
    """Two bottoms on answers that rise, and tops on answers that stay: monotonic answers, one way."""
    return Witness((-1, -1, *tops), (0, 0, *tops), event, limit)


def falling(tops, event, limit):
    """Tops on answers that fall, and bottoms on answers that stay: the other way, where the threshold is free."""
    return Witness((-1, -1, *tops), (-1, -1, *(top - 1 for top in tops)), event, limit)


def resampled(first, second, limit):
    """A bottom and a top under each of two thresholds."""
    return Witness(first, second, lambda played: played.shows(BOTTOM, 0, BOTTOM, 0), limit)


def first_two(first, second):
    """The first two answers are reported, in order, whatever the gaps."""
    return Witness(first, second, lambda played: (played.reported == [[0], [1]]).all(axis=0), 1.0)


def second_by_nothing(played):
    """The second of three answers is reported with a plain gap of 0, so the hidden one has the larger index."""
    return (played.reported[0] == 1) & (played.gaps[0] == 0)


TIE = Witness((-1, 0, 0), (0, 0, 0), second_by_nothing, 1.0)

AUDITED = {
    "exponential": (plain((EXP, EXP)), {}, 0.88, bottoms_then_top(2, 0, 0)),
    "laplace": (plain((LAP, LAP)), {}, 0.7, bottoms_then_top(4, 2, 3)),
    "gumbel": (plain((GUM, GUM)), {}, 0.5, bottoms_then_top(4, 2, 3)),
    "adaptive, middle branch": (
        two_branches(),
        {},
        0.75,
        rising((0,), lambda played: played.shows(1), 1.0),
        falling((0,), lambda played: played.shows(1), 0.75),
    ),
    "adaptive, top branch twice": (
        two_branches(),
        {},
        0.75,
        rising((HIGH, HIGH), lambda played: played.shows(0, 0), 1.0),
        falling((HIGH, HIGH), lambda played: played.shows(0, 0), 0.75),
    ),
    "RESAMPLE": (
        repeated(Fraction(1)).per_top,
        {"rounds": 2},
        0.75,
        resampled((-1, 0, -1, 0), (0, 0, 0, 0), 1.0),
        resampled((-9, 0, -9, 0), (-9, -1, -9, -1), 0.5),
    ),
    "top-k": (
        TopK(epsilon=ONE, k=2, monotonic=True),
        {},
        0.75,
        first_two((0, 0, 0, 0), (0, 0, 1, 1)),
        first_two((0, 0, 0, 0), (-1, -1, 0, 0)),
    ),
    "top-k, plain last gap": (
        TopK(epsilon=ONE, k=1, monotonic=True, last_gap=LastGap.PLAIN),
        {},
        0.75,
        TIE,
        Witness((0, 1, 1), (0, 0, 0), second_by_nothing, 1.0),
    ),
}
"""By name: the mechanism, options of play, the least measured loss / the loss that the theory allows, and witnesses
with a large loss: for rising answers and, if given, for falling ones."""


@pytest.mark.parametrize("runs", [SOME_RUNS, pytest.param(RUNS, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", AUDITED)
def test_millions_of_draws_show_nearly_the_loss_that_is_charged_and_no_more_in_either_direction(name, runs):
    mechanism, options, least, *witnesses = AUDITED[name]
    for witness in witnesses:
        for exchanged in (False, True):
            loss = audit(mechanism, witness, runs, exchanged=exchanged, **options)
            assert least * witness.limit < loss <= witness.limit


BROKEN = {
    "query noise half as wide": (plain((EXP, EXP)), {"query_scale": 2}, bottoms_then_top(TESTS - 1, 5, 2)),
    "monotonic rate on general queries": (
        plain((EXP, EXP), monotonic=True),
        {},
        bottoms_then_top(TESTS - 1, 5, 2),
    ),
    "RESAMPLE charged once": (
        repeated(Fraction(1, 3)).per_top,
        {"rounds": 2},
        resampled((-1, 0, -1, 0), (0, 0, 0, 0), 3 / 8 + 2 / 8),
    ),
    "plain last gap of top-k at the price of the lexicographic one": (
        TopK(epsilon=ONE, k=1, monotonic=True, last_gap=LastGap.PLAIN),
        {"query_scale": 2},
        TIE,
    ),
}
"""By rule: a mechanism, how it is broken, and a witness whose limit is the claim of the broken variant."""


@pytest.mark.parametrize("broken", BROKEN)
def test_the_audit_detects_a_broken_variant_in_either_direction(broken):
    mechanism, options, witness = BROKEN[broken]
    losses = [
        audit(mechanism, witness, BROKEN_RUNS, exchanged=exchanged, **options) for exchanged in (False, True)
    ]
    assert min(losses) > 1.1 * witness.limit


@pytest.mark.parametrize(
    ("svt", "rounds", "values"),
    [
        (plain((EXP, EXP)), 1, (-1, 0, 2, 5)),
        (two_branches(), 1, (0, HIGH, 0, HIGH, HIGH)),
        (repeated(Fraction(1)).per_top, 2, (-1, 0, 0, 0, 0)),
    ],
    ids=["plain", "adaptive", "RESAMPLE"],
)
def test_the_audited_decisions_are_those_of_step(svt, rounds, values):
    runs = 300
    played = play(svt, values, runs, b"steps", rounds=rounds)
    keyed, salts, entropy = secrets(svt, runs, b"steps")
    opening = [draw_threshold(svt.threshold_law, entropy) for _ in range(runs)]
    states = [svt.open(rho, tuple(int(half[number]) for half in salts)) for number, rho in enumerate(opening)]
    used = [1] * runs
    for test, value in enumerate(values):
        for number, run in enumerate(states):
            if svt.is_over(run):
                assert played.reported[test, number] == UNMADE
                continue

            def noise(branch, salt=run.salt, test=test, value=value):
                law = svt.branch_laws[branch]
                return drawn(keyed, law, salt, value, offset=np.array([test]), branch=branch)

            states[number], outcomes = svt.step(run, np.array([value]), 0, 0, noise)
            reported = [(top.branch, top.gap) for top in outcomes.tops] or [(BOTTOM, 0)]
            assert reported == [(played.reported[test, number], played.gaps[test, number])]
        for number, run in enumerate(states):
            if svt.is_over(run) and used[number] < rounds:
                states[number] = svt.open(draw_threshold(svt.threshold_law, entropy), run.salt)
                used[number] += 1
    assert len({tuple(column) for column in played.reported.T.tolist()}) > 3


@pytest.mark.parametrize("last_gap", [LastGap.LEXICOGRAPHIC, LastGap.PLAIN])
def test_the_audited_rankings_are_those_of_step(last_gap):
    top_k, values, runs = TopK(epsilon=3 * ONE, k=2, monotonic=True, last_gap=last_gap), (0, 1, 0, 1), 300
    played = play_top_k(top_k, values, runs, b"steps")
    keyed, salts, _ = secrets(top_k, runs, b"steps")
    for number in range(runs):
        salt = tuple(int(half[number]) for half in salts)
        offset = np.arange(len(values))
        noise = drawn(keyed, top_k.branch_laws[0], salt, np.array(values), offset=offset)
        _, selection = top_k.step(top_k.open(0, salt), np.array(values), lambda _, noise=noise: noise)
        assert [top.row for top in selection.tops] == played.reported[:, number].tolist()
        assert [top.gap for top in selection.tops] == played.gaps[:, number].tolist()
    assert len({tuple(column) for column in played.reported.T.tolist()}) > 3
