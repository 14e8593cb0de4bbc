"""The audit that is shipped, on applications that gave budgets up, moved, and lost what they had published."""

from __future__ import annotations

import copy
import itertools

import msgspec
import pytest

from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.migration import MovingJournal
from stream_svt.service.audit import Auditor
from stream_svt.service.wire import home
from tests.simulation.auditing import both_forms, problems
from tests.simulation.effects import finish
from tests.simulation.model import AFTER, BEFORE, NAMES, Model, command, give_up, played_model

MOVED = [name for name in NAMES if home(name.encode(), BEFORE) == 0 != home(name.encode(), AFTER)]
"""Datasets that leave shard 0."""


def _raise_and_go_on(model: Model) -> None:
    for name in MOVED:
        shard = home(name.encode(), AFTER)
        command(model, f"r{name}", shard, action=Action.RAISE_BUDGET, dataset=name, limit="20")
    model.serve()
    started = _started(model)
    model.send(100, 7)
    model.serve()
    assert _started(model) > started


def assert_balances_through_a_move(model: Model) -> None:
    for step in (lambda: None, model.migrate, lambda: _raise_and_go_on(model)):
        step()
        assert problems(model) == []


def _started(model: Model) -> int:
    kinds = [event["type"] for events in model.events().values() for event in events]
    return kinds.count(EventType.RUN_STARTED)


def test_what_was_marked_exhausted_and_moved_balances() -> None:
    model = played_model()
    for shard in range(BEFORE):
        command(model, f"x{shard}", shard, action=Action.MARK_EXHAUSTED)
    model.serve()
    assert_balances_through_a_move(model)


def _given_up_while_moving() -> Model:
    """A model of which shard 0 took leave of what moves, lost its state, and gave its budgets up."""
    played = played_model()
    for crash in itertools.count(1):
        model = copy.deepcopy(played)
        assert model.migrate(crash=crash) is None
        model.settle()
        reached, other = (
            model.journal(shard, BEFORE, MovingJournal, target=AFTER) for shard in range(BEFORE)
        )
        finish(reached.look())
        finish(other.look())
        if reached.moving and not reached.pending and not other.moving:
            break
    model.broker.partitions["state-0"] = []
    give_up(model)
    return model


def test_what_was_given_up_while_it_moved_balances() -> None:
    model = _given_up_while_moving()
    assert_balances_through_a_move(model)


def test_what_is_wrong_with_books_given_up_while_they_moved_is_found() -> None:
    """Any event left out, and any charge after which less is spent than it says."""
    model = _given_up_while_moving()
    model.migrate()
    _raise_and_go_on(model)
    assert problems(model) == []
    (after,) = {
        event["data"]["detail"].get("after")
        for event in model.events()[0]
        if event["type"] == EventType.MARKED_EXHAUSTED
    }
    shown = {
        shard: [msgspec.json.encode(event) for event in events] for shard, events in model.events().items()
    }
    for shard, events in shown.items():
        # Retention takes the first ones, whether the last one is missing only the state tells, and the last one
        # before budgets are given up may have been aborted.
        for place in {*range(1, len(events) - 1)} - ({after - 1} if shard == 0 else set()):
            assert _public({**shown, shard: [*events[:place], *events[place + 1 :]]}), (shard, place)
        for place, event in enumerate(model.events()[shard]):
            account = event["data"]["account"]
            if (
                shard and account and account["charge"]
            ):  # what shard 0 showed before was given up with the rest
                account["spent"] -= 0.1
                less = msgspec.json.encode(event)
                assert _public({**shown, shard: [*events[:place], less, *events[place + 1 :]]}), (
                    shard,
                    place,
                )


def _public(shown: dict[int, list[bytes]]) -> list[str]:
    auditor = Auditor()
    for shard, events in shown.items():
        for offset, event in enumerate(events):
            auditor.add(shard, offset, event)
    return auditor.audit.problems


def test_books_that_begin_anew_after_a_move_without_being_given_up_are_found() -> None:
    """Both the state of the new shard and its alerts were lost: nobody could tell, but for what it left."""
    model = played_model()
    model.migrate()
    assert problems(model) == []
    shard = next(shard for name in MOVED if (shard := home(name.encode(), AFTER)) >= BEFORE)
    model.broker.partitions[f"state-{shard}"] = []
    model.broker.partitions[f"alerts-{shard}"] = []
    model.send(60, 4)
    model.serve()
    for audit in both_forms(model):
        assert any("spent and goes on with epsilon 0" in problem for problem in audit.problems)


def test_what_a_shard_published_is_gone_and_what_its_datasets_left_behind_is_not() -> None:
    """They spent more since they moved; only that they spent less than was shown before would be wrong."""
    model = played_model()
    model.migrate()
    model.send(100, 3)
    model.serve()
    model.serve()
    for name in MOVED:
        shard = home(name.encode(), AFTER)
        kept, model.broker.partitions[f"alerts-{shard}"] = model.broker.partitions[f"alerts-{shard}"], []
        operator, _ = both_forms(model)
        assert (operator.problems, operator.truncated) == ([], {shard})
        more = copy.deepcopy(model)
        for entry in more.broker.partitions["alerts-0"]:
            event = msgspec.json.decode(entry.value or b"{}")
            if event and event["data"]["dataset"] == name:
                event["data"]["account"]["spent"] += 5
                entry.value = msgspec.json.encode(event)
        operator, _ = both_forms(more)
        assert any("is spent, the events say" in problem for problem in operator.problems)
        model.broker.partitions[f"alerts-{shard}"] = kept


@pytest.mark.parametrize("amount", ["spent", "limit"])
def test_books_that_get_smaller_in_a_move_are_found_also_where_retention_took_others(amount: str) -> None:
    """Events that are gone can have charged and raised, and given nothing back."""
    model = played_model()
    model.migrate()
    model.serve()
    events = model.events()
    name = next(
        event["data"]["dataset"]
        for event in reversed(events[0])
        if event["type"] == EventType.MOVED and event["data"]["account"]["spent"] > 0
    )
    for event in events[home(name.encode(), AFTER)]:
        if event["data"]["dataset"] == name:
            event["data"]["account"][amount] -= 0.1
    shown = {shard: [msgspec.json.encode(event) for event in found] for shard, found in events.items()}
    assert not _public(
        {shard: [msgspec.json.encode(e) for e in found] for shard, found in model.events().items()}
    )
    for taken in (0, 2):
        shown[1] = shown[1][taken:]
        (problem,) = _public(shown)
        assert f"dataset {name} left partition 0" in problem


def test_alerts_made_anew_and_still_empty_are_said_to_be_gone_and_no_finding() -> None:
    model = played_model()
    assert problems(model) == []
    model.broker.partitions["alerts-0"] = []
    operator, _ = both_forms(model)
    assert (operator.problems, operator.truncated) == ([], {0})
    model.serve()  # a takeover, after which the state no longer knows where the old ones ended
    operator, _ = both_forms(model)
    assert (operator.problems, operator.truncated) == ([], {0})
    model.send(60, 3)
    model.serve()
    operator, _ = both_forms(model)
    assert (operator.problems, operator.truncated) == ([], {0})
