"""The audit that is shipped, on applications on the modelled log."""

from __future__ import annotations

import msgspec

from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.audit import Auditor
from stream_svt.service.codec import home
from tests.simulation.model import Model, command, played_model, told


def test_what_is_wrong_with_a_public_account_is_found() -> None:
    """Any event left out, and any charge after which less is spent than it says."""
    model = played_model()
    for name in model.names:
        shard = home(name.encode(), model.partitions)
        command(model, f"r{name}", shard, action=Action.RAISE_BUDGET, dataset=name, limit="20")
    model.serve()
    started = len(told(model, EventType.RUN_STARTED))
    model.send(100, 7)
    model.serve()
    assert len(told(model, EventType.RUN_STARTED)) > started
    model.settle()
    shown = _shown(model)
    assert _public(shown) == []
    for shard, events in shown.items():
        # Retention takes the first ones; whether the last one is missing only the state tells.
        for place in range(1, len(events) - 1):
            assert _public({**shown, shard: [*events[:place], *events[place + 1 :]]}), (shard, place)
        for place, event in enumerate(model.events()[shard]):
            account = event["data"]["account"]
            if account and account["charge"]:
                account["spent"] -= 0.1
                changed = [*events[:place], msgspec.json.encode(event), *events[place + 1 :]]
                assert _public({**shown, shard: changed}), (shard, place)


def test_a_dataset_on_two_partitions_is_found() -> None:
    model = played_model()
    shown = _shown(model)
    last = model.events()[1][-1]
    last["data"]["dataset"] = next(name for name in model.names if home(name.encode(), 2) == 0)
    problem, *_ = _public({**shown, 1: [*shown[1][:-1], msgspec.json.encode(last)]})
    assert "has events on partition 0 too" in problem


def _shown(model: Model) -> dict[int, list[bytes]]:
    return {number: [msgspec.json.encode(event) for event in one] for number, one in model.events().items()}


def _public(shown: dict[int, list[bytes]]) -> list[str]:
    auditor = Auditor()
    for shard, events in shown.items():
        for offset, event in enumerate(events):
            auditor.add(shard, offset, event)
    return auditor.audit.problems
