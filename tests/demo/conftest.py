"""Shared by the demo's tests: baskets and the configuration."""

from __future__ import annotations

import pytest

from stream_svt.application.config import Config, parse_config
from stream_svt.demo.scenario import ITEMS, Baskets, Setting, load_baskets
from tests.support.keys import write_secrets


@pytest.fixture(scope="session")
def baskets() -> Baskets:
    """The shipped baskets."""
    return load_baskets()


@pytest.fixture(scope="session")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The demo's configuration."""
    directory = tmp_path_factory.mktemp("demo")
    write_secrets(directory, {"sealing.key": "5a" * 32})
    (directory / "items.txt").write_text("".join(f"{item}\n" for item in ITEMS))
    return parse_config(Setting().yaml(), directory=directory)
