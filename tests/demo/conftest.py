"""Shared by the demo's tests: baskets, queries and configuration."""

from __future__ import annotations

import pytest

from stream_svt.application.config import Config, parse_config
from stream_svt.demo.scenario import Baskets, Setting, load_baskets, running_counts
from tests.support.keys import write_secrets


@pytest.fixture(scope="session")
def baskets() -> Baskets:
    """The shipped baskets."""
    return load_baskets()


@pytest.fixture(scope="session")
def stream(baskets: Baskets) -> list:
    """Every checkpoint with its counts."""
    return list(running_counts(baskets))


@pytest.fixture(scope="session")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The demo's own configuration."""
    directory = tmp_path_factory.mktemp("demo")
    write_secrets(directory, {"sealing.key": "5a" * 32})
    return parse_config(Setting().yaml(), directory=directory)
