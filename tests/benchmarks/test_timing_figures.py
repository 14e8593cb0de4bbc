"""The timing benchmark measures what it says."""

from __future__ import annotations

import random
import time

import pytest

from benchmarks import timing
from stream_svt.protocol.transactions import Transactions

ORDER = [0, 1] * 20
PAIR = timing.WORKLOADS["decimal_vs_integer"]


def test_it_gives_the_advantage_of_every_pair_and_with_a_cadence_of_those_that_time_tells_apart() -> None:
    found = timing.figures(3, 3)
    assert all(0 <= figure <= 1 for figure in found.values())
    assert set(found) == {
        *(f"advantage_{name}" for name in (*timing.WORKLOADS, *timing.COLUMNS)),
        *(f"cadence_advantage_{name}" for name in timing.SLOW_PATHS),
        "chance",
        "cadence_chance",
    }


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([1, 2, 3, 4], [1, 2, 3, 4], 0.0), ([1, 2], [3, 4], 1.0), ([1, 2, 3, 4], [3, 4, 5, 6], 0.5)],
)
def test_the_advantage_is_the_distance_of_the_distribution_functions(first, second, expected) -> None:
    assert timing.advantage(first, second) == pytest.approx(expected)


def test_no_transaction_begins_before_its_tick() -> None:
    seen = timing.with_cadence(PAIR, ORDER)
    assert [len(sample) for sample in seen] == [20, 20]
    assert min(map(min, seen)) >= -1e-6


def test_it_is_the_service_that_waits_for_ticks(monkeypatch) -> None:
    """The negative control: of a session that does not wait, transactions are seen before their ticks."""

    async def at_once(_: Transactions) -> None:
        """Do not wait."""

    monkeypatch.setattr(Transactions, "_tick", at_once)
    assert min(map(min, timing.with_cadence(PAIR, ORDER))) < -1e-3


def test_work_that_does_not_fit_between_two_ticks_is_seen() -> None:
    """The other one: the figure tells workloads apart where there is a difference."""

    def slow(chance: random.Random) -> bytes:
        time.sleep(2 * timing.CADENCE / timing.CADENCE_BATCH)
        return PAIR[0](chance)

    assert timing.advantage(*timing.with_cadence((slow, PAIR[1]), ORDER)) > 0.5


@pytest.mark.parametrize("count", [100, timing.CADENCE_REPETITIONS])
def test_what_chance_gives_is_passed_by_one_comparison_of_twenty(count: int) -> None:
    chance, level = random.Random(5), timing.by_chance(count)
    passed = sum(
        timing.advantage(*([chance.random() for _ in range(count)] for _ in range(2))) > level
        for _ in range(400)
    )
    assert 5 <= passed <= 35


def test_the_chance_level_with_a_cadence_is_small() -> None:
    assert timing.by_chance(timing.CADENCE_REPETITIONS) <= 0.075
