"""The privacy loss of small instances, computed exactly: never above the charge, and attained.

Each test records its largest log-ratio as a property, which `--junit-xml` writes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product

import pytest

from stream_svt.mechanisms import Branch, Noise, SparseVector, above_threshold
from stream_svt.mechanisms.baselines.sparse import Sparse
from stream_svt.mechanisms.noise import head, tail
from stream_svt.mechanisms.numbers import loss_of
from stream_svt.mechanisms.selection.hybrids import HybridEstimates, HybridIdentity
from stream_svt.mechanisms.selection.quantile import Adjacency, UnboundedQuantile
from stream_svt.mechanisms.selection.top_k import LastGap, TopK
from tests.exact.box import UNIT, enumerate_box, largest_loss
from tests.exact.contract import QuantileForm, RenewedForm, SelectionForm, StreamForm
from tests.exact.enumeration import (
    Condition,
    Hidden,
    Kind,
    Model,
    Output,
    Reacting,
    Rung,
    exceeds,
    log_ratio,
    neighbours,
    reacting_neighbours,
    shared,
    transcripts,
    worst,
)
from tests.support.noise import pmf

EXP, LAP = Noise.EXPONENTIAL, Noise.LAPLACE
PAIRS = [(EXP, EXP), (EXP, LAP), (LAP, EXP), (LAP, LAP)]


KINDS = {"monotonic": True, "general": False}
LEVELS = (Fraction(1, 3), Fraction(1, 2), Fraction(4, 5))
SOME_VALUES = (1, -1, 0, 2, -2, 0)


def two_branches(noises, monotonic, *, retries=0, rate=1):
    """Adaptive sparse vector: charges U and 2 U; after a middle top the run can pay only for the top branch."""
    reach = rate if monotonic else 2 * rate
    return Model(
        queries=2,
        rungs=(
            Rung(charge=reach, rate=rate, corrections=(2, 1)),
            Rung(charge=2 * reach, rate=2 * rate, corrections=(1, 0)),
        ),
        tops_charge=3 * reach,
        threshold_charge=rate,
        threshold_rate=rate,
        noises=noises,
        retries=retries,
    )


def three_rungs(noises, monotonic):
    reach = 1 if monotonic else 2
    rungs = tuple(
        Rung(charge=rate * reach, rate=rate, corrections=(bar,)) for rate, bar in ((1, 2), (2, 1), (4, 0))
    )
    model = two_branches(noises, monotonic)
    return replace(model, rungs=rungs, tops_charge=4 * reach, largest_gap=0)


def one_branch(noises, *, charge, threshold, queries, rate=1):
    """Sparse vector with charges independent of the rates."""
    return Model(
        queries=queries,
        rungs=(Rung(charge=charge, rate=rate),),
        tops_charge=charge,
        threshold_charge=threshold,
        threshold_rate=rate,
        noises=noises,
    )


def profiles(tests, records):
    """Numbers of records below each of `tests` rising candidates."""
    return [counts for counts in product(range(records + 1), repeat=tests) if list(counts) == sorted(counts)]


def both_ways(pairs):
    return [ordered for first, second in pairs for ordered in ((first, second), (second, first))]


def a_record_more(level, tests=3):
    """Answers of a quantile before and after a record is added."""
    A, B = level.numerator, level.denominator
    for records, x in product((1, 2), range(tests + 1)):
        for counts in profiles(tests, records):
            yield (
                tuple(B * c - A * records for c in counts),
                tuple(B * (c + (i >= x)) - A * (records + 1) for i, c in enumerate(counts)),
            )


def a_record_replaced(tests=3):
    for low, high in product(range(tests + 1), repeat=2):
        for counts in profiles(tests, 1):
            first = tuple(c - 1 for c in counts)
            yield first, tuple(c + (low <= i < high) for i, c in enumerate(first))


def sparse_vectors():
    """Names, models, pairs of neighbours, and whether they are tight or "slow"."""
    for noises in PAIRS:
        for kind, monotonic in KINDS.items():
            name = f"{'-'.join(noises)}-{kind}"
            near = partial(neighbours, monotonic=monotonic)
            for distance in (1, 2):
                model = shared(noises, monotonic, distance=distance)
                yield f"shared-{name}-{distance}", model, near(2, distance), True
            model = shared(noises, monotonic, queries=3, cutoff=3)
            yield f"three_queries_and_tops-{name}", model, near(3, 1), "slow"
            yield f"adaptive-{name}", two_branches(noises, monotonic), near(2, 1), True
            yield f"ladder-{name}", three_rungs(noises, monotonic), near(2, 1, values=(0, 1)), False
            model = shared(noises, monotonic, cutoff=1, queries=3)
            yield f"above_threshold-{name}", model, near(3, 1, values=(0, 1)), True
        name = "-".join(noises)
        for resample in (False, True):
            model = shared(noises, True, retries=1, corrections=(1, 0), resample=resample)
            near = neighbours(4, 1, True, values=(-1, 0))
            yield f"retries-{name}-{'resample' if resample else 'shared'}", model, near, True
        model = two_branches(noises, True, retries=1)
        yield f"adaptive_with_retries-{name}", model, neighbours(4, 1, True, values=(0,)), "slow"
        model = shared(noises, True, cutoff=1, queries=3)
        yield f"record_replaced-{name}", model, both_ways(a_record_replaced()), True


def instances():
    """Names, outputs, pairs of neighbours, a lower bound of the largest log-ratio / charge, whether slow."""
    for name, model, pairs, tight in sparse_vectors():
        # With exponential query noise some output has a log-ratio equal to its charge.
        reached = 1 if tight is True and model.noises[1] is EXP else 0.94
        yield name, transcripts(model), pairs, reached, tight == "slow"
    for noises, level in product(PAIRS, LEVELS):
        # Durfee's Lemma B.1: max((A/B) e1 + e2, (1 - A/B) e1), with rates e1/B and e2/B of one unit
        A, B = level.numerator, level.denominator
        threshold = max(A, B - A)
        model = one_branch(noises, charge=max(A + B, B - A) - threshold, threshold=threshold, queries=3)
        name = f"record_added_or_removed-{'-'.join(noises)}-{A}_{B}"
        yield name, transcripts(model), both_ways(a_record_more(level)), 0.4, False


@pytest.mark.parametrize(
    ("listed", "pairs", "least"),
    [
        pytest.param(listed, pairs, least, id=name, marks=[pytest.mark.slow] if slow else [])
        for name, listed, pairs, least, slow in instances()
    ],
)
def test_no_output_of_a_small_instance_loses_more_than_its_charge(record_property, listed, pairs, least):
    """The largest loss also exceeds the share `least` of the charge; for 1 it equals the charge exactly."""
    listed, pairs = list(listed), list(pairs)
    assert sum(output.probability(SOME_VALUES[: len(pairs[0][0])]) for output in listed) == 1
    largest = worst(listed, pairs)
    record_property("largest loss / charge", largest.largest)
    assert largest.violations == 0
    assert largest.attained if least == 1 else largest.largest > least


def moved(tests, down, up):
    """Values that a unit moves down or up: shares of counts, or counts less what is usual."""
    shifts = [shift for shift in product(range(-down, up + 1), repeat=tests) if any(shift)]
    for first, shift in product(product((-1, 0, 1), repeat=tests), shifts):
        second = tuple(a + b for a, b in zip(first, shift, strict=True))
        yield from ((first, second), (second, first))


@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
@pytest.mark.parametrize(("down", "up"), [(0, 1), (1, 1), (2, 1)])
def test_values_that_move_down_or_up_are_monotonic_ones_of_the_sum_of_both(noises, down, up):
    pairs = list(moved(2, down, up))
    assert worst(list(transcripts(shared(noises, True, distance=down + up))), pairs).violations == 0
    if down and noises[1] is EXP:
        smaller = shared(noises, True, distance=down + up - 1)
        assert worst(list(transcripts(smaller)), pairs).violations > 0


def reacted():
    """Names, models and pairs of environments that react to what was released."""
    for noises, (kind, monotonic) in product(PAIRS, KINDS.items()):
        name, near = f"{'-'.join(noises)}-{kind}", partial(reacting_neighbours, monotonic=monotonic)
        yield f"shared-{name}", shared(noises, monotonic, queries=3), near(3, 1)
        yield f"adaptive-{name}", two_branches(noises, monotonic), near(2, 1)
    for noises, resample in product(PAIRS, (False, True)):
        model = shared(noises, True, retries=1, corrections=(1, 0), resample=resample)
        name = f"retries-{'-'.join(noises)}-{'resample' if resample else 'shared'}"
        yield name, model, reacting_neighbours(4, 1, monotonic=True, count=40)


@pytest.mark.parametrize(
    ("model", "pairs"), [pytest.param(model, pairs, id=name) for name, model, pairs in reacted()]
)
def test_no_output_loses_more_than_its_charge_where_the_stream_reacts(record_property, model, pairs):
    listed, pairs = list(transcripts(model)), list(pairs)
    assert sum(output.probability(pairs[0][0]) for output in listed) == 1
    largest = worst(listed, pairs)
    record_property("largest loss / charge", largest.largest)
    assert largest.violations == 0
    assert largest.largest > 0.8


def test_an_environment_that_acts_on_a_true_value_exceeds_the_charge():
    """It raises the second answer where the first one, which nobody released, is high: neighbours move by 3."""
    model = shared((EXP, EXP), True)
    first, second = (Reacting(((value,) * 3, (3 * value,) * 3)) for value in (0, 1))
    assert worst(list(transcripts(model)), [(first, second), (second, first)]).violations > 0


@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_a_deep_stream_of_bottoms_costs_only_the_threshold(noises):
    """Sixty-four bottoms: with few, a mechanism with almost no threshold noise would pass too."""
    tests = [Condition(Kind.BELOW, noises[1], 1, 0, i) for i in range(64)]
    tests.append(Condition(Kind.EQUAL, noises[1], 1, 0, 64))
    below = Output((), 2, (Hidden(tuple(tests), noises[0], 1),))
    p, q = (below.probability((value,) * 65) for value in (-1, 0))
    assert 0 < q < p
    assert not exceeds(p, q, below.charge)


@pytest.mark.parametrize("monotonic", [True, False], ids=["monotonic", "general"])
def test_above_threshold_with_gumbel_noise(monotonic):
    """Its law is not rational, so in floats, with e0 = 1 and e1 = 1/2, which the proof of Durfee does not cover."""
    e0, e1 = 1.0, 0.5
    rate = e1 if monotonic else e1 / 2
    law = {rho: pmf(Noise.GUMBEL, e0, rho) for rho in range(-6, 45)}
    exactly, below, at_least = (lru_cache(partial(of, Noise.GUMBEL, rate)) for of in (pmf, head, tail))

    def probability(values, gap):
        """Bottoms on all answers but the last, which is a top with this gap, or with any gap if None."""
        total = 0.0
        for rho, weight in law.items():
            bottoms = math.prod(below(rho - value - 1) for value in values[:-1])
            top = (at_least if gap is None else exactly)(rho - values[-1] + (gap or 0))
            total += weight * bottoms * top
        return total

    gaps = (0, 1, 2, 5, 10, None)
    pairs = list(neighbours(3, 1, monotonic, values=(-2, 0, 2)))
    losses = [math.log(probability(a, gap) / probability(b, gap)) for a, b in pairs for gap in gaps]
    assert 0.6 * (e0 + e1) < max(losses) <= e0 + e1 + 1e-9


def agree(form, values, size, outputs, at, **box_options):
    """The package, over a box of noise, has the outputs and charges of the model.

    Each probability lies between the sum over the box and this sum plus the missing probability.
    """
    outputs = list(outputs)
    box = enumerate_box(form, values, size, records, **box_options)
    exact = {output.outcome: output.probability(at) for output in outputs}
    charges = {output.outcome: output.charge for output in outputs}
    assert set(box.probabilities) <= set(exact)
    for outcome, p in exact.items():
        assert box.probabilities.get(outcome, 0) <= p <= box.probabilities.get(outcome, 0) + box.missing
    assert box.missing < Fraction(1, 3)
    assert {outcome: charge // UNIT for outcome, charge in box.charges.items()} == {
        outcome: charges[outcome] for outcome in box.charges
    }


def capped(gap, largest=1):
    return None if gap is None else min(gap, largest + 1)


def records(played):
    """Each test in the notation of the models: query, attempt, branch and gap."""
    return tuple(
        (query, attempt, *((top[0], capped(top[1])) if top else (-1, 0)))
        for _, query, attempt, _, *top in played.released
    )


@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_the_package_decides_as_the_enumerated_sparse_vector_does(noises):
    model = two_branches(noises, True, rate=2)
    mechanism = SparseVector(
        epsilon_units=8 * UNIT,
        sensitivity=1,
        monotonic=True,
        threshold_noise=noises[0],
        query_noise=noises[1],
        threshold_units=2 * UNIT,
        threshold_rate=Fraction(2 * UNIT, 10**9),
        branches=tuple(
            Branch(
                name="",
                charge_units=rung.charge * UNIT,
                rate=Fraction(rung.charge * UNIT, 10**9),
                corrections=rung.corrections,
            )
            for rung in model.rungs
        ),
    )
    form = StreamForm(mechanism=mechanism, tests=2, queries=2, attempts=1)

    # The form's schedule raises the second query's threshold by one, and its answer here too.
    agree(form, (1, 1), 12 if noises == (LAP, LAP) else 14, transcripts(model), at=(1, 0))


def boxed_forms():
    """Mechanisms at rates of 3 u, with the number of tests and the size of the box."""
    unit = 3 * UNIT
    for (kind, monotonic), noise, count in product(KINDS.items(), (EXP, LAP), (1, 2)):
        reach = 1 if monotonic else 2
        common, top = {"monotonic": monotonic, "k": count}, {"noise": noise}
        for last_gap in LastGap:
            moved = count + (last_gap is LastGap.PLAIN)
            mechanism = TopK(epsilon=loss_of(moved * reach * unit), last_gap=last_gap, **common, **top)
            yield f"top_k-{noise}-{kind}-{count}-{last_gap}", mechanism, 3, 15
        for released in (False, True):
            hybrid = {"epsilon": loss_of(count * reach * unit), "threshold": 0, "threshold_gap": released}
            mechanism = HybridIdentity(**hybrid, **common, **top)
            yield f"identity-{noise}-{kind}-{count}-{released}", mechanism, 2, 18
        for other in (EXP, LAP):
            hybrid = {
                "epsilon": loss_of((1 + count * reach) * unit),
                "threshold": 0,
                "split": Fraction(count * reach),
            }
            mechanism = HybridEstimates(**hybrid, **common, query_noise=noise, threshold_noise=other)
            yield f"estimates-{other}-{noise}-{kind}-{count}", mechanism, 2, 18
    for (kind, monotonic), noise in product(KINDS.items(), (EXP, LAP)):
        reach = 1 if monotonic else 2
        families = {"threshold_noise": noise, "query_noise": noise, "split": Fraction(reach)}
        per_top = above_threshold(epsilon=loss_of((1 + reach) * unit), monotonic=monotonic, **families)
        mechanism = Sparse(per_top=per_top, cutoff=1, answer_units=unit)
        yield f"numeric_sparse-{noise}-{kind}", mechanism, 2, 12


@pytest.mark.parametrize(
    ("mechanism", "tests", "size"), [pytest.param(*rest, id=name) for name, *rest in boxed_forms()]
)
def test_no_output_loses_more_than_its_charge_over_a_box_of_noise(record_property, mechanism, tests, size):
    """The package's own rankings and released answers, with exact weights."""
    form = {"mechanism": mechanism, "tests": tests, "queries": tests, "attempts": 1}
    of = RenewedForm(**form) if isinstance(mechanism, Sparse) else SelectionForm(**form, at_once=tests)
    largest = largest_loss(of, neighbours(tests, 1, mechanism.monotonic, values=(0,)), size)
    record_property("largest loss / charge", largest)
    assert 0.32 < largest <= 1


