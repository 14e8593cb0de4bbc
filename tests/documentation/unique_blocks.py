"""Blocks that are neither programs nor documents, each with a rule to itself: what it says is held to the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from stream_svt.mechanisms import Explicit, SparseVector, sparse_vector
from stream_svt.mechanisms.run import UNITS_PER_EPSILON
from tests.documentation.pages import ROOT, Block
from tests.documentation.stage import StepFailed
from tests.golden.regenerate import state_machine


def _rooms(text: str) -> None:
    """The order of the rooms is the one that the contract on imports has; files beside them are none, but errors."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = [one for one in project["tool"]["importlinter"]["contracts"] if one["id"] == "one-way"]
    named = re.compile(r"\w+")
    files = {path.stem for path in (ROOT / "stream_svt").glob("*.py")} - {"errors"}
    layers = [set(named.findall(layer)) - files for layer in reversed(contract["layers"])]
    expected = [layer for layer in layers if layer]
    if [set(named.findall(part)) for part in text.split("<-")] != expected:
        raise StepFailed(f"pyproject.toml has {expected}")


def _verbs(text: str) -> None:
    """The text is Python, and what it asks of a mechanism exists."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "mechanism"
        ) and not hasattr(SparseVector, node.attr):
            raise StepFailed(f"a mechanism has no {node.attr}")


_VALUE, _THRESHOLD, _CORRECTION, _THRESHOLD_NOISE = 700, 500, 60, 35
_LETTERS = {
    "threshold noise": str(_THRESHOLD_NOISE),
    "query noise": "noise",
    "value": str(_VALUE),
    "threshold": str(_THRESHOLD),
    "correction": str(_CORRECTION),
    "z": str(_THRESHOLD_NOISE),
    "nu": "noise",
}


def _definition(text: str) -> None:
    """The formulas give the rates of the mechanism, and its gap and outcome for noise that is known."""
    for monotonic in (True, False):
        svt = sparse_vector(
            epsilon=UNITS_PER_EPSILON,
            cutoff=2,
            monotonic=monotonic,
            sensitivity=3,
            correction=Explicit((_CORRECTION,)),
        )
        [branch] = svt.branches
        places = {
            "e0": Fraction(svt.threshold_charge, UNITS_PER_EPSILON),
            "e1": Fraction(branch.charge, UNITS_PER_EPSILON),
            "D": 3,
            "U": 3 if monotonic else 6,
        }
        for name, rate in (("l0", svt.threshold_rate), ("l1", branch.rate)):
            shown = re.search(rf"^ *{name} = (\w+) / (\w+)", text, re.MULTILINE)
            if shown and Fraction(places[shown[1]]) / places[shown[2]] != rate:
                raise StepFailed(f"{name} is {rate}")
        _outcomes(svt, text)


def _outcomes(svt: SparseVector, text: str) -> None:
    formula = re.search(r"gap = (.+)", text)
    if not formula:
        raise StepFailed("says nothing of the gap")
    expression = formula[1]
    for word, letter in _LETTERS.items():
        expression = expression.replace(word, letter)
    for noise in (-120, -106, -105, -104, 0, 7):
        run = svt.open(_THRESHOLD_NOISE, (0, 0))
        _, outcomes = svt.step(
            run, np.array([_VALUE]), _THRESHOLD, 0, lambda _, noise=noise: np.array([noise])
        )
        gap = eval(expression, {"noise": noise})  # noqa: S307 - a formula of this repository
        found = outcomes.tops[0].gap if outcomes.tops else None
        if found != (gap if gap >= 0 else None):
            raise StepFailed(f"with query noise {noise} the formula gives {gap}, the mechanism {found}")
    for sign, word in ((">=", "top"), ("<", "bottom")):
        if not re.search(rf"gap {sign} +0: a {word}", text):
            raise StepFailed(f"does not say that gap {sign} 0 is a {word}")


def _life_cycle(text: str) -> None:
    """It is drawn from the transition table."""
    if text not in state_machine():
        raise StepFailed("is not what python -m tests.golden.regenerate draws")


UNIQUE = {
    ("CONTRIBUTING.md", "errors <- mechanisms"): _rooms,
    ("docs/how-sparse-vector-works.md", "gap = (value"): _definition,
    ("docs/mechanisms.md", "run = mechanism.open("): _verbs,
    ("docs/privacy-guarantee.md", "l0 = e0 / D"): _definition,
    ("docs/state-machine.md", "stateDiagram-v2"): _life_cycle,
}
"""By page and by how the block's text begins: what holds it to the code."""


def check_of(block: Block) -> Callable[[str], None] | None:
    """Return the rule that a block has to itself, None for all others."""
    for (page, begins), check in UNIQUE.items():
        if page == str(block.page) and block.text.lstrip().startswith(begins):
            return check
    return None
