"""What a shard says of itself follows what is durable."""

from __future__ import annotations

from tests.simulation.script import Script
from tests.simulation.world import Variant, World


def test_the_outbox_shown_fills_with_charges_and_is_empty_once_all_is_published() -> None:
    shown: list[int] = []
    world = World(Script(5, 0, 40, ()), Variant(watch=lambda _, status: shown.append(status.outbox)))
    assert world.run() == []
    assert max(shown) > 0
    assert shown[-1] == 0
