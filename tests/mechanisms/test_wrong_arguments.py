"""A wrong argument is named in words, whichever public function or constructor it is given to."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any, get_type_hints

import numpy as np
import pytest

import stream_svt.mechanisms
from stream_svt import library
from stream_svt.errors import MisuseError
from stream_svt.mechanisms import (
    Annealed,
    Explicit,
    Exposure,
    Law,
    Optimal,
    TopK,
    above_threshold,
    accuracy,
    adaptive,
    estimates,
    ladder,
    numeric_sparse,
    sparse,
    sparse_vector,
)
from stream_svt.mechanisms.baselines.sparse import RoundOptions, advanced_epsilon, zcdp_epsilon
from stream_svt.mechanisms.correction import least_variance_split
from stream_svt.mechanisms.sparse_vector import AnswerOptions, RunOptions
from tests.exact.forms import ARGUMENTS

VALUES = [3, 1, 2]

LAW = Law("exponential", "0.1")
LAWS = {"query": LAW, "threshold": LAW}
ESTIMATE = {"bar": 5, "gap": 90} | LAWS

CALLS: dict[Any, dict[str, Any]] = {
    **ARGUMENTS,
    Exposure: {"expected_queries": 10, "false_alerts": 1},
    Annealed: {},
    Optimal: {"queries": 10, "cutoff": 3},
    Explicit: {"corrections": (3, 1)},
    Law: {"noise": "laplace", "rate": 1},
    least_variance_split: {"cutoff": 3, "monotonic": True},
    advanced_epsilon: {"charge": 0.1, "runs": 3, "delta": 1e-6},
    zcdp_epsilon: {"rho": 0.1, "delta": 1e-6},
    estimates.lower_bound: ESTIMATE | {"beta": 0.05},
    estimates.certain_gap: {"query_rate": 0.1, "beta": 0.05},
    accuracy.report_probability: {"margin": 5, "corrections": (1, 0)} | LAWS,
    library.svt: {"values": VALUES, "threshold": 2},
    library.top_k: {"values": VALUES, "k": 2},
    library.quantile: {"values": VALUES, "level": 0.5},
}
OTHERS = {
    "Branch": "built by the constructors",
    "GaussianSparseVector": "built by gaussian",
    "Identity": "checked where it is drawn",
    "KeyedSampler": "checked in test_arguments",
    "Mean": "takes nothing",
    "Noises": "a result",
    "Outcomes": "a result",
    "Run": "opened by a mechanism",
    "Sparse": "built by sparse",
    "SparseVector": "built by sparse_vector",
    "Top": "a result",
    "Uncorrected": "takes nothing",
    "Comparison": "made by a constructor",
    "Correction": "a base",
    "draw_discrete_gaussian": "checked in test_gaussian",
    "draw_threshold": "checked in test_arguments",
    "exact": "reads one number",
    "exact_draw": "checked in test_arguments",
}

NOT_A_NUMBER = [math.nan, math.inf, "many", "1/0", True, {1}, [1], 1j]
FLAG = ["no", "False", 0, 1, None, {True}, np.True_]
CHOICE = ["nothing", 3, None, ["laplace"]]
NUMBER = [*NOT_A_NUMBER, -1]
ABOVE = [*NUMBER, 0, None]
SHARE = [*ABOVE, 1, 2.5]
INTEGER = [-1, 0, 1.5, "3", True, None, {1}, math.nan]
ANY_SIGN = [1.5, "3", True, None, {1}, 2**48]
LIST = [5, "text", {1, 2}, [[1, 2]], [1, math.nan], [None], ["many"], iter([1]), np.ones((2, 2)), [1j]]
UNITS = [10**9, "1e-10"]
"""An epsilon in units of 10^-9, and one below a unit."""

WRONG = {
    **dict.fromkeys(("monotonic", "sweep", "release_gap", "threshold_gap"), FLAG),
    **dict.fromkeys(
        ("noise", "query_noise", "threshold_noise", "answer_noise", "composition", "adjacency", "last_gap"),
        CHOICE,
    ),
    **dict.fromkeys(
        ("cutoff", "sensitivity", "count", "refinement", "k", "runs", "queries", "attempts"), INTEGER
    ),
    "expected_queries": INTEGER,
    "epsilon": [*ABOVE, *UNITS],
    "charge": [*ABOVE, *UNITS],
    **dict.fromkeys(("level", "beta", "delta"), SHARE),
    **dict.fromkeys(("false_alerts", "step", "rate", "granularity"), ABOVE),
    "base": [*ABOVE, 1, 0.5],
    **{key: [*NUMBER, None] for key in ("rho", "above", "below", "upper", "margin_scales")},
    "answer_share": [*NUMBER, 1, None],
    "split": [*NUMBER, 0],
    "theta": [*NUMBER, 0, 1],
    "margin": [-1, 1.5, "3", True, {1}],
    "tests": INTEGER,
    **dict.fromkeys(("threshold", "start", "correction"), ANY_SIGN),
    **{key: [*NOT_A_NUMBER, None] for key in ("start_scales", "end", "lower")},
    "shares": [5, None, (), (2,), (1, 2, 1), (2, 4, 1), (2, 2, 1), (2.5, 1), "21", {2, 1}],
    "corrections": [5, None, (), [1], (1.5,), (2**48,), ("3",)],
    "levels": [5, None, [], [0.5, 0.5], [0.5, 0.25], [0, 0.5], [math.nan], "0.5", {0.5}],
    "quantile": [5, None, "0.5"],
    "values": [*LIST, [], [2**60]],
    **{key: ["noise", 3, LAW.noise] for key in ("query", "threshold_law")},
    **{key: [1.5, "3", None, {1}] for key in ("bar", "gap")},
    "mechanism": [3, None],
    "query_rate": ABOVE,
    "ratio": ABOVE,
    "seed": [5, "text", [1]],
    "as_published": FLAG,
}
SPECIAL = {
    **{(call, "values"): [*LIST, []] for call in (library.svt, library.top_k)},
    (library.quantile, "values"): LIST,
    (library.svt, "threshold"): [None, {1}, "many", math.nan, [1], [1, 2], [1, 2, math.nan], 2**60, True],
    (library.top_k, "k"): [*INTEGER, 4],
    (library.quantile, "base"): [*ABOVE, 1, "1.00001", f"1.{'0' * 30}1"],
    **{(build, "sensitivity"): ABOVE for build in (library.svt, library.top_k)},
    **{
        (call, "granularity"): [given for given in ABOVE if given is not None]
        for call in (library.svt, library.top_k, library.quantile)
    },
    **{(build, "correction"): [5, "annealed", Annealed] for build in (sparse_vector, adaptive, ladder)},
    **{(build, "correction"): [5, "annealed"] for build in (above_threshold, sparse, numeric_sparse)},
    **{(build, "delta"): [*NUMBER, 0.5, 1] for build in (sparse, numeric_sparse)},
    (advanced_epsilon, "charge"): [*NUMBER, None],
    **{
        (call, "threshold"): ["noise", 3, None]
        for call in (estimates.lower_bound, accuracy.report_probability)
    },
    (accuracy.report_probability, "corrections"): [5, None, (), {1}],
    (accuracy.report_probability, "margin"): [1.5, "3", None],
    (Annealed, "start"): [*NOT_A_NUMBER, None],
}


def parameters(call: Any) -> Iterator[str]:
    """Yield the names of the arguments of a function or class, those of its options too."""
    fixed = call.keywords if isinstance(call, partial) else {}
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield name
        else:
            options = RoundOptions if call in {sparse, numeric_sparse} else RunOptions
            options = AnswerOptions if call is above_threshold else options
            yield from set(get_type_hints(options)) - set(fixed)


def name_of(call: Any) -> str:
    return "numeric_sparse" if isinstance(call, partial) else call.__name__


def answer(call: Any, name: str, given: object) -> str:
    """Return what a call with one wrong argument says."""
    try:
        call(**CALLS[call] | {name: given})
    except MisuseError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_one_wrong_argument_is_named(call):
    wrong = {name: SPECIAL.get((call, name), WRONG.get(name, [])) for name in parameters(call)}
    said = {
        (name, repr(given)): answer(call, name, given) for name, several in wrong.items() for given in several
    }
    assert said
    assert {case: text for case, text in said.items() if not re.search(rf"\b{case[0]}\b", text)} == {}


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_every_argument_has_wrong_values_and_a_right_one(call):
    call(**CALLS[call])
    missing = [name for name in parameters(call) if (call, name) not in SPECIAL and name not in WRONG]
    assert missing == []


def test_every_public_function_and_constructor_is_tried():
    tried = {name_of(call) for call in CALLS}
    public = {
        name
        for name, thing in vars(stream_svt.mechanisms).items()
        if getattr(thing, "__module__", "").startswith("stream_svt.mechanisms") or isinstance(thing, partial)
        if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, Enum))
    }
    assert public - tried == set(OTHERS)


@pytest.mark.parametrize("given", [10**5000, Fraction(10**5000, 3)], ids=["integer", "fraction"])
def test_a_number_too_long_for_python_to_print_is_named_by_its_type(given):
    assert f"epsilon must be at most 10000; found a {type(given).__name__}" in answer(TopK, "epsilon", given)