@pytest.mark.parametrize("level", [Fraction(1, 3), Fraction(4, 5)], ids=str)
@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("noise", [EXP, LAP])
def test_the_package_finds_quantiles_as_the_enumerated_model_does(noise, adjacency, level):
    A, B, rate = level.numerator, level.denominator, 2
    swap = adjacency is Adjacency.SWAP
    mechanism = UnboundedQuantile(
        epsilon=loss_of((2 if swap else max(A + B, B - A)) * rate * UNIT),
        level=level,
        adjacency=adjacency,
        base=Fraction(2),
        threshold_noise=noise,
        query_noise=noise,
    )
    data = (0, 1, 5)  # one below the second candidate 1, none below the first, 0
    values = (-math.ceil(level * 3), 1 - math.ceil(level * 3)) if swap else (-3 * A, B - 3 * A)
    threshold = rate if swap else rate * max(A, B - A)
    charge = (2 * rate if swap else rate * max(A + B, B - A)) - threshold
    model = one_branch((noise, noise), rate=rate, charge=charge, threshold=threshold, queries=2)

    form, size = QuantileForm(mechanism=mechanism, tests=2), 12 if noise is EXP else 10
    agree(form, data, size, transcripts(model), at=values, tests=2)


@pytest.mark.parametrize("query_rate", [1, 3])
@pytest.mark.parametrize("level", [Fraction(1, 3), Fraction(4, 5)], ids=str)
def test_the_zcdp_price_of_a_quantile_is_that_of_the_range_of_its_log_ratio(level, query_rate):
    """Over all outputs and positions of the record; the whole range is attained, so a smaller price would be wrong."""
    A, B = level.numerator, level.denominator
    model = replace(
        one_branch((EXP, EXP), charge=B * query_rate, threshold=B, queries=2),
        rungs=(Rung(charge=B * query_rate, rate=query_rate),),
        largest_gap=B,
    )
    ratios = [
        log_ratio(output.probability((a + B * (index <= 0) - A, b + B * (index <= 1) - A)), p)
        for output, (a, b), index in product(
            transcripts(model), product(range(-2 * A, 2 * B), repeat=2), range(3)
        )
        if a <= b and (p := output.probability((a, b)))
    ]
    mechanism = UnboundedQuantile(
        epsilon=loss_of(max(A + B * query_rate, B - A) * UNIT),
        level=level,
        adjacency=Adjacency.ADD_REMOVE,
        split=Fraction(query_rate),
    )
    width = (max(ratios) - min(ratios)) * UNIT / 10**9
    assert float(mechanism.rho) == pytest.approx(width**2 / 8)


def test_an_output_above_its_charge_would_be_seen():
    """The comparison detects the same outputs with a charge of one unit less."""
    model = shared((EXP, EXP), True)
    cheaper = [replace(output, charge=output.charge - 1) for output in transcripts(model)]
    assert worst(cheaper, neighbours(2, 1, True)).violations > 0
