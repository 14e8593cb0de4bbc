"""What a shard waits for, on the modelled log: lost queries to be accepted, and the clock to catch up with queries."""

from __future__ import annotations

import pytest

from stream_svt.errors import TimestampAhead
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.ports import Stopped
from stream_svt.protocol.shard_states import Cause
from stream_svt.settings.application import load_spec
from tests.simulation.effects import finish
from tests.simulation.model import COMMON, Feed, Model, declared, has
from tests.simulation.test_reconfigured import ELSEWHERE, HOT

MUTED = f"{{name: hot, mute: 1h, {COMMON}}}"


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
    refused = [entry.value for entry in model.broker.read("rejects")]
    assert refused == [b"command-stale"] * 2


def test_an_owner_that_dies_while_it_accepts_leaves_the_command_to_the_next_one() -> None:
    model = lost()
    accept(model, "t", 1)
    model.dies_at(has(EventType.LOSS_ACCEPTED), feed=Patient)
    assert model.standing()[1] == 0
    waits(model)
    assert model.replies() == [("accepted", 1, "reading goes on: t at offset 4")]
    assert len(model.told(EventType.LOSS_ACCEPTED)) == 1


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
