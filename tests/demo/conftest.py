"""Shared by the demo's tests: baskets, queries and configurations."""

from __future__ import annotations

import pytest

from stream_svt.application.config import Config, parse_config
from stream_svt.demo.scenario import (
    EVENTS,
    ITEMS,
    QUERIES,
    Baskets,
    DemoInput,
    Setting,
    load_baskets,
    running_counts,
)
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
    """The demo's configuration for queries."""
    return _parsed(tmp_path_factory, QUERIES)


@pytest.fixture(scope="session")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The demo's configuration for raw events."""
    return _parsed(tmp_path_factory, EVENTS)


def _parsed(tmp_path_factory: pytest.TempPathFactory, form: DemoInput) -> Config:
    directory = tmp_path_factory.mktemp("demo")
    write_secrets(directory, {"sealing.key": "5a" * 32})
    (directory / "items.txt").write_text("".join(f"{item}\n" for item in ITEMS))
    return parse_config(Setting(form=form).yaml(), directory=directory)
