"""Restarts with another configuration, on the modelled log: no query and no lost outcome slips between two versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stream_svt.errors import ConfigError, ConfigurationBehind
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.settings.application import ApplicationSpec
from tests.simulation.effects import finish
from tests.simulation.model import COMMON, Model, declared, has

HOT = f"{{name: hot, mute: none, {COMMON}}}"
OTHER = HOT.replace("hot", "other")
ELSEWHERE = OTHER.replace("topic: t", "topic: u")


@pytest.mark.parametrize(("start_at", "seen"), [("earliest", 7), ("latest", 2)])
def test_a_monitor_on_a_new_topic_begins_where_it_is_told(start_at: str, seen: int) -> None:
    model = Model(declared(HOT), start_at=start_at)
    model.serve()
    model.send(2, "a")
    model.serve()
    model.send(5, "before", topic="u")
    model.broker.write("u", b"d0", b"{broken")
    model.spec = declared(HOT, ELSEWHERE)
    model.serve()
    model.send(2, "after", topic="u")
    model.serve(2)
    assert len(model.told(EventType.ALERT, "other")) == seen
    assert [entry.key for entry in model.broker.read("rejects")] == [b"u/5"] * (start_at == "earliest")


@pytest.mark.parametrize("removed", [ELSEWHERE, OTHER])
def test_a_lost_outcome_of_a_monitor_that_is_removed_is_computed_or_paid(removed: str) -> None:
    """Where its topic is read no more, nobody computes it; where it is, queries may name the monitor."""
    topic = "u" if removed is ELSEWHERE else "t"
    named = {} if removed is ELSEWHERE else {"monitor": "other"}
    model = Model(declared(HOT, removed))
    model.send(1, "low", topic, value=0, **named)
    model.serve()
    model.send(1, "top", topic, **named)
    model.dies_at(has(EventType.ALERT))
    model.spec = declared(HOT)
    model.serve(2)
    (closed,) = model.told(EventType.RUN_CLOSED, "other")
    tops = model.told(EventType.ALERT, "other")
    if removed is ELSEWHERE:
        assert (closed["reason"], closed["account"]["charge"], tops) == ("unread", 0.6, [])
    else:
        assert (closed["reason"], len(tops)) == ("removed", 1)


@pytest.mark.parametrize("crash", [False, True])
def test_a_refused_record_before_a_run_is_named_however_its_owner_ends(crash: bool) -> None:
    """The start of a run is stored in the middle of a batch: the records before that place are not read again."""
    model = Model(declared(HOT))
    model.broker.write("t", b"d0", b"{broken")
    model.send(1, "a")
    if crash:
        started = [False]

        def after_the_start(content: Any) -> bool:
            started.append(has(EventType.RUN_STARTED)(content))
            return started[-2]

        model.dies_at(after_the_start)
    model.serve(2)
    assert [entry.key for entry in model.broker.read("rejects")] == [b"t/0"]


def both_read(spec: ApplicationSpec) -> Model:
    model = Model(spec)
    model.send(1, "first", value=0)
    model.send(1, "first", "u", value=0)
    model.serve()
    return model


def paused_within_a_replay(spec: ApplicationSpec) -> Model:
    """A top of monitor hot was computed and lost; the next owner heard of a pause before it came there."""
    model = both_read(spec)
    model.send(20, "low", value=0)
    model.send(1, "top")
    model.dies_at(has(EventType.ALERT))
    model.serve_a_while(
        4,
        lambda number: number == 0 and model.command("p", action=Action.PAUSE, dataset="d0", monitor="hot"),
    )
    return model


def assert_computed_before_it_closes(model: Model) -> None:
    """The pause waits until the lost outcome is computed again: a close after it gives nothing of it back."""
    model.serve(2)
    model.command("x", action=Action.CLOSE, dataset="d0", monitor="hot")
    model.serve(2)
    kinds = [event["type"] for event in model.events if event["data"]["monitor"] == "hot"]
    assert kinds.count(EventType.ALERT) == kinds.count(EventType.RUN_CLOSED) == 1
    assert kinds.index(EventType.ALERT) < kinds.index(EventType.PAUSED) < kinds.index(EventType.RUN_CLOSED)


BOTH = declared(HOT, ELSEWHERE)


def without_the_topic(model: Model) -> None:
    """Else a close would give back what the outcome costs that was computed and lost."""
    model.send(30, "more", "u", value=0)
    model.spec = declared(ELSEWHERE)
    model.serve_a_while(1)


def refused(model: Model) -> None:
    model.spec = declared(HOT.replace("topic: t", "topic: w"), ELSEWHERE)
    third = model.session()
    finish(third.open())
    with pytest.raises(ConfigError, match="cannot change"):
        finish(third.run())
    model.broker.mark("app-0", everything=True)


def lost_with_the_closing_of_its_monitors(model: Model) -> None:
    """Their removal at full price, and the end of the replay, are one transaction."""
    model.spec = declared(ELSEWHERE)
    model.dies_at(has(EventType.RUN_CLOSED))


@pytest.mark.parametrize("another", [without_the_topic, refused, lost_with_the_closing_of_its_monitors])
def test_a_replay_owed_on_a_paused_topic_is_still_owed_after_another_configuration(
    another: Callable[[Model], None],
) -> None:
    model = paused_within_a_replay(BOTH)
    another(model)
    model.spec = BOTH
    assert_computed_before_it_closes(model)


def test_a_pause_under_a_configuration_without_the_topic_ends_no_replay() -> None:
    """What was running then may have been read further than anybody knows."""
    model = both_read(BOTH)
    model.dies_at(has(EventType.ALERT), opened=lambda: model.send(1, "top"))
    model.send(40, "more", "u", value=0)
    model.spec = declared(ELSEWHERE)
    model.command("p", action=Action.PAUSE, dataset="d0", monitor="hot")
    model.serve_a_while(3)
    model.spec = BOTH
    assert_computed_before_it_closes(model)


def test_a_state_that_just_began_adopts_no_older_version_and_no_other_of_its_number() -> None:
    """Its owner dies before the replay is over: the monitors of its version are stored already."""
    model = Model(BOTH, version=(2, "second"))
    model.dies_at(has(EventType.STATE_BEGUN), after=True)
    model.spec, model.version = declared(HOT), (1, "first")
    with pytest.raises(ConfigurationBehind, match="has adopted version 2"):
        finish(model.session().open())
    model.version = (2, "first")
    with pytest.raises(ConfigError, match="adopted another version 2"):
        finish(model.session().open())
