"""The hour's judge sees growth, and looks at the right process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from tests.soak import hour
from tests.soak import stage as judge
from tests.soak.hour import FILES_BOUND, MEMORY_BOUND, Hour, Sample, compare, judge_slope, look
from tests.soak.stage import Outcome


def _judged(samples: list[Sample]) -> list[str]:
    outcome = Outcome(0)
    compare(outcome, samples, 1000.0)
    return outcome.violations


@pytest.mark.parametrize(
    ("memory", "files", "said"),
    [(MEMORY_BOUND, FILES_BOUND, []), (3 * MEMORY_BOUND, 0, ["bytes of memory"]), (0, 30, ["open files"])],
)
def test_growth_beyond_a_bound_is_a_violation(memory: int, files: int, said: list[str]) -> None:
    """Over a thousand seconds, evenly."""
    grown = [(at, 100_000_000 + memory * at // 1000, 20 + files * at // 1000) for at in range(1000)]
    found = _judged([Sample(*one) for one in grown])
    assert all(text.startswith(f"growth of {what}") for text, what in zip(found, said, strict=True))


@pytest.mark.parametrize(
    ("hours", "grown_per_hour", "is_violation"),
    [(2, 4.9, False), (2, 5.1, True), (2, -20, False), (0.5, 20, False)],
)
def test_a_slope_beyond_its_bound_is_a_violation_over_an_hour_or_more(
    capsys, hours: float, grown_per_hour: float, is_violation: bool
) -> None:
    """After ten minutes in which caches fill, and amid noise of a megabyte."""
    outcome, span = Outcome(0), int(3600 * hours)
    samples = [
        Sample(at, int(100e6 + grown_per_hour * 1e6 * at / 3600 - (at < 600) * 50e6 + at % 7 * 1e5), 20)
        for at in range(0, span, 2)
    ]
    judge_slope(outcome, samples, span)
    name, unit, slope = capsys.readouterr().out.split()
    assert (name, unit) == ("soak.hour", "mb_per_hour")
    if span > 3600:
        assert float(slope) == pytest.approx(grown_per_hour, abs=0.05)
    assert bool(outcome.violations) is is_violation


@pytest.mark.parametrize("moments", [[], [1.0], [200.0], [900.0]])
def test_a_process_that_was_not_looked_at_is_a_violation(moments: list[float]) -> None:
    """Not early, not late, or not at all: it may have ended."""
    (violation,) = _judged([Sample(at, 1, 1) for at in moments])
    assert "nothing to compare" in violation


@pytest.mark.parametrize("audit", ["audit_topic", "audit_state"])
async def test_what_either_audit_finds_is_a_violation(tmp_path: Path, monkeypatch, audit: str) -> None:
    async def nothing(*_: object) -> AsyncIterator[object]:
        for record in ():
            yield record

    stage = Hour("127.0.0.1:1", "none", directory=tmp_path, data_dirs=[])
    for name in ("audit_topic", "audit_state"):
        problems = ["the ledgers do not balance"] * (name == audit)
        found = SimpleNamespace(problems=problems, events=0, ledgers=0)
        monkeypatch.setattr(judge, name, AsyncMock(return_value=found))
    monkeypatch.setattr(hour.records, "each", nothing)
    await stage._judge()
    assert stage.outcome.violations == ["audit: the ledgers do not balance"]


def test_memory_and_files_are_those_of_the_process(tmp_path: Path) -> None:
    before = look(os.getpid(), 1.0)
    block = bytearray(os.urandom(1)) * (64 << 20)
    with (tmp_path / "open").open("w"):
        now = look(os.getpid(), 2.0)
    assert now.memory - before.memory > len(block) // 2
    assert now.files >= before.files + 1
