from __future__ import annotations

import pytest

from benchmarks.command import show


@pytest.fixture
def measured(capsys):
    """Run a benchmark with some sizes, and return the figures that it prints."""

    def run(benchmark, sizes: str, name: str = "") -> dict[str, float]:
        show(benchmark.figures, sizes.split(), digits=4, name=name)
        lines = capsys.readouterr().out.splitlines()
        pairs = [line.split(" ") for line in lines if ": other sizes" not in line]
        return {name: float(value) for name, value in pairs}

    return run
