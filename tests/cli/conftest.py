"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

CONFIG = """\
application: shop
kafka: {bootstrap_servers: "127.0.0.1:1"}
topics: {partitions: 2}
datasets: [{names: [today, tomorrow], limit: 4, unit: one basket}]
monitors:
  - name: hot
    topic: counts
    epsilon: 1
    cutoff: 10
    sensitivity: 1
    monotonic: true
    bounds: [0, 100000]
    threshold: 500
    expected_queries: 1000000
"""


@pytest.fixture
def stream_svt(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Run the command line: ``stream_svt("check", "-c", config)``."""
    return CommandLine(capfd)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a valid configuration whose broker is not there."""
    path = tmp_path / "shop.yaml"
    path.write_text(CONFIG)
    return path
