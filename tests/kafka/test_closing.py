"""An application that is closed on a real broker, its budgets carried over, and a successor that goes on.

Each drill ends an application in another way: in order, behind a mirror, or with a state that cannot be proved. Each
states what the carried file says was spent beside what really was, lets the successor spend the rest, and holds both to
every limit.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.protocol.history.carry_over import CarryOverRefused
from stream_svt.protocol.shard_states import Cause
from stream_svt.settings.carried import parse
from tests.support import records
from tests.support.alerts import account_of, lifecycle
from tests.support.closing import (
    KEY_LOST,
    LIMIT,
    RUN,
    SEALED_ANEW,
    TOPS,
    Application,
    balances,
    goes_on,
)
from tests.support.command_line import Ended
from tests.support.partitioning import partition_of
from tests.support.process import Service
from tests.support.worker import HIGH, until

pytestmark = pytest.mark.kafka

FULL = dict.fromkeys(TOPS, LIMIT * RUN)


# Planned


async def test_a_planned_move_to_another_cluster_fewer_partitions_and_another_partitioner_loses_nothing(
    scenes, secure_broker
):
    """Whether the budgets are carried over from the source, or from a mirror of it; a worker then writes nothing."""
    old = await scenes(Application, partitions=4, partitioner="crc32")
    real = await old.spend(TOPS)
    await old.close_in_order()
    await _stays_closed(old)
    assert balances(await old.carry_over()) == real.spent
    mirror = await old.mirrored_to(secure_broker.bootstrap_servers)
    carried = await mirror.carry_over(partitioner="murmur2")  # its events know better
    assert balances(carried) == real.spent
    new = await old.followed_by(scenes, servers=secure_broker.bootstrap_servers, partitions=1)
    await goes_on(mirror, new, carried, real)


async def _stays_closed(old: Application) -> None:
    before = await old.ends("state", "alerts")
    await old.send("a", HIGH)
    worker = await old.start(ready=False)
    await old.parked(worker, Cause.CLOSED)
    assert worker.ready
    await old.stop(worker)
    assert await old.ends("state", "alerts") == before


# States that cannot be proved


async def _state_from_yesterday(old: Application) -> None:
    await old.spend(dict.fromkeys(TOPS, 1))
    yesterday = await old.live()
    await old.spend(dict.fromkeys(TOPS, 2))
    await old.put(yesterday)


Disaster = Callable[[Application], Awaitable[None]]
DISASTERS: dict[str, Disaster] = {
    "is empty": lambda old: old.make_anew("state"),
    "ends with event": _state_from_yesterday,
    "was created again": lambda old: old.make_anew("alerts"),
}
"""What happens to the state of both shards, by what a worker says of it."""


async def test_an_application_whose_state_is_given_up_loses_its_open_runs_and_no_more(
    scenes, topics, tmp_path
) -> None:
    """All disasters at once, each to an application of its own; without its alerts all is lost."""
    async with asyncio.TaskGroup() as drills:
        for number, (words, happens) in enumerate(DISASTERS.items()):
            (tmp_path / str(number)).mkdir()
            place = {"application": f"{topics.name('shop')}-{number}", "directory": tmp_path / str(number)}
            drills.create_task(_given_up(partial(scenes, **place), words, happens), name=words)


async def _given_up(scenes: Callable[..., Awaitable[Application]], words: str, happens: Disaster) -> None:
    old = await scenes(Application)
    real = await old.spend(TOPS)
    await happens(old)
    complete = words != "was created again"
    if complete:
        real = await old.accounts()
    await old.give_up(Cause.STATE_ROLLED_BACK, words)
    carried = await old.carry_over()
    assert balances(carried) == (real.held if complete else FULL)
    assert carried.complete is complete
    assert all("no proved balances" in note for note in old.notes)
    new = await old.followed_by(scenes)
    if not complete:
        with pytest.raises(ConfigError, match="the largest sensitivity"):
            new.config()
        # A monitor of the old application, on the query topic of the new one.
        hot = old.text(more="").partition("monitors:\n")[2].replace("name: hot", "name: next")
        await old.carry_over(more=hot.replace(old.queries, new.queries) + old.more)
    await goes_on(old, new, carried, real)


async def test_an_application_whose_sealing_key_is_lost_loses_its_open_runs_and_no_more(scenes) -> None:
    """What an owner proved when it closed its shard counts for nothing either: the proof needs the key."""
    old = await scenes(Application)
    real = await old.spend(TOPS)
    worker = await old.start()
    (reply,) = await old.close(shard=0)
    assert reply.accepted
    await old.parked(worker, Cause.CLOSED, shards=[0])
    await old.stop(worker)
    old.more = SEALED_ANEW
    with pytest.raises(CarryOverRefused, match="not closed yet: shard 0, 1"):
        await old.carry_over()
    await _stays_out_of_the_group(old)
    old.more = KEY_LOST
    await old.give_up(Cause.SEALING_KEY, "it is sealed with key")
    old.more = SEALED_ANEW
    carried = await old.carry_over()
    assert balances(carried) == real.held
    assert carried.complete
    await goes_on(old, await old.followed_by(scenes, more=SEALED_ANEW), carried, real)


async def _stays_out_of_the_group(old: Application) -> None:
    """A worker with another key leaves the shards to others, unless its configuration says that there are none."""
    worker = await old.start(ready=False)
    await until(lambda: worker.fault is not None and worker.fault.cause is Cause.SEALING_KEY, 30)
    await old.stop(worker)


async def test_what_a_worker_sent_and_never_committed_counts_as_spent(scenes) -> None:
    """Whoever reads uncommitted events saw it."""
    old = await scenes(Application)
    real = await old.spend(TOPS)
    shard = partition_of(b"d", old.partitions)
    newest = [record.value for record in await old.read("alerts") if record.partition == shard][-1]
    known = msgspec.json.decode(newest)
    start = lifecycle("first", dataset="d", account=account_of(0.4, 0.4, reserved=0.6))
    changed = {"type": EventType.RUN_STARTED, "id": "d/1", "sequence": known["sequence"] + 1, "data": start}
    sent = msgspec.json.encode(known | changed)
    await records.publish(old.servers, f"{old.application}.alerts", (shard, b"d", sent), commit=False)
    assert await old.accounts() == real
    await old.make_anew("state")
    await old.give_up(Cause.STATE_ROLLED_BACK, "is empty")
    carried = await old.carry_over()
    assert balances(carried) == real.held | {"d": RUN}
    await goes_on(old, await old.followed_by(scenes), carried, real)


# On the command line


Command = Callable[..., Awaitable[Ended]]


async def _serve(app: Application, tops: dict[str, int]) -> Service:
    """Start a worker, send it queries that become alerts, and wait until they are answered."""
    service = app.serve()
    await service.ready()
    for name, count in tops.items():
        await app.send(name, *[HIGH] * count)
    await service.until(lambda: service.offsets() >= sum(tops.values()))
    return service


async def test_an_application_is_closed_carried_over_and_audited_with_its_successor(stream_svt, scenes):
    old = await scenes(Application, datasets="today, tomorrow")
    new = await old.followed_by(scenes, datasets="today, tomorrow", create=False)
    name, successor = old.application, new.application
    service = await _serve(old, {"today": 4, "tomorrow": 1})
    await _close(stream_svt, service.config, name, successor)
    assert await service.end() == 0
    carry_over = ("carry-over", "-c", service.config, "--successor")
    second = await stream_svt(*carry_over, "second")
    assert (second.code, second.out) == (1, "")
    assert f"the application was closed for successor '{successor}': a second one would" in second.err
    missing = await stream_svt("check", "-c", new.write())
    assert missing.code == 2
    assert "cannot read 'carried.jsonl': No such file" in missing.out + missing.err
    carried = await stream_svt(*carry_over, successor)
    counts = Counter({partition_of(b"today", 2): 4}) + Counter({partition_of(b"tomorrow", 2): 1})
    where = ", ".join(f"{counts[shard]} of partition {shard}" for shard in range(2))
    assert (carried.code, carried.err.splitlines()) == (
        0,
        [
            "dataset 'today': epsilon 2.4 of 4 left",
            "dataset 'tomorrow': epsilon 3.4 of 4 left",
            f"topic '{old.queries}': continues on this cluster at offset {where}",
            f"Carried over from {name} to {successor}: 2 datasets, 2 of them with budget left.",
        ],
    )
    head, *lines = [json.loads(line) for line in carried.out.splitlines()]
    lines = [line for line in lines if line["line"] == "dataset"]
    assert (head["application"], head["successor"], head["complete"]) == (name, successor, True)
    assert {line["name"]: (line["limit"], line["spent"]) for line in lines} == {
        "today": (4_000_000_000, 1_600_000_000),
        "tomorrow": (4_000_000_000, 600_000_000),
    }
    await _go_on(stream_svt, service.config, old, new, carried.out)


async def _close(stream_svt: Command, config: Path, name: str, successor: str) -> None:
    """Close an application that runs; whatever is not exactly that is refused, and changes nothing."""
    early = await stream_svt("carry-over", "-c", config, "--successor", successor)
    assert (early.code, early.out) == (1, "")
    assert "not closed yet: shard 0, 1. 'stream-svt control close-application -c FILE" in early.err
    close = ("control", "close-application", "-c", config, "--successor")
    unasked = await stream_svt(*close, successor)
    assert unasked.code == 1
    assert f"Close all shards of {name} permanently?" in unasked.err
    assert "not confirmed; nothing was changed" in unasked.err
    first = await stream_svt(*close, successor, "--yes")
    assert (first.code, first.err) == (0, "")
    assert [line.partition(": ")[2].partition(":")[0] for line in first.out.splitlines()] == ["accepted"] * 2
    again = await stream_svt(*close, successor, "--yes")
    closed = f"the shard is closed permanently, for successor '{successor}'"
    assert (again.code, again.out) == (0, f"shard 0: accepted: {closed}\nshard 1: accepted: {closed}\n")
    other = await stream_svt(*close, "second", "--yes")
    assert (other.code, other.err) == (1, f"shard 0: refused: {closed}\nshard 1: refused: {closed}\n")

    async def is_shown() -> bool:
        return "closed permanently" in (await stream_svt("status", "-c", config, "--json")).out

    await until(is_shown)


async def _go_on(
    stream_svt: Command, earlier: Path, old: Application, new: Application, carried: str
) -> None:
    """Let the successor spend more, and audit both."""
    file, config = new.directory / "carried.jsonl", new.write()
    file.write_text("".join(carried.splitlines(keepends=True)[:-1]))
    cut = await stream_svt("check", "-c", config)
    assert cut.code == 2
    assert "the file is cut off, its last line is missing" in cut.out + cut.err
    file.write_text(carried)
    assert (await stream_svt("check", "-c", config, "--create-topics")).code == 0
    ready = await stream_svt("check", "-c", config)
    assert (ready.code, ready.out.splitlines()[-1].startswith("No problem found. Tried: ")) == (0, True)
    assert f"application '{old.application}' was closed for this one" in ready.out
    assert "ok   carried_over: 2 datasets from its file\n" in ready.out
    begins = f"topic '{new.queries}' is read from its begin (topics.start_at) on {new.partitions} partitions"
    assert f"note carried_over: {begins}\n" in ready.out
    # A copy of the file in which somebody put another successor's name.
    another = replace(new, application="another", more=new.more.replace("carried.j", "copied.j"))
    copied = msgspec.structs.replace(parse(carried.splitlines()), successor="another")
    (new.directory / "copied.jsonl").write_text("".join(f"{line}\n" for line in copied.lines()))
    refused = await stream_svt("check", "-c", another.write(), "--create-topics")
    assert refused.code == 2
    said = f"application '{old.application}' was closed for '{new.application}': two successors would spend"
    assert said in refused.out
    service = await _serve(new, {"today": 3, "tomorrow": 13})
    assert await service.end() == 0
    audit = ("audit", "-c", config, "--before", earlier)
    both = await stream_svt(*audit)
    assert both.code == 0
    assert "today: epsilon 2.6 of 4 spent, 1.6 of it by an earlier application" in both.out
    assert "tomorrow: epsilon 3.6 of 4 spent, 0.6 of it by an earlier application" in both.out
    assert "today: epsilon 1.6 of 4 spent, 4 alerts" in both.out
    balanced = [line for line in both.out.splitlines() if line.startswith("The ledgers balance: ")]
    topics = [f"{new.application}.alerts", f"{old.application}.alerts"]
    assert [line.split(" on ")[1].split(",")[0] for line in balanced] == topics
    assert (await stream_svt(*audit, "--state")).code == 0
    shown = json.loads((await stream_svt(*audit, "--json")).out)
    assert (shown["balances"], [one["balances"] for one in shown["before"]]) == (True, [True])
    turned = await stream_svt("audit", "-c", earlier, "--before", config)
    assert turned.code == 1
    assert f"FAIL it does not continue the budgets of application '{new.application}'" in turned.err
