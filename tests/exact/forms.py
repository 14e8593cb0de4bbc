"""Every public mechanism, in every form that it takes: the subjects of the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from stream_svt.mechanisms import (
    Explicit,
    Noise,
    SparseVector,
    above_threshold,
    adaptive,
    ladder,
    sparse_vector,
)
from stream_svt.mechanisms.composition import Composition
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.mechanisms.exponential_mechanism import ExponentialMechanism, NoisyMaxGumbel, gap_probability
from stream_svt.mechanisms.gaussian import gaussian
from stream_svt.mechanisms.hybrids import HybridEstimates, HybridIdentity, hybrid_estimates
from stream_svt.mechanisms.quantile import (
    Adjacency,
    UnboundedQuantile,
    fully_unbounded_quantile,
    multiple_quantiles,
    unbounded_quantile,
)
from stream_svt.mechanisms.sparse import numeric_sparse, sparse
from stream_svt.mechanisms.top_k import LastGap, TopK
from tests.exact.contract import (
    BitsForm,
    Form,
    LawForm,
    QuantileForm,
    Refusal,
    RenewedForm,
    SelectionForm,
    SeveralQuantilesForm,
    StreamForm,
)

EPSILON = 1_234_567_891


def promised(monotonic: bool) -> tuple[Neighbours, ...]:
    """Neighbours for which a charge is promised; general ones contain those of one direction."""
    one_way = (Neighbours.UP, Neighbours.DOWN)
    return one_way if monotonic else (Neighbours.MIXED, *one_way)


def sparse_vectors() -> Iterator[Form]:
    """Plain, adaptive and ladder, with retries under a falling correction, one run or several."""
    for build, threshold_noise, query_noise, monotonic in product(
        (sparse_vector, adaptive, ladder), Noise, Noise, (True, False)
    ):
        required = {
            "epsilon": EPSILON,
            "cutoff": 3,
            "monotonic": monotonic,
            "correction": Explicit((3, 1, -1)),
        }
        make = partial(build, **required)
        mechanism: SparseVector = make(
            sensitivity=1 if build is sparse_vector else 2,
            threshold_noise=threshold_noise,
            query_noise=query_noise,
        )
        if build is not sparse_vector:  # bring the upper branches' bars into the range of the small noise
            mechanism = replace(
                mechanism,
                branches=tuple(
                    replace(branch, corrections=(4, 3, 2) if number == 0 else (3, 1))
                    for number, branch in enumerate(mechanism.branches)
                ),
            )
        one_top = mechanism.threshold_charge + max(branch.charge for branch in mechanism.branches)
        name = f"{build.__name__}-{threshold_noise}-{query_noise}-{'monotonic' if monotonic else 'general'}"
        for resample in (False, True):
            yield StreamForm(
                name=f"{name}-{'resample' if resample else 'shared'}",
                mechanism=replace(mechanism, epsilon=one_top) if resample else mechanism,
                built_by=build,
                tests=13,
                neighbours=promised(monotonic),
                resample=resample,
                refusals=_sparse_vector_refusals(make, mechanism),
            )


def _sparse_vector_refusals(
    make: Callable[..., SparseVector], mechanism: SparseVector
) -> tuple[Refusal, ...]:
    return (
        Refusal("an epsilon that pays nothing", partial(make, epsilon=1), "epsilon"),
        Refusal("noise wider than the grid", partial(make, sensitivity=2**47), r"wider|2\^48"),
        Refusal("Gaussian noise", partial(Noise.parse, "gaussian"), "2.3 times"),
        Refusal("Gaussian noise by its name", partial(make, query_noise="gaussian"), "2.3 times"),
        Refusal("a word for whether", partial(make, monotonic="no"), "True or False"),
        Refusal(
            "a threshold that costs more than its noise",
            partial(replace, mechanism, threshold_rate=mechanism.threshold_rate + 1),
            "its charge",
        ),
        Refusal(
            "the monotonic rate on general queries",
            partial(replace, mechanism, monotonic=not mechanism.monotonic),
            "monotonic",
        ),
        Refusal(
            "a run that pays its threshold only",
            partial(mechanism.open, 0, (0, 0), epsilon=mechanism.threshold_charge),
            "at least one top",
        ),
    )


def selections() -> Iterator[Form]:
    """Top-k with each last gap and both hybrids, with k = 1 and 2."""
    for noise, monotonic, count in product(Noise, (True, False), (1, 2)):
        kind = f"{noise}-{'monotonic' if monotonic else 'general'}-{count}"
        common = {"epsilon": EPSILON, "count": count, "monotonic": monotonic, "sensitivity": 2}
        for last_gap in LastGap:
            yield _selection(
                f"top_k-{kind}-{last_gap}", partial(TopK, **common, noise=noise, last_gap=last_gap)
            )
        for released in (False, True):
            yield _selection(
                f"hybrid_identity-{kind}{'-threshold_gap' if released else ''}",
                partial(HybridIdentity, **common, noise=noise, threshold=1, threshold_gap=released),
            )
        for threshold_noise in Noise:
            yield _selection(
                f"hybrid_estimates-{threshold_noise}-{kind}",
                partial(
                    hybrid_estimates,
                    **common,
                    threshold=1,
                    threshold_noise=threshold_noise,
                    query_noise=noise,
                ),
                steps=2,
            )


def _selection(name: str, make: Callable[..., Any], *, steps: int = 1) -> SelectionForm:
    mechanism = make()
    few = np.array([], dtype=np.int64)
    refusals = [
        Refusal("no answer to report", partial(make, count=0), "count"),
        Refusal("a word for whether", partial(make, monotonic="no"), "True or False"),
        Refusal("a sensitivity of nothing", partial(make, sensitivity=0), "sensitivity"),
        Refusal("an epsilon of nothing", partial(make, epsilon=0), "epsilon"),
        Refusal("noise wider than the grid", partial(make, sensitivity=2**60), "wider"),
    ]
    if isinstance(mechanism, TopK):
        refusals += [
            Refusal("a noise that nothing reads", partial(mechanism.open, 1, (0, 0)), "no threshold"),
            Refusal(
                "the largest of fewer answers",
                partial(mechanism.step, mechanism.open(0, (0, 0)), few, lambda _: few),
                "lower the count",
            ),
        ]
    else:
        refusals += [
            Refusal("a threshold beyond the grid", partial(make, threshold=2**50), r"2\^47"),
            Refusal("a noise that nobody draws", partial(mechanism.open, 2**61, (0, 0)), r"2\^60"),
        ]
    if isinstance(mechanism, HybridEstimates):
        refusals += [
            Refusal("a split of nothing", partial(make, split=Fraction(0)), "split"),
            Refusal(
                "charges that do not add up",
                partial(replace, mechanism, epsilon=EPSILON + 1),
                "threshold's charge",
            ),
        ]
    answers = 4
    return SelectionForm(
        name=name,
        mechanism=mechanism,
        built_by=make.func if isinstance(make, partial) else make,
        tests=answers * steps,
        answers=answers,
        neighbours=promised(mechanism.monotonic),
        refusals=tuple(refusals),
        least_tests=3,
        side=4 if steps == 1 else 3,
    )


def lecture_forms() -> Iterator[Form]:
    """AboveThreshold, Sparse and NumericSparse."""
    pairs = [*((noise, noise) for noise in Noise), (Noise.LAPLACE, Noise.EXPONENTIAL)]
    for (threshold_noise, query_noise), monotonic in product(pairs, (True, False)):
        kind = f"{threshold_noise}-{query_noise}-{'monotonic' if monotonic else 'general'}"
        common = {
            "epsilon": EPSILON,
            "monotonic": monotonic,
            "sensitivity": 2,
            "threshold_noise": threshold_noise,
            "query_noise": query_noise,
        }
        make: Callable[..., Any] = partial(above_threshold, **common)
        mechanism = make()
        yield StreamForm(
            name=f"above_threshold-{kind}",
            mechanism=mechanism,
            built_by=above_threshold,
            tests=13,
            neighbours=promised(monotonic),
            refusals=_sparse_vector_refusals(make, mechanism),
        )
        for build in (sparse, numeric_sparse):
            make = partial(build, **common, cutoff=3)
            mechanism = make()
            refusals = [
                Refusal("no top at all", partial(make, cutoff=0), "cutoff"),
                Refusal("an epsilon that pays nothing", partial(make, epsilon=1), "epsilon"),
                Refusal("a delta without use", partial(make, delta=1e-6), "pure composition"),
                Refusal("no delta where one is spent", partial(make, composition=Composition.ZCDP), "delta"),
                Refusal(
                    "a delta that is none",
                    partial(make, composition=Composition.ADVANCED, delta=1.5),
                    "delta",
                ),
                Refusal(
                    "a second draw of a threshold in use",
                    partial(mechanism.resample, mechanism.open(0, (0, 0)), 1, (0, 0)),
                    "after a top",
                ),
            ]
            if build is numeric_sparse:
                refusals += [
                    Refusal(
                        "numbers with noise that only rises",
                        partial(make, answer_noise=other),
                        "moved up only",
                    )
                    for other in (Noise.EXPONENTIAL, Noise.GUMBEL)
                ]
                refusals.append(
                    Refusal("numbers for nothing", partial(make, answer_share=Fraction(0)), "share")
                )
            yield RenewedForm(
                name=f"{build.__name__}-{kind}",
                mechanism=mechanism,
                built_by=build,
                tests=13,
                neighbours=promised(monotonic),
                refusals=tuple(refusals),
            )


def exponential_mechanisms() -> Iterator[Form]:
    """The exponential mechanism, by its law and by noisy max."""
    for monotonic in (True, False):
        kind = "monotonic" if monotonic else "general"
        common = {"epsilon": EPSILON, "monotonic": monotonic, "sensitivity": 2}
        for build in (ExponentialMechanism, NoisyMaxGumbel):
            make: Callable[..., Any] = partial(build, **common)
            mechanism = make()
            nothing = np.array([], dtype=np.int64)
            refusals = (
                Refusal("an epsilon of nothing", partial(make, epsilon=0), "epsilon"),
                Refusal("a sensitivity of nothing", partial(make, sensitivity=0), "sensitivity"),
                Refusal("noise wider than the grid", partial(make, sensitivity=2**60), "wider"),
                Refusal("a noise that nothing reads", partial(mechanism.open, 1, (0, 0)), "no threshold"),
                Refusal(
                    "a choice of nothing",
                    partial(mechanism.step, mechanism.open(0, (0, 0)), nothing, lambda *_: np.array([])),
                    "at least two|lower the count",
                ),
            )
            if build is ExponentialMechanism:
                yield LawForm(
                    name=f"exponential_mechanism-{kind}",
                    mechanism=mechanism,
                    built_by=build,
                    tests=3,
                    neighbours=promised(monotonic),
                    refusals=refusals,
                    probability=gap_probability,
                )
            else:
                yield SelectionForm(
                    name=f"noisy_max_gumbel-{kind}",
                    mechanism=make(refinement=2),
                    built_by=build,
                    tests=4,
                    neighbours=promised(monotonic),
                    refusals=refusals,
                    least_tests=3,
                )


def quantiles() -> Iterator[Form]:
    """Quantiles under both kinds of neighbours, below, at and above the middle."""
    for noise, adjacency, level in product(
        Noise, Adjacency, (Fraction(1, 3), Fraction(1, 2), Fraction(4, 5))
    ):
        make = partial(
            unbounded_quantile,
            epsilon=EPSILON,
            level=level,
            adjacency=adjacency,
            base=Fraction(2),
            threshold_noise=noise,
            query_noise=noise,
        )
        mechanism = make()
        yield QuantileForm(
            name=f"unbounded_quantile-{noise}-{adjacency}-{level.numerator}_{level.denominator}",
            mechanism=mechanism,
            built_by=unbounded_quantile,
            tests=6,
            neighbours=(Neighbours.UP, Neighbours.DOWN),
            refusals=(
                Refusal("an epsilon that pays nothing", partial(make, epsilon=1), "epsilon"),
                Refusal("no level", partial(make, level=Fraction(0)), "level"),
                Refusal("more than all", partial(make, level=Fraction(1)), "level"),
                Refusal("a level that is rounded", partial(make, level=0.5), "Fraction"),
                Refusal("neighbours of no kind", partial(make, adjacency="replace"), "'swap' or"),
                Refusal("candidates that stay", partial(make, base=Fraction(1)), "base"),
                Refusal("a split of nothing", partial(make, split=Fraction(0)), "split"),
            ),
        )


@dataclass(frozen=True)
class Asked:
    """Runs that a constructor returns side by side, and the epsilon that they were asked to share."""

    runs: tuple[UnboundedQuantile, ...]
    epsilon: int


def several_quantiles() -> Iterator[Form]:
    """Both runs of a quantile without any bound, and the runs of several levels."""
    neighbours = (Neighbours.UP, Neighbours.DOWN)
    for noise, adjacency in product(Noise, Adjacency):
        common = {"epsilon": EPSILON, "adjacency": adjacency, "base": Fraction(2), "noise": noise}
        both = partial(fully_unbounded_quantile, **common, level=Fraction(1, 3))
        several = partial(multiple_quantiles, **common, levels=(Fraction(1, 4), Fraction(2, 3)))
        unbounded = both()
        for name, make, mechanism, runs, signs, level in (
            (
                "fully_unbounded_quantile",
                both,
                unbounded,
                (unbounded.upper, unbounded.lower),
                (1, -1),
                "level",
            ),
            ("multiple_quantiles", several, Asked(several(), EPSILON), several(), (1, 1), "levels"),
        ):
            nothing = Fraction(0) if level == "level" else ()
            yield SeveralQuantilesForm(
                name=f"{name}-{noise}-{adjacency}",
                mechanism=mechanism,
                built_by=make.func,
                tests=6,
                neighbours=neighbours,
                parts=tuple(
                    QuantileForm(name="", mechanism=run, built_by=make.func, tests=6, neighbours=neighbours)
                    for run in runs
                ),
                signs=signs,
                refusals=(
                    Refusal("an epsilon that pays nothing", partial(make, epsilon=1), "epsilon"),
                    Refusal("no level", partial(make, **{level: nothing}), "level"),
                    Refusal("candidates that stay", partial(make, base=Fraction(1)), "base"),
                ),
            )


def baselines() -> Iterator[Form]:
    """SVT-Gau: no gap, no alignment, an (epsilon, delta)."""
    for monotonic, cutoff in product((True, False), (1, 2)):
        make = partial(
            gaussian, epsilon=2.0, delta=0.02, cutoff=cutoff, monotonic=monotonic, sensitivity=2, tests=4
        )
        yield BitsForm(
            name=f"gaussian-{'monotonic' if monotonic else 'general'}-{cutoff}",
            mechanism=make(),
            built_by=gaussian,
            tests=4,
            neighbours=promised(monotonic),
            distance=2,
            refusals=(
                Refusal("no top at all", partial(make, cutoff=0), "cutoff"),
                Refusal("a sensitivity of nothing", partial(make, sensitivity=0), "sensitivity"),
                Refusal("an epsilon of nothing", partial(make, epsilon=0.0), "epsilon"),
                Refusal("pure privacy", partial(make, delta=0.0), "delta"),
                Refusal("tests without a number", partial(make, tests=None), "number of tests"),
            ),
        )


def forms() -> dict[str, Form]:
    """All forms by name."""
    found = [
        *sparse_vectors(),
        *lecture_forms(),
        *selections(),
        *exponential_mechanisms(),
        *quantiles(),
        *several_quantiles(),
        *baselines(),
    ]
    return {form.name: form for form in found}
