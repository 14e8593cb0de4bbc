"""The contract suite: every check on every form of every public mechanism."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest

import stream_svt.mechanisms
from tests.exact.forms import forms

FORMS = forms()


@pytest.mark.parametrize(
    ("check", "name"),
    [
        pytest.param(check, name, id=f"{name}-{check.__name__.removeprefix('check_')}")
        for name, form in FORMS.items()
        for check in form.checks
    ],
)
def test_the_contract_holds(check, name):
    check(FORMS[name])


def public_mechanisms():
    """Classes that make steps, and the functions that build one, wherever they live in the package."""
    classes, builders = {}, {}
    for module in pkgutil.iter_modules(stream_svt.mechanisms.__path__, "stream_svt.mechanisms."):
        for name, thing in vars(import_module(module.name)).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.name:
                continue
            if inspect.isclass(thing) and hasattr(thing, "step") and hasattr(thing, "open"):
                classes[name] = thing
            elif inspect.isfunction(thing):
                builders[name] = thing
    returned = {
        name: inspect.signature(function, eval_str=True).return_annotation
        for name, function in builders.items()
    }
    return classes, {name: builders[name] for name in builders if returned[name] in classes.values()}


def test_every_public_mechanism_and_constructor_has_a_form():
    classes, builders = public_mechanisms()
    played = {type(form.mechanism) for form in FORMS.values()}
    assert classes
    assert set(classes.values()) <= played
    assert set(builders.values()) <= {form.built_by for form in FORMS.values()}
    assert set(classes) | set(builders) <= set(stream_svt.mechanisms.__all__)
