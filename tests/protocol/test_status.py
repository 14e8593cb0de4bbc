"""What a shard says of itself follows what is durable."""

from __future__ import annotations

import pytest

from stream_svt.monitor.engine import Engine
from stream_svt.protocol.ports import Clock
from tests.simulation.effects import finish, lived
from tests.simulation.model import Model, send
from tests.simulation.script import Script
from tests.simulation.world import Variant, World


def test_the_outbox_shown_fills_with_charges_and_is_empty_once_all_is_published() -> None:
    shown: list[int] = []
    world = World(Script(5, 0, 40, ()), Variant(watch=lambda _, status: shown.append(status.outbox)))
    assert world.run() == []
    assert max(shown) > 0
    assert shown[-1] == 0


@pytest.mark.parametrize("sliced", ["loading", "project", "changing_spec"])
def test_a_long_work_in_slices_is_no_silence(monkeypatch: pytest.MonkeyPatch, sliced: str) -> None:
    whole = getattr(Engine, sliced)

    def many(*arguments, **options):
        yield from (None for _ in range(20))
        yield from whole(*arguments, **options)

    now, silences = [0.0], []

    async def sleep(seconds: float) -> None:
        assert seconds == 0
        silences.append(now[0] - status.beat)
        now[0] += 1.0  # the next slice

    model = Model(partitions=1)
    send(model, 3, "first")
    tenure, status = model.tenure()
    tenure._clock = Clock(now=lambda: now[0], epoch=lambda: model.now, sleep=sleep)
    tenure._now = tenure._clock.now
    monkeypatch.setattr(Engine, sliced, many)
    finish(lived(tenure))
    assert len(silences) > 20
    assert max(silences) <= 1.0
