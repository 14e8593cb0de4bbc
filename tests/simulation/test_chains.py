"""Thousands of chains of applications, and broken ways to close and to carry over, which must not get through them."""

from __future__ import annotations

import pytest

from tests.simulation.broken_carrying_over import BROKEN
from tests.simulation.chains import Chain, Ending
from tests.simulation.soak_chains import chains

PARTS, COUNT = 6, 750
"""Chains: more than twice as many applications that are closed, given up, mirrored or restored."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_chain_of_applications_spends_more_than_the_limit(part: int) -> None:
    found = chains(range(part * COUNT, (part + 1) * COUNT), processes=1)
    assert found.count == COUNT
    assert found.failures == []
    assert found.tally["applications"] > 10_000 / PARTS
    assert all(found.tally[ending] > 300 for ending in Ending)
    assert found.tally["carried over"] > 8_000 / PARTS


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_way_to_close_or_to_carry_over_is_caught(name: str) -> None:
    broken, said = BROKEN[name]
    found = chains(range(1_000), broken, most=1, processes=1)
    assert found.failures, f"{name} got through {found.count} chains"
    ((_, violations),) = found.failures
    assert any(said in text for text in violations), violations


def test_a_seed_is_one_chain() -> None:
    first, second = Chain(7), Chain(7)
    assert (first.run(), first.endings, first.carried) == (second.run(), second.endings, second.carried)
