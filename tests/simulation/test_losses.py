"""Queries that retention took before they were read, on the modelled log: the shard waits, and for whom."""

from __future__ import annotations

import pytest

from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.ports import Stopped
from stream_svt.protocol.shard_states import Cause, State
from tests.simulation.effects import finish
from tests.simulation.model import Feed, Model, command, declared, send
from tests.simulation.test_reconfigured import ELSEWHERE, HOT, events


class Patient(Feed):
    """Ends a wait after some rounds in which nothing came."""

    arriving = None

    async def fetch(self, topics, patience, max_records=None):
        found = await super().fetch(topics, patience, max_records)
        if not found and self._rounds > 3:
            raise Stopped
        if self.arriving is not None and self._rounds == 2:
            self.arriving()
        return found


def lost() -> Model:
    """A model that has lost queries of both its topics."""
    model = Model(partitions=1, spec=declared(HOT, ELSEWHERE))
    for topic in "tu":
        send(model, 1, topic, topic)
    model.serve()
    for topic in "tu":
        send(model, 5, f"lost-{topic}", topic)
        model.broker.first[f"{topic}-0"] = 4
    return model


def test_an_acceptance_from_before_the_loss_accepts_nothing() -> None:
    model = Model(partitions=1, spec=declared(HOT, ELSEWHERE))
    command(model, "early", action=Action.ACCEPT_LOSS)
    for topic in "tu":
        send(model, 1, topic, topic)
    model.serve()
    command(model, "later", action=Action.ACCEPT_LOSS)
    model.broker.first["t-0"] = 1
    send(model, 5, "lost")
    model.broker.first["t-0"] = 4
    waiting, status = model.tenure(feed=Patient)
    with pytest.raises(Stopped):
        finish(waiting.open())
    assert status.cause is Cause.RECORDS_LOST
    assert events(model, EventType.LOSS_ACCEPTED) == []


def test_one_acceptance_is_enough_for_all_topics_of_a_shard() -> None:
    model = lost()
    waiting, status = model.tenure(feed=Patient)
    waiting._feed.arriving = lambda: command(model, "now", action=Action.ACCEPT_LOSS)  # type: ignore[attr-defined]
    finish(waiting.open())
    finish(waiting.run())
    model.broker.mark("app-0", everything=True)
    assert status.state is State.RUNNING
    found = events(model, EventType.LOSS_ACCEPTED)
    assert [(event["detail"]["topic"], event["detail"]["offset"]) for event in found] == [("t", 4), ("u", 4)]
    (reply,) = [event for event in events(model, EventType.COMMAND_REPLY) if event["reason"] == "accepted"]
    assert reply["detail"]["message"] == "reading goes on: t at offset 4, u at offset 4"


def test_a_command_for_one_dataset_accepts_no_loss() -> None:
    model = lost()
    waiting, status = model.tenure(feed=Patient)
    waiting._feed.arriving = lambda: command(model, "now", action=Action.ACCEPT_LOSS, dataset="d0")  # type: ignore[attr-defined]
    with pytest.raises(Stopped):
        finish(waiting.open())
    assert status.cause is Cause.RECORDS_LOST
