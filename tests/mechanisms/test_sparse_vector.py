"""The sparse-vector mechanism: how epsilon is divided, what a test compares, and when a run ends."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.errors import MisuseError, UnreadableState
from stream_svt.mechanisms import (
    Annealed,
    Explicit,
    Exposure,
    Mean,
    Noise,
    Optimal,
    Run,
    Uncorrected,
    above_threshold,
    adaptive,
    ladder,
    sparse,
    sparse_vector,
)
from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.grid import GAP_LIMIT, NOISE_LIMIT, THRESHOLD_NOISE_LIMIT
from stream_svt.mechanisms.noise import variance
from stream_svt.mechanisms.numbers import loss_of

ONE = Fraction(1)
PROPERTY = settings(derandomize=True)  # the same on every machine, however busy
BUILDERS = {"plain": sparse_vector, "adaptive": adaptive, "ladder": ladder}


USUAL = {"epsilon": ONE, "cutoff": 4, "monotonic": True, "correction": Uncorrected()}


def plain(**options):
    return sparse_vector(**USUAL | options)


@pytest.mark.parametrize("build", [*BUILDERS.values(), above_threshold, sparse])
def test_missing_and_unknown_arguments_are_named_with_what_they_mean(build):
    with pytest.raises(TypeError, match=r"missing keyword arguments: .*monotonic \(whether neighbours move"):
        build(epsilon=1, **({"cutoff": 2} if build is sparse else {}))
    with pytest.raises(TypeError, match=r"no such keyword argument: k. There are .*monotonic"):
        build(
            **(
                {name: USUAL[name] for name in ("epsilon", "monotonic")}
                if build is above_threshold
                else USUAL
            ),
            k=3,
        )


def noise_of(*rows):
    return lambda branch: np.array(rows[branch])


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
@PROPERTY
@given(
    epsilon=st.integers(10**6, 10**11),
    cutoff=st.integers(1, 300),
    monotonic=st.booleans(),
    sensitivity=st.integers(1, 50),
)
def test_charges_never_pass_epsilon_and_rates_follow_from_them_exactly(
    builder, epsilon, cutoff, monotonic, sensitivity
):
    options = {"monotonic": monotonic, "sensitivity": sensitivity, "correction": Explicit((0,))}
    mechanism = builder(epsilon=loss_of(epsilon), cutoff=cutoff, **options)
    base = mechanism.branches[-1].charge
    assert mechanism.threshold_charge + cutoff * base == loss_of(epsilon)
    assert mechanism.cutoff == cutoff
    width = sensitivity if monotonic else 2 * sensitivity
    assert mechanism.threshold_rate == mechanism.threshold_charge / sensitivity
    for branch in mechanism.branches:
        assert branch.rate == branch.charge / width
        assert base % branch.charge == 0


@pytest.mark.parametrize(("monotonic", "factor"), [(True, 1), (False, 4)])
def test_adaptive_gives_the_threshold_the_share_of_least_variance(monotonic, factor):
    mechanism = adaptive(epsilon=ONE, cutoff=10, monotonic=monotonic, correction=Uncorrected())
    share = mechanism.threshold_charge / ONE
    assert share == pytest.approx(1 / (1 + (factor * 100) ** (1 / 3)), abs=1e-6)


def test_at_high_rates_the_share_is_minimised_on_the_grid():
    def spread(mechanism):
        return variance(Noise.EXPONENTIAL, mechanism.threshold_rate) + variance(
            Noise.EXPONENTIAL, mechanism.branches[-1].rate
        )

    build = partial(adaptive, epsilon=50 * ONE, cutoff=10, monotonic=True, correction=Uncorrected())
    found, ruled = build(), build(theta=Fraction(1 / (1 + 100 ** (1 / 3))))  # the rule for small rates
    grid = [build(theta=Fraction(i, 500)) for i in range(1, 500)]
    assert spread(ruled) > 1.1 * spread(found)
    assert spread(found) <= min(spread(mechanism) for mechanism in grid) * 1.001


def test_the_top_branch_of_adaptive_costs_half_and_carries_the_paper_s_margin():
    mechanism = adaptive(epsilon=ONE, cutoff=5, monotonic=True, correction=Explicit((7, 3)))
    top, middle = mechanism.branches
    assert (top.name, middle.name) == ("top", "middle")
    assert 2 * top.charge == middle.charge
    margin = math.ceil(2 * math.sqrt(variance(Noise.EXPONENTIAL, top.rate)))
    assert top.corrections == (7 + margin, 3 + margin)
    assert middle.corrections == (7, 3)


@pytest.mark.parametrize("correction", [Mean(), Uncorrected(), Optimal(queries=1000, cutoff=5)], ids=str)
def test_corrections_that_do_not_count_tests_get_the_margin(correction):
    with_margin = adaptive(epsilon=ONE, cutoff=5, monotonic=True, correction=correction)
    without = adaptive(epsilon=ONE, cutoff=5, monotonic=True, correction=correction, margin=0)
    assert with_margin.branches[0].corrections[0] > without.branches[0].corrections[0]
    assert with_margin.branches[1] == without.branches[1]


def test_under_exposure_every_branch_is_set_by_its_own_noise_and_counts_the_branches():
    exposure = Exposure(expected_queries=10**6, false_alerts=Fraction(2))
    mechanism = adaptive(epsilon=ONE, cutoff=5, monotonic=True, correction=exposure)
    for branch in mechanism.branches:
        expected = float(1 / branch.rate) * math.log(2 * 10**6 / 2)
        assert branch.corrections == (math.ceil(expected),)


def test_a_ladder_names_and_prices_its_rungs():
    mechanism = ladder(epsilon=ONE, cutoff=8, monotonic=True, correction=Annealed(end=Fraction(0)))
    assert [branch.name for branch in mechanism.branches] == ["top/8", "top/4", "top/2", "middle"]
    base = mechanism.branches[-1].charge
    assert [base // branch.charge for branch in mechanism.branches] == [8, 4, 2, 1]
    assert [len(branch.corrections) for branch in mechanism.branches] == [1, 1, 1, 13]
    assert mechanism.branches[0].corrections == (math.ceil(9 / mechanism.branches[0].rate),)


def branch(**change):
    return (replace(plain().branches[0], **change),)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: replace(plain(), threshold_rate=Fraction(1, 3)), "threshold_units / sensitivity"),
        (lambda: replace(plain(), monotonic=False), "its rate must be"),
        (lambda: replace(plain(), sensitivity=2), "threshold_units / sensitivity"),
        (lambda: replace(plain(), epsilon_units=10), "must pay for"),
        (lambda: replace(plain(), branches=()), "branches"),
        (lambda: replace(plain(), branches=branch(corrections=())), "corrections"),
        (lambda: replace(plain(), branches=branch(corrections=(2**48,))), "corrections"),
    ],
)
def test_a_mechanism_whose_rates_and_charges_disagree_cannot_be_built(call, reason):
    with pytest.raises(MisuseError, match=reason):
        call()


def test_adaptive_takes_a_share_of_the_threshold_and_no_split():
    with pytest.raises(TypeError, match="split"):
        adaptive(**USUAL, split=Fraction(3))


def test_monitors_refuse_gumbel_noise_with_the_reason():
    with pytest.raises(MisuseError, match="a baseline, in the library only"):
        Noise.parse("gumbel")
    with pytest.raises(MisuseError, match="no such family"):
        Noise.parse("cauchy")
    assert Noise.parse("Laplace") is Noise.LAPLACE


def test_the_gap_is_answer_plus_noise_less_threshold_correction_and_threshold_noise():
    mechanism = adaptive(epsilon=ONE, cutoff=5, monotonic=True, correction=Explicit((9, 4)), margin=2)
    tests, gaps = mechanism.reached(
        np.array([100, 0, 50, 50, 35]),
        np.array([10, 15, 20, 30, 30]),
        np.array([1, 2, 2, 3, 0]),
        10**9,
        np.array([0, 0, 1, 5, 2]),
        reaching(noise_of([5, 0, 6, 7, 0], [0, 0, 0, 0, 0])),
    )
    assert tests.tolist() == [0, 2, 3, 4]
    assert gaps.tolist() == [
        [100 + 5 - 10 - 11 - 1, 50 + 6 - 20 - 6 - 2, 50 + 7 - 30 - 6 - 3, -1],
        [100 - 10 - 9 - 1, 50 - 20 - 4 - 2, 50 - 30 - 4 - 3, 35 - 30 - 4],
    ]


def test_no_answer_reaches_a_branch_that_its_run_cannot_pay_even_with_saturated_noise():
    mechanism = adaptive(epsilon=ONE, cutoff=5, monotonic=True, correction=Uncorrected(), margin=2)
    top, middle = mechanism.branches
    left = np.array([middle.charge_units, middle.charge_units - 1, top.charge_units - 1])
    noise = reaching(noise_of(*[[NOISE_LIMIT] * 3] * 2))
    tests, gaps = mechanism.reached(np.full(3, 2**47 - 1), 0, 0, left, 0, noise)
    assert tests.tolist() == [0, 1]
    assert (gaps >= 0).tolist() == [[True, True], [True, False]]


def test_saturated_noise_leaves_no_trace_of_the_answer_and_never_wraps_around():
    mechanism = plain()
    far = 2**47 - 1
    for rho in (-THRESHOLD_NOISE_LIMIT, THRESHOLD_NOISE_LIMIT):
        values, thresholds = np.array([far, -far]), np.array([-far, far])
        given = values, thresholds, rho, 10**9, 0
        tests, gaps = mechanism.reached(*given, reaching(noise_of([NOISE_LIMIT] * 2)))
        assert (tests.tolist(), gaps.tolist()) == ([0, 1], [[GAP_LIMIT] * 2])
        tests, _ = mechanism.reached(*given, reaching(noise_of([-NOISE_LIMIT] * 2)))
        assert not len(tests)


def test_a_shortened_mechanism_keeps_its_noise_and_fits():
    mechanism = adaptive(epsilon=ONE, cutoff=5, monotonic=True, correction=Uncorrected())
    top, middle = mechanism.branches
    for units in range(mechanism.threshold_units, 10**9 + 2, 10**6 + 7):
        short = mechanism.shortened(units)
        if units < mechanism.threshold_units + top.charge_units:
            assert short is None
            continue
        assert short.branches == mechanism.branches
        assert mechanism.threshold_charge + top.charge <= short.epsilon <= min(loss_of(units), ONE)
        assert (short.epsilon - short.threshold_charge) % top.charge == 0
        assert min(loss_of(units), ONE) - short.epsilon < top.charge
    only_top = mechanism.shortened(mechanism.threshold_units + middle.charge_units - 1)
    assert only_top.epsilon == mechanism.threshold_charge + top.charge


@pytest.mark.parametrize("damage", [b"", b"\x02", b"\x01" + bytes(56), b"\x02" + bytes(40) + b"\xff" * 16])
def test_damaged_bytes_are_never_taken_for_a_run(damage):
    with pytest.raises(UnreadableState):
        Run.from_bytes(damage)


def test_a_run_does_not_show_its_secrets():
    shown = repr(Run(threshold_noise=123456, salt=(777777, 888888), mechanism=bytes(16), left_units=5))
    assert shown == "Run(left_units=5, tops=0)"
