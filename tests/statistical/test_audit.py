"""Audit on the real samplers: epsilon as measured on ten million draws never passes the charge, either way.

Many runs at once: keyed query noise with a salt per run, threshold noise from `draw_threshold`, decisions by the
mechanism's own `branch_gaps` and `fired`. An event is fixed beforehand for each direction; its probability on two
neighbours is bounded by Clopper & Pearson's intervals, and the ratio of a lower to an upper bound is a lower bound
of e^epsilon. Broken variants have to be found out by the same means. Keys are fixed, so the outcome is always the same.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.mechanisms import (
    Explicit,
    KeyedSampler,
    Noise,
    draw_threshold,
    sparse_vector,
)
from stream_svt.mechanisms.run import UNITS_PER_EPSILON

EXP, LAP, GUM = Noise.EXPONENTIAL, Noise.LAPLACE, Noise.GUMBEL
CONFIDENCE = 0.999
TESTS = 19
RUNS = 250_000
"""Runs on each dataset: 2 * 250,000 * (19 tests + 1 threshold) draws in all."""

FIRST = (-1,) * (TESTS - 1) + (5,)
SECOND = (0,) * (TESTS - 1) + (4,)
"""Bottoms on answers that rise and a top on one that falls: what costs the whole charge."""

FEW_BOTTOMS = tuple((-(10**4),) * (TESTS - 3) + values[-3:] for values in (FIRST, SECOND))
"""The same where most answers are far below: narrow threshold noise seldom lets many near ones be bottoms."""


def mechanism(noises, *, monotonic=False, split=Fraction(3)):
    return sparse_vector(
        epsilon=UNITS_PER_EPSILON,
        cutoff=1,
        monotonic=monotonic,
        correction=Explicit((0,)),
        threshold_noise=noises[0],
        query_noise=noises[1],
        split=split,
    )


def entropy_of(label):
    """Stream of bytes that is the same in every run of the tests."""
    stream = np.random.Generator(np.random.Philox(key=int.from_bytes(hashlib.sha256(label).digest()[:16])))
    pool, position = b"", 0

    def entropy(size):
        nonlocal pool, position
        if position + size > len(pool):
            pool, position = stream.bytes(2**20), 0
        position += size
        return pool[position - size : position]

    return entropy


def thresholds(svt, runs, keyed, salts, label, scale):
    """Threshold noise of every run, as production draws it; Gumbel, of the library only, by key."""
    rate = svt.threshold_rate * scale
    if svt.threshold_noise is GUM:
        zeros = np.zeros(runs, dtype=np.int64)
        return keyed.draw(GUM, rate, salt=salts, offset=zeros, row=0, attempt=0, branch=15, value=zeros)
    entropy = entropy_of(label)
    return np.fromiter(
        (draw_threshold(svt.threshold_noise, rate, entropy) for _ in range(runs)), np.int64, runs
    )


def play(svt, values, runs, label, *, query_scale=1, threshold_scale=1):
    """Number of the test that each run reports, `TESTS` where it reports none, and its gap."""
    key = hashlib.sha256(label + repr(svt).encode()).digest()
    keyed, salts = KeyedSampler(key), tuple(_salts(key, runs))
    rho = thresholds(svt, runs, keyed, salts, label + key, threshold_scale)
    places, gaps = np.full(runs, TESTS), np.zeros(runs, dtype=np.int64)
    for test, value in enumerate(values):
        answers = np.full(runs, value)

        def noise(branch, test=test, answers=answers):
            law = svt.branch_laws[branch]
            return keyed.draw(
                law.noise,
                law.rate * query_scale,
                salt=salts,
                offset=np.full(runs, test),
                row=0,
                attempt=0,
                branch=branch,
                value=answers,
            )

        found = svt.branch_gaps(answers, 0, rho, 0, noise)
        now = (svt.fired(found, svt.smallest_charge) >= 0) & (places == TESTS)
        places[now] = test
        gaps[now] = found[0, now]
    return places, gaps


def _salts(key, runs):
    chance = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16])))
    return chance.integers(0, 2**64, (2, runs), dtype=np.uint64)


def beta_tail(p, a, b):
    """Regularised incomplete beta function I_p(a, b), by its continued fraction."""
    if p in {0.0, 1.0}:
        return p
    if p > (a + 1) / (a + b + 2):
        return 1 - beta_tail(1 - p, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(p) + b * math.log1p(-p)
    )
    c, d = 1.0, 1 / (1 - (a + b) * p / (a + 1))
    total = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * p / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * p / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = 1 + step / c, 1 / (1 + step * d)
            total *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * total / a


def clopper_pearson(hits, trials, confidence=CONFIDENCE):
    """Lower and upper bound of a probability, each with that confidence."""

    def solve(a, b, tail):
        low, high = 0.0, 1.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if beta_tail(middle, a, b) < tail else (low, middle)
        return (low + high) / 2

    lower = solve(hits, trials - hits + 1, 1 - confidence) if hits else 0.0
    upper = solve(hits + 1, trials - hits, confidence) if hits < trials else 1.0
    return lower, upper


def measured(hits_first, hits_second, runs):
    """Lower confidence bound of epsilon from an event's hits on two neighbours."""
    low, _ = clopper_pearson(int(hits_first), runs)
    _, high = clopper_pearson(int(hits_second), runs)
    return math.log(low / high) if low else -math.inf


