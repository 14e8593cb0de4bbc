"""The page of the mechanisms: each public constructor has its charge, its source and the test that proves it."""

from __future__ import annotations

import re
from functools import partial

import pytest

import stream_svt.mechanisms
from stream_svt.mechanisms import FullyUnboundedQuantile
from tests.documentation.pages import ROOT
from tests.exact.forms import forms, public_mechanisms

PAGE = (ROOT / "docs/mechanisms.md").read_text()
ROWS = {
    name: cells
    for name, *cells in re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
}
TESTS = dict(re.findall(r"\*\*(\w+)\*\*\s`(test_\w+)`", PAGE))
"""Tests by their short names in the table."""
BUILT = {"SparseVector", "Sparse", "GaussianSparseVector"}
"""Classes that functions of the package build."""


def names_of_tests():
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))


def test_every_public_constructor_is_in_the_table():
    classes, functions = public_mechanisms()
    partials = {name for name, thing in vars(stream_svt.mechanisms).items() if isinstance(thing, partial)}
    assert set(ROWS) == {*classes, *functions, *partials, FullyUnboundedQuantile.__name__} - BUILT


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_a_source_of_the_page_and_a_test_that_exists(name):
    _, theorem, tests = ROWS[name]
    references = PAGE.split("## References")[1].split("\n- ")
    sources = re.findall(r"(\w+)(?: & \w+| et al\.)? (\d{4})", theorem)
    assert sources or theorem == "as `adaptive`"
    for author, year in sources:
        assert any(author in entry and year in entry for entry in references), (author, year)
    assert {TESTS[short] for short in tests.split(", ")} <= names_of_tests()


def test_the_contract_is_named_as_the_proof_of_what_it_plays():
    builders = {form.built_by for form in forms().values()}
    names = {one.func.__name__ if isinstance(one, partial) else one.__name__ for one in builders}
    assert len(names) > 10
    assert f"def {TESTS['contract']}(" in (ROOT / "tests/exact/test_contract.py").read_text()
    assert [name for name in names if "contract" not in ROWS[name][2]] == []
