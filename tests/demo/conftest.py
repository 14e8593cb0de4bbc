"""Shared by the demo's tests: baskets, clock, queries and configuration."""

from __future__ import annotations

import pytest

from stream_svt.demo.scenario import Baskets, Setting, WeekClock, load_baskets, running_counts, service_yaml
from stream_svt.service.config import Config, parse_config
from tests.support.keys import write_secrets


@pytest.fixture(scope="session")
def baskets() -> Baskets:
    """The shipped baskets."""
    return load_baskets()


@pytest.fixture(scope="session")
def clock() -> WeekClock:
    """The demo's own clock."""
    return WeekClock()


@pytest.fixture(scope="session")
def stream(baskets: Baskets, clock: WeekClock) -> list:
    """Every checkpoint with its counts."""
    return list(running_counts(baskets, clock))


@pytest.fixture(scope="session")
def parsed(clock: WeekClock, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The demo's own configuration."""
    directory = tmp_path_factory.mktemp("demo")
    write_secrets(directory, {"sealing.key": "5a" * 32})
    return parse_config(service_yaml(Setting(), clock), directory=directory)
