"""A shard's partition of the state topic as a release wrote it: sealed, with meta and an outbox."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping
from typing import Any

from stream_svt.monitor.commands import Action, Command, UnderWay
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.controls import Standing
from stream_svt.protocol.journal import Journal, Topics
from stream_svt.protocol.sealing import Place
from tests.simulation.effects import ModelLog
from tests.simulation.log import Broker
from tests.support.engine_play import Play

KEY = bytes(range(32))
COMMANDS = Standing(
    7, 9, "ninth", accepted=True, under_way=UnderWay(Command("ninth", Action.PAUSE, number=9), "a", 1)
)
PLACE = Place("golden-cluster", "golden", "golden.state", 0)
Records = Mapping[bytes, bytes]


def journal(broker: Broker) -> Journal:
    """Return the shard's journal, not opened; its random bytes are always the same."""
    return Journal(
        ModelLog(broker, "golden-0"),
        PLACE,
        Topics(PLACE.topic, "golden.alerts", "golden.rejects"),
        partitions=1,
        masters=(KEY,),
        entropy=random.Random(5).randbytes,
        epoch=lambda: 1_767_571_200.0,
    )


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine of the protocol on the modelled log."""
    outcome = None
    try:
        while True:
            outcome = work.send(outcome).act()
    except StopIteration as ended:
        return ended.value


def written(play: Play) -> dict[bytes, bytes]:
    """Return what a partition holds after a play's state was committed, its newest events waiting in the outbox."""
    broker = Broker(now_ms=lambda: 0)
    books = journal(broker)
    finish(books.open())
    newest = next(commit for commit in reversed(play.commits) if commit.events)
    books.set_commands(COMMANDS)
    finish(books.commit(Commit(dict(play.records), play.progress or b"", newest.events)))
    broker.mark("golden-0", everything=True)
    live: dict[bytes, bytes] = finish(ModelLog(broker).read_state())
    return live


def holding(records: Records) -> Broker:
    """Return a log whose state partition holds these records."""
    broker = Broker(now_ms=lambda: 0)
    for key, record in records.items():
        broker.write("state", key, record)
    return broker
