"""The timing benchmark measures what it says."""

from __future__ import annotations

import pytest

from benchmarks import timing


def test_it_gives_the_advantage_of_every_pair_with_and_without_a_cadence() -> None:
    found = timing.figures(3)
    for name in timing.WORKLOADS:
        assert 0 <= found[f"advantage_{name}"] <= 1
        assert 0 <= found[f"cadence_advantage_{name}"] <= 1
    assert set(found) - {"null"} == {
        f"{kind}_{name}" for kind in ("advantage", "cadence_advantage") for name in timing.WORKLOADS
    }


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([1, 2, 3, 4], [1, 2, 3, 4], 0.0), ([1, 2], [3, 4], 1.0), ([1, 2, 3, 4], [3, 4, 5, 6], 0.5)],
)
def test_the_advantage_is_the_distance_of_the_distribution_functions(first, second, expected) -> None:
    assert timing.advantage(first, second) == pytest.approx(expected)
