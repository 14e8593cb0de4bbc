"""Forms of every public mechanism, on which the contract is checked."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from itertools import chain, product
from typing import Any

import stream_svt.mechanisms
from stream_svt.mechanisms import (
    Adjacency,
    ClippedSum,
    Explicit,
    ExponentialMechanism,
    FullyUnboundedQuantile,
    HybridEstimates,
    HybridIdentity,
    LastGap,
    Noise,
    NoisyMaxGumbel,
    TopK,
    UnboundedQuantile,
    above_threshold,
    adaptive,
    gaussian,
    ladder,
    multiple_quantiles,
    numeric_sparse,
    sparse,
    sparse_vector,
)
from stream_svt.mechanisms.contract import Mechanism, Neighbours
from stream_svt.mechanisms.selection.top_k import Ranking
from tests.exact.contract import (
    BitsForm,
    Form,
    LawForm,
    QuantileForm,
    ReactingForm,
    RenewedForm,
    SelectionForm,
    StreamForm,
)

EPSILON = Fraction("1.234567891")
KINDS = {
    "monotonic": (Neighbours.UP, Neighbours.DOWN),
    "general": (Neighbours.MIXED, Neighbours.UP, Neighbours.DOWN),
}
"""Neighbours for which a charge holds; MIXED ones include those of one direction."""

PAIRS = [*((noise, noise) for noise in Noise), (Noise.LAPLACE, Noise.EXPONENTIAL)]
"""Families of threshold and query noise in forms that do not cover all pairs."""


ANSWERS: dict[str, Any] = {"epsilon": 1, "monotonic": True}
RUN = ANSWERS | {"cutoff": 3, "correction": Explicit((0,))}
QUANTILE = UnboundedQuantile(epsilon=1, level=0.5, adjacency="swap")
ARGUMENTS: dict[Any, dict[str, Any]] = {
    sparse_vector: RUN,
    adaptive: RUN,
    ladder: RUN,
    above_threshold: ANSWERS,
    sparse: ANSWERS | {"cutoff": 3},
    numeric_sparse: ANSWERS | {"cutoff": 3},
    gaussian: ANSWERS | {"delta": 1e-6, "cutoff": 3, "tests": 9},
    TopK: ANSWERS | {"k": 2},
    HybridIdentity: ANSWERS | {"k": 2, "threshold": 0},
    HybridEstimates: ANSWERS | {"k": 2, "threshold": 0},
    ExponentialMechanism: ANSWERS,
    NoisyMaxGumbel: ANSWERS,
    UnboundedQuantile: {"epsilon": 1, "level": 0.5, "adjacency": "swap"},
    FullyUnboundedQuantile: {"quantile": QUANTILE},
    multiple_quantiles: {"quantile": QUANTILE, "levels": [0.25, 0.5]},
    ClippedSum: {"quantile": QUANTILE, "charge": 1},
}
"""Right arguments of each constructor, which `test_wrong_arguments` replaces one by one."""


def of(kind: str) -> dict[str, object]:
    """Return the parameters of most mechanisms."""
    return {"epsilon": EPSILON, "monotonic": kind == "monotonic", "sensitivity": 2}


def sparse_vectors() -> Iterator[Form]:
    """Yield plain, adaptive and ladder, with retries under a falling correction, with one run or several.

    Each is played on answers that are given beforehand, and on answers that react to what was released.
    """
    several = [*product([adaptive], PAIRS[::2]), *product([ladder], PAIRS[1::2])]
    for (build, (threshold_noise, query_noise)), kind in product(
        chain(product([sparse_vector], product(Noise, Noise)), several), KINDS
    ):
        families = {"threshold_noise": threshold_noise, "query_noise": query_noise}
        mechanism = build(**of(kind), **families, cutoff=3, correction=Explicit((3, 1, -1)))
        if build is not sparse_vector:  # lower the upper branches' bars to the range of the noise
            tables = [(4, 3, 2), *[(3, 1)] * (len(mechanism.branches) - 1)]
            branches = zip(mechanism.branches, tables, strict=True)
            mechanism = replace(
                mechanism, branches=tuple(replace(branch, corrections=table) for branch, table in branches)
            )
        one_top = mechanism.threshold_units + max(branch.charge_units for branch in mechanism.branches)
        for resample, of_form in product((False, True), (StreamForm, ReactingForm)):
            words = (build.__name__, threshold_noise, query_noise, kind, "resample" if resample else "shared")
            yield of_form(
                name="-".join((*words, *["reacting"] * (of_form is ReactingForm))),
                mechanism=replace(mechanism, epsilon_units=one_top) if resample else mechanism,
                built_by=build,
                tests=13,
                neighbours=KINDS[kind],
                resample=resample,
            )


def lecture_forms() -> Iterator[Form]:
    """Yield AboveThreshold, Sparse and NumericSparse."""
    for (threshold_noise, query_noise), kind in product(PAIRS, KINDS):
        families = {"threshold_noise": threshold_noise, "query_noise": query_noise}
        for name, build, form, options in (
            ("above_threshold", above_threshold, StreamForm, {}),
            ("sparse", sparse, RenewedForm, {"cutoff": 3}),
            ("numeric_sparse", numeric_sparse, RenewedForm, {"cutoff": 3}),
        ):
            yield form(
                name=f"{name}-{threshold_noise}-{query_noise}-{kind}",
                mechanism=build(**of(kind), **families, **options),
                built_by=build,
                tests=13,
                neighbours=KINDS[kind],
            )


def selections() -> Iterator[Form]:
    """Yield top-k with each last gap and both hybrids, with k = 1 and 2, and noisy max on a finer grid."""
    for noise, kind, k in product(Noise, KINDS, (1, 2)):
        top = {"k": k, "noise": noise}
        hybrid = {"k": k, "threshold": 1}
        for build, options in (
            *((TopK, top | {"last_gap": last_gap}) for last_gap in LastGap),
            *((HybridIdentity, top | hybrid | {"threshold_gap": released}) for released in (False, True)),
            *(
                (HybridEstimates, hybrid | {"query_noise": noise, "threshold_noise": other})
                for other in Noise
            ),
        ):
            steps = 2 if build is HybridEstimates else 1
            label = "-".join(str(option) for option in options.values())
            yield SelectionForm(
                name=f"{build.__name__}-{kind}-{label}",
                mechanism=build(**of(kind), **options),
                built_by=build,
                tests=4 * steps,
                neighbours=KINDS[kind],
                least_tests=3,
                side=4 if steps == 1 else 3,
            )
    for kind, neighbours in KINDS.items():
        yield SelectionForm(
            name=f"noisy_max_gumbel-{kind}",
            mechanism=NoisyMaxGumbel(**of(kind), refinement=2),
            built_by=NoisyMaxGumbel,
            tests=4,
            neighbours=neighbours,
            least_tests=3,
        )


def quantiles() -> Iterator[Form]:
    """Yield quantiles under both kinds of neighbours, at levels below, at and above 1/2."""
    levels = (Fraction(1, 3), Fraction(1, 2), Fraction(4, 5))
    for noise, adjacency, level in product(Noise, Adjacency, levels):
        families = {"threshold_noise": noise, "query_noise": noise}
        yield QuantileForm(
            name=f"unbounded_quantile-{noise}-{adjacency}-{level.numerator}_{level.denominator}",
            mechanism=UnboundedQuantile(
                epsilon=EPSILON, level=level, adjacency=adjacency, base=Fraction(2), **families
            ),
            built_by=UnboundedQuantile,
            tests=6,
            neighbours=KINDS["monotonic"],
        )


def proved_by_law() -> Iterator[Form]:
    """Yield the exponential mechanism and SVT-Gau, which has an (epsilon, delta) and no gap or alignment."""
    for kind, neighbours in KINDS.items():
        yield LawForm(
            name=f"exponential_mechanism-{kind}",
            mechanism=ExponentialMechanism(**of(kind)),
            built_by=ExponentialMechanism,
            tests=3,
            neighbours=neighbours,
        )
        for cutoff in (1, 2):
            options = of(kind) | {"epsilon": 2.0, "delta": 0.02, "cutoff": cutoff, "tests": 4}
            yield BitsForm(
                name=f"gaussian-{kind}-{cutoff}",
                mechanism=gaussian(**options),
                built_by=gaussian,
                tests=4,
                neighbours=neighbours,
                distance=2,
            )


def forms() -> dict[str, Form]:
    """Return all forms by name."""
    listed = [*sparse_vectors(), *lecture_forms(), *selections(), *quantiles(), *proved_by_law()]
    return {form.name: form for form in listed}


def public_mechanisms() -> tuple[dict[str, type], dict[str, Callable[..., Any]]]:
    """Return the classes that have a charge, and the functions that build them, of all modules of the package."""
    classes, functions = {}, {}
    for module in pkgutil.walk_packages(stream_svt.mechanisms.__path__, "stream_svt.mechanisms."):
        for name, thing in vars(import_module(module.name)).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.name:
                continue
            if inspect.isclass(thing) and (hasattr(thing, "epsilon") or hasattr(thing, "open")):
                if thing not in {Mechanism, Ranking}:  # bases
                    classes[name] = thing
            elif inspect.isfunction(thing):
                functions[name] = thing
    builders = {
        name: function
        for name, function in functions.items()
        if any(kind in str(function.__annotations__.get("return")) for kind in classes)
    }
    return classes, builders
