"""A context in which nothing may be said."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def silence(capfd: Any, caplog: Any) -> Iterator[None]:
    """Fail if what happens inside warns, prints or logs anything, or leaves an error of floats to its caller."""
    caplog.set_level(0)
    with warnings.catch_warnings(record=True) as warned, np.errstate(all="warn"):
        warnings.simplefilter("always")  # an error could be caught
        yield
    assert warned == []
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
