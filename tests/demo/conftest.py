from __future__ import annotations

import pytest

from stream_svt.demo.clock import Clock
from stream_svt.demo.data import Baskets, load


@pytest.fixture(scope="session")
def baskets() -> Baskets:
    """The shipped baskets."""
    return load()


@pytest.fixture(scope="session")
def clock(baskets: Baskets) -> Clock:
    """The demo's own clock."""
    return Clock(len(baskets))
