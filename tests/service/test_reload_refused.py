"""A reload that is refused for every dataset says so in a few lines, however many there are."""

from __future__ import annotations

import pytest

from stream_svt.errors import PROBLEMS_SHOWN, ConfigError, Problem
from stream_svt.service import worker as module
from stream_svt.service.config import parse_config
from stream_svt.service.worker import Worker

MANY = 3_000
TEXT = f"""
application: shop
topics: {{partitions: 4}}
datasets: [{{names: [{", ".join(f"d{number}" for number in range(MANY))}], limit: 4, unit: one basket}}]
monitors:
  - {{name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
     correction: none}}
"""


def test_an_error_lists_the_first_problems_and_counts_the_others() -> None:
    problems = [Problem(line, "datasets", "x") for line in reversed(range(1, 51))]
    error = ConfigError(problems, "shop.yaml")
    assert str(error).startswith("shop.yaml: 50 problems\n  line 1: datasets: x\n")
    assert str(error).endswith("\n  line 20: datasets: x\n  and 30 more")
    again = ConfigError(error.problems, "elsewhere", error.more)
    assert str(again) == str(error).replace("shop.yaml", "elsewhere")
    assert str(ConfigError(problems[:1], "shop.yaml")) == "shop.yaml: 1 problem\n  line 50: datasets: x"
    assert "more" not in str(ConfigError(problems[:PROBLEMS_SHOWN]))


async def test_a_reload_collects_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(parse_config(TEXT, source="shop.yaml"))
    collected: list[int] = []

    class Counted(ConfigError):
        def __init__(self, problems: list[Problem], *more: object) -> None:
            collected.append(len(problems))
            super().__init__(problems, *more)

    monkeypatch.setattr(module, "ConfigError", Counted)
    other = parse_config(TEXT.replace("one basket", "another"), source="shop.yaml")
    with pytest.raises(ConfigError, match=f"and {MANY - PROBLEMS_SHOWN} more") as refused:
        await worker.reload(other)
    assert collected == [PROBLEMS_SHOWN]
    assert len(str(refused.value)) < 5_000
    assert worker.config is not other
