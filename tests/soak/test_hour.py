"""The hour's judge sees growth, and looks at the right process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.hour import FILES_BOUND, MEMORY_BOUND, Hour, Sample, compare, look


def _judged(tmp_path: Path, memory: int, files: int) -> list[str]:
    """Return what is said of a process that grew by so much over a thousand seconds, evenly."""
    samples = [
        Sample(float(at), 100_000_000 + memory * at // 1000, 20 + files * at // 1000) for at in range(1000)
    ]
    stage = Hour("127.0.0.1:1", [], "none", tmp_path)
    compare(stage, samples, 1000.0)
    return stage.outcome.violations


def test_a_process_that_stays_as_it_is_passes(tmp_path: Path) -> None:
    assert _judged(tmp_path, 0, 0) == []
    assert _judged(tmp_path, MEMORY_BOUND, FILES_BOUND) == []


@pytest.mark.parametrize(
    ("memory", "files", "said"), [(3 * MEMORY_BOUND, 0, "memory"), (0, 30, "open files")]
)
def test_growth_is_a_violation(tmp_path: Path, memory: int, files: int, said: str) -> None:
    (violation,) = _judged(tmp_path, memory, files)
    assert said in violation


@pytest.mark.parametrize("moments", [[], [1.0], [200.0], [900.0]])
def test_a_process_that_was_not_looked_at_is_a_violation(tmp_path: Path, moments: list[float]) -> None:
    """Not early, not late, or not at all: it may have ended."""
    stage = Hour("127.0.0.1:1", [], "none", tmp_path)
    compare(stage, [Sample(at, 1, 1) for at in moments], 1000.0)
    (violation,) = stage.outcome.violations
    assert "nothing to compare" in violation


def test_memory_and_files_are_those_of_the_process(tmp_path: Path) -> None:
    before = look(os.getpid(), 1.0)
    block = bytearray(os.urandom(1)) * (64 << 20)
    with (tmp_path / "open").open("w"):
        now = look(os.getpid(), 2.0)
    assert now.memory - before.memory > len(block) // 2
    assert now.files >= before.files + 1
