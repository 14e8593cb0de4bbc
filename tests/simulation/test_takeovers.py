"""Takeovers on the modelled log: another configuration, lost queries, and queries stamped ahead of the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stream_svt.errors import ConfigError, ConfigurationBehind, TimestampAhead
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.ports import Stopped
from stream_svt.protocol.shard_states import Cause
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.simulation.log import finish
from tests.simulation.model import COMMON, Feed, Model, declared, has

HOT = f"{{name: hot, mute: none, {COMMON}}}"
OTHER = HOT.replace("hot", "other")
ELSEWHERE = OTHER.replace("topic: t", "topic: u")
MUTED = HOT.replace("mute: none", "mute: 1h")


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


def refused_configuration(model: Model) -> None:
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


@pytest.mark.parametrize(
    "another", [without_the_topic, refused_configuration, lost_with_the_closing_of_its_monitors]
)
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


# Lost queries wait to be accepted


class Patient(Feed):
    """Ends a wait after some rounds in which nothing came."""

    async def fetch(self, topics, patience, max_records=None):
        found = await super().fetch(topics, patience, max_records)
        if not found and self._rounds > 3:
            raise Stopped
        return found


def lost() -> Model:
    model = Model(declared(HOT, ELSEWHERE))
    for topic in "tu":
        model.send(1, topic, topic)
    model.serve()
    for topic in "tu":
        model.send(5, f"lost-{topic}", topic)
        model.broker.first[topic] = 4
    return model


def waits(model: Model, arriving=None):
    """Open the shard, which waits; return its status."""
    waiting = model.session(Patient)
    waiting.feed.hook = lambda number: number == 2 and arriving and arriving()  # type: ignore[attr-defined]
    with pytest.raises(Stopped):
        finish(waiting.open())
    model.broker.settle()
    return waiting.status


def accept(model: Model, topic: str, offset: int, **fields) -> None:
    model.command(f"now-{topic}-{offset}", action=Action.ACCEPT_LOSS, topic=topic, offset=offset, **fields)


def test_an_acceptance_of_another_loss_accepts_nothing_and_uses_its_number_up() -> None:
    model = lost()
    accept(model, "t", 0)
    assert waits(model).cause is Cause.RECORDS_LOST
    assert model.told(EventType.LOSS_ACCEPTED) == []
    message = "the shard does not wait for offset 0 of topic 't'; nothing was changed"
    assert model.replies() == [("refused", 1, message)]


def test_each_lost_topic_needs_an_acceptance_of_its_own_and_the_answer_comes_at_once() -> None:
    model = lost()
    accept(model, "t", 1)
    status = waits(model)
    assert status.cause is Cause.RECORDS_LOST
    assert "--shard 0 --topic u --offset 1'" in status.reason
    assert "--topic t" not in status.reason
    assert model.replies() == [("accepted", 1, "reading goes on: t at offset 4")]
    accept(model, "u", 1)
    model.serve()
    found = model.told(EventType.LOSS_ACCEPTED)
    assert [(event["detail"]["topic"], event["detail"]["offset"]) for event in found] == [("t", 4), ("u", 4)]
    assert model.replies()[1:] == [("accepted", 2, "reading goes on: u at offset 4")]


def test_what_else_comes_while_records_are_lost_stays_in_line() -> None:
    model = lost()
    model.command("pause", action=Action.PAUSE, dataset="d0", now=True)
    waits(model, arriving=lambda: accept(model, "t", 1))
    assert model.told(EventType.PAUSED) == []
    assert [number for _, number, _ in model.replies()] == [1]
    model.command("pause again", action=Action.PAUSE, dataset="d0")
    accept(model, "u", 1)
    model.serve(2)
    assert [(reason, number) for reason, number, _ in model.replies()] == [("accepted", 1), ("accepted", 2)]
    assert model.told(EventType.PAUSED) == []
    rejected = [entry.value for entry in model.broker.read("rejects")]
    assert rejected == [b"command-stale"] * 2


# Queries stamped far ahead of the clock


def stamped_ahead(model: Model, seconds: float, name: str, dataset: str = "d0") -> None:
    """Send a query while the broker's clock is so far ahead."""
    model.now += seconds
    model.send(1, name, dataset=dataset, series=name)
    model.now -= seconds


def alerts(model: Model) -> list[int]:
    return [data["position"]["offset"] for data in model.told(EventType.ALERT)]


def refused_ahead(model: Model) -> TimestampAhead:
    session = model.session()
    finish(session.open())
    with pytest.raises(TimestampAhead) as ahead:
        finish(session.run())
    model.broker.settle()
    return ahead.value


def test_what_comes_before_a_query_stamped_far_ahead_is_tested_and_that_one_waits_for_the_clock() -> None:
    model = Model(declared(MUTED))
    model.send(1, "a", series="a")
    stamped_ahead(model, 610, "early")
    model.send(1, "b", series="b")
    error = refused_ahead(model)
    assert "the record at offset 1 of 't' is stamped 6" in str(error)
    assert error.passes_at == pytest.approx(model.now + 10, abs=2)
    refused_ahead(model)  # and again: the place is stored
    assert alerts(model) == [0]
    model.now = error.passes_at
    model.serve(2)
    assert alerts(model) == [0, 1, 2]


@pytest.mark.parametrize(("monitor", "seconds"), [(MUTED, 590), (HOT, 10**9)])
def test_what_is_a_little_ahead_is_tested_and_anything_where_no_duration_is_measured(
    monitor: str, seconds: float
) -> None:
    model = Model(declared(monitor))
    stamped_ahead(model, seconds, "early")
    model.serve(2)
    assert alerts(model) == [0]


def test_a_period_ends_for_no_query_stamped_behind_its_end() -> None:
    """The model begins on 21 September 2026."""
    periods = "{generate: 'd{date}', from: 2026-09-21, until: 2026-09-23, limit: 5, unit: one basket}"
    spec = load_spec(f"application: app\ndatasets: [{periods}]\nmonitors:\n  - {HOT}\n")
    model = Model(spec)
    model.now += 86_400 - model.now % 86_400 - 3_600  # an hour before midnight
    stamped_ahead(model, 3_700, "early", "d2026-09-22")
    refused_ahead(model)
    model.broker.first["t"] = 1
    assert alerts(model) == []
