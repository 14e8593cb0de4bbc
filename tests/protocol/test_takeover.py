"""A takeover where much waits to be published."""

from __future__ import annotations

from stream_svt.monitor.bounds import Bounds
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.datasets import Gone
from stream_svt.monitor.released import EventType
from tests.simulation.effects import finish, lived
from tests.simulation.model import COMMON, Model, declared
from tests.support.engine_play import another_release

HOT = f"{{name: hot, {COMMON}}}"


def test_everything_that_was_charged_is_published_before_a_takeover_charges_anything() -> None:
    model = Model(partitions=1, spec=declared(HOT))
    model.send(30, 1)
    model.serve()
    books = model.journal(0, 1)
    restored = finish(books.open())
    tenure, _ = model.tenure()
    assert list(tenure._workload.gather(0, Gone()))
    engine = tenure._workload.engine(0, restored.noise_key)
    engine.load(restored.records, restored.progress)
    for number in range(6):
        engine.apply(Command(f"c{number}", (Action.PAUSE, Action.RESUME)[number % 2], "d0"))
    commit = engine.take_commit()
    assert len(commit.events) == 12
    finish(books.commit(commit))
    model.broker.mark("app-0", everything=True)

    tenure._journal = model.journal(0, 1, bounds=Bounds(published=2))
    with another_release():
        finish(lived(tenure))
    model.broker.mark("app-0", everything=True)
    events = model.events()[0]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert "incompatible" in [event["data"].get("reason") for event in events]
    assert sum(event["type"] == EventType.COMMAND_REPLY for event in events) == 6