def audit(svt, runs, pair=(FIRST, SECOND), **scales):
    """Lower bound of epsilon in both directions.

    One direction counts a top of the last test, the gap included (any event of gaps has the same ratio under
    exponential noise); the other a top of the first.
    """
    (place, gap), (other_place, other_gap) = (
        play(svt, values, runs, label, **scales)
        for values, label in zip(pair, (b"first", b"second"), strict=True)
    )
    last, first = TESTS - 1, 0
    return {
        "forth": measured(
            ((place == last) & (gap >= 0)).sum(), ((other_place == last) & (other_gap >= 0)).sum(), runs
        ),
        "forth, gap of 2 or more": measured(
            ((place == last) & (gap >= 2)).sum(), ((other_place == last) & (other_gap >= 2)).sum(), runs
        ),
        "back": measured((other_place == first).sum(), (place == first).sum(), runs),
    }


@pytest.mark.slow
@pytest.mark.parametrize("noises", [(EXP, EXP), (LAP, LAP), (GUM, GUM)], ids="-".join)
def test_ten_million_draws_show_no_loss_above_the_charge(report, noises):
    svt = mechanism(noises)
    found = audit(svt, RUNS)
    draws = 2 * RUNS * (TESTS + 1)
    charge = svt.epsilon / UNITS_PER_EPSILON
    report.audit(
        f"sparse vector {'-'.join(noises)}",
        draws=draws,
        charge=charge,
        measured=max(found.values()),
        verdict="within",
    )
    assert draws == 10**7
    assert max(found.values()) <= charge
    assert found["forth"] > (0.8 if noises == (EXP, EXP) else 0.6) * charge  # the events do cost something
    assert found["back"] > 0.1 * charge


@pytest.mark.parametrize(
    ("broken", "options", "scales"),
    [
        ("query noise half as wide", {}, {"query_scale": 2}),
        (
            "threshold noise half as wide",
            {"split": Fraction(1, 2)},
            {"threshold_scale": 2, "pair": FEW_BOTTOMS},
        ),
        ("monotonic rate on general queries", {"monotonic": True}, {}),
    ],
)
def test_the_audit_finds_a_broken_variant_out(report, broken, options, scales):
    svt = mechanism((EXP, EXP), **options)
    runs = 50_000
    found = audit(svt, runs, **scales)
    report.audit(
        broken, draws=2 * runs * (TESTS + 1), charge=1.0, measured=max(found.values()), verdict="found out"
    )
    report.catch(broken, ["audit of the samplers"])
    assert max(found.values()) > 1.1


def test_the_audited_decisions_are_those_of_step():
    svt = mechanism((EXP, EXP))
    runs = 300
    places, gaps = play(svt, FIRST, runs, b"first")
    key = hashlib.sha256(b"first" + repr(svt).encode()).digest()
    keyed, salts = KeyedSampler(key), _salts(key, runs)
    entropy = entropy_of(b"first" + key)
    for number in range(runs):
        salt = tuple(int(half) for half in salts[:, number])
        run = svt.open(draw_threshold(EXP, svt.threshold_rate, entropy), salt)

        def noise(branch, salt=salt):
            return keyed.draw(
                EXP,
                svt.branches[branch].rate,
                salt=salt,
                offset=np.arange(TESTS),
                row=0,
                attempt=0,
                branch=branch,
                value=np.array(FIRST),
            )

        _, outcomes = svt.step(run, np.array(FIRST), 0, 0, noise)
        told = [(top.row, top.gap) for top in outcomes.tops] or [(TESTS, 0)]
        assert told == [(places[number], gaps[number])]


@pytest.mark.parametrize(
    ("hits", "trials", "lower", "upper"),
    [(0, 10, 0.0, 0.498813), (3, 10, 0.021038, 0.795363), (10, 10, 0.501187, 1.0)],
)
def test_the_intervals_are_those_of_clopper_and_pearson(hits, trials, lower, upper):
    assert clopper_pearson(hits, trials) == (pytest.approx(lower, abs=1e-5), pytest.approx(upper, abs=1e-5))
