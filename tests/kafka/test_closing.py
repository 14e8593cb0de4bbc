"""An application that is closed on a real broker, its budgets carried over, and a successor that goes on.

Each drill ends an application in another way: in order, behind a mirror, or with a state that cannot be proved. Each
states what the carried file says was spent beside what really was, lets the successor spend the rest, and holds both to
every limit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stream_svt.errors import ConfigError
from stream_svt.protocol.carry_over import CarryOverRefused
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.codec import home
from tests.support import records
from tests.support.closing import (
    KEY_LOST,
    LIMIT,
    RUN,
    SEALED_ANEW,
    TOPS,
    Application,
    Spent,
    Stage,
    balances,
    goes_on,
)
from tests.support.command_line import Ended
from tests.support.keys import write_secrets
from tests.support.process import Service, free_port
from tests.support.worker import Scene, until

pytestmark = pytest.mark.kafka

FULL = dict.fromkeys(TOPS, LIMIT * RUN)


# Planned


async def test_a_planned_move_to_another_cluster_and_fewer_partitions_loses_nothing(
    stage: Stage, secure_broker
) -> None:
    """Whether the budgets are carried over from the source, or from a mirror of it."""
    old = await stage.old(partitions=4)
    real = await old.spend(TOPS)
    await old.close_in_order(stage.successor)
    assert balances(await old.carry_over(stage.successor)) == real.spent
    mirror = await old.mirrored_to(secure_broker.bootstrap_servers)
    carried = await mirror.carry_over(stage.successor)
    assert balances(carried) == real.spent
    new = await stage.new(servers=secure_broker.bootstrap_servers, partitions=1)
    await goes_on(mirror, new, carried, real)


async def test_a_planned_move_without_a_sealing_key_counts_open_runs_in_full(
    stage: Stage, secure_broker
) -> None:
    """And of a mirror nothing is left: nothing proves that it holds all."""
    old = await stage.old(more="")
    real = await old.spend(TOPS)
    await old.close_in_order(stage.successor)
    mirror = await old.mirrored_to(secure_broker.bootstrap_servers)
    assert balances(await mirror.carry_over(stage.successor)) == FULL
    carried = await old.carry_over(stage.successor)
    assert balances(carried) == real.held
    assert [note.partition(";")[0] for note in old.notes] == [
        f"shard {n}: no proved balances" for n in (0, 1)
    ]
    await goes_on(old, await stage.new(more=""), carried, real)


async def test_a_mirror_of_a_source_that_died_has_something_left_only_where_the_operator_says_so(
    stage: Stage, secure_broker
) -> None:
    old = await stage.old()
    real = await old.spend(TOPS)
    mirror = await old.mirrored_to(secure_broker.bootstrap_servers)
    for source_ended, left, said in (
        (False, FULL, "nobody says that it holds the source's last event"),
        (True, real.held, "no proved balances"),
    ):
        carried = await mirror.carry_over(stage.successor, source_ended=source_ended)
        assert balances(carried) == left
        assert all(said in note for note in mirror.notes)
        assert carried.complete is source_ended
    new = await stage.new(servers=secure_broker.bootstrap_servers)
    await goes_on(mirror, new, carried, real)


# States that cannot be proved


@dataclass(frozen=True)
class Disaster:
    """What happens to the state of both shards, what a worker says of it, and what is lost by it.

    ``happens`` is called with what was spent of each dataset. ``left`` tells what has to count as spent.
    """

    cause: Cause
    words: str
    happens: Callable[[Stage, Application], Awaitable[None]]
    left: Callable[[Spent], dict[str, int]] = lambda real: real.held


async def _state_from_yesterday(stage: Stage, old: Application) -> None:
    await old.spend(dict.fromkeys(TOPS, 1))
    yesterday = await old.scene.live()
    await old.spend(dict.fromkeys(TOPS, 2))
    await old.put(yesterday)


async def _state_one_transaction_old(stage: Stage, old: Application) -> None:
    await old.put(await old.before_publication())


async def _state_of_another_application(stage: Stage, old: Application) -> None:
    scene = Scene(stage.servers, f"{stage.name}-stranger", partitions=2, datasets="a, b, c, d", limit=LIMIT)
    async with scene.on_stage():
        stranger = Application(scene, stage.directory)
        await stranger.spend({"a": 1, "b": 1})
        await old.put(await stranger.scene.live())


DISASTERS = {
    "state made anew": Disaster(
        Cause.STATE_ROLLED_BACK, "is empty", lambda _, old: old.scene.make_anew("state")
    ),
    "state from yesterday": Disaster(Cause.STATE_ROLLED_BACK, "ends with event", _state_from_yesterday),
    "state one transaction old": Disaster(
        Cause.STATE_ROLLED_BACK, "which the state still has to publish", _state_one_transaction_old
    ),
    "state of another application": Disaster(
        Cause.STATE_UNREADABLE, "another place", _state_of_another_application
    ),
    "alerts made anew": Disaster(
        Cause.STATE_ROLLED_BACK,
        "does not show event",
        lambda _, old: old.scene.make_anew("alerts"),
        lambda real: FULL,
    ),
}


async def test_an_application_whose_state_is_given_up_loses_its_open_runs_and_no_more(
    stage: Stage,
) -> None:
    """All disasters at once, each to an application of its own."""
    async with asyncio.TaskGroup() as drills:
        for number, name in enumerate(DISASTERS):
            drills.create_task(_given_up(stage.beside(number), DISASTERS[name]), name=name)


async def _given_up(stage: Stage, disaster: Disaster) -> None:
    old = await stage.old()
    real = await old.spend(TOPS)
    await disaster.happens(stage, old)
    if disaster.left(real) != FULL:
        real = await old.told()
    await old.give_up(stage.successor, (0, 1), disaster.cause, disaster.words)
    carried = await old.carry_over(stage.successor)
    assert balances(carried) == disaster.left(real)
    assert carried.complete is (disaster.left(real) != FULL)
    assert all("no proved balances" in note for note in old.notes)
    new = await stage.new()
    if not carried.complete:
        with pytest.raises(ConfigError, match="nobody knows the largest sensitivity"):
            new.config()
        await old.carry_over(stage.successor, more=_declared(old, new) + old.more)
    await goes_on(old, new, carried, real)


def _declared(old: Application, new: Application) -> str:
    """Return a monitor of the old application on the query topic of the new one."""
    text = old.scene.text()
    hot = text[text.index("  - name: hot") :]
    return hot.replace("name: hot", "name: next").replace(old.scene.queries, new.scene.queries)


async def test_an_application_whose_sealing_key_is_lost_loses_its_open_runs_and_no_more(stage: Stage) -> None:
    """What an owner proved when it closed its shard counts for nothing either: the proof needs the key."""
    old = await stage.old()
    real = await old.spend(TOPS)
    worker = await old.scene.start(old.config())
    (reply,) = await old.close(stage.successor, shard=0)
    assert reply.accepted
    await old.parked(worker, {Cause.CLOSED}, [0])
    await old.scene.stop(worker)
    old.more = SEALED_ANEW
    with pytest.raises(CarryOverRefused, match="not closed yet: shard 0, 1"):
        await old.carry_over(stage.successor)
    await _stays_out_of_the_group(old)
    old.more = KEY_LOST
    await old.give_up(stage.successor, (0, 1), Cause.SEALING_KEY, "it is sealed with key")
    old.more = SEALED_ANEW
    carried = await old.carry_over(stage.successor)
    assert balances(carried) == real.held
    assert carried.complete
    await goes_on(old, await stage.new(more=SEALED_ANEW), carried, real)


async def _stays_out_of_the_group(old: Application) -> None:
    """A worker with another key leaves the shards to others, unless its configuration says that there are none."""
    worker = await old.scene.start(old.config(), ready=False)
    await until(lambda: worker.fault is not None and worker.fault.cause is Cause.SEALING_KEY, 30)
    await old.scene.stop(worker)


async def test_one_damaged_shard_of_four_costs_its_own_open_runs_and_no_others(stage: Stage) -> None:
    old = await stage.old(partitions=4)
    real = await old.spend(TOPS)
    live = dict(await old.scene.live())
    place = (0, b"d/a")
    live[place] = live[place][:-1] + bytes([live[place][-1] ^ 1])
    await old.put(live)
    worker = await old.scene.start(old.config(), ready=False)
    await old.parked(worker, {Cause.STATE_UNREADABLE}, [0])
    replies = await old.close(stage.successor, patience=2)
    assert [reply.accepted for reply in replies] == [None, True, True, True]
    assert "will be carried out once a worker owns the shard" in replies[0].message
    with pytest.raises(CarryOverRefused, match="not closed yet: shard 0"):
        await old.carry_over(stage.successor)
    await old.scene.stop(worker)
    await old.give_up(stage.successor, [0], Cause.STATE_UNREADABLE, "it was changed or cut")
    carried = await old.carry_over(stage.successor)
    damaged = {name for name in TOPS if home(name.encode(), 4) == 0}
    assert damaged == {"a", "b"}
    expected = real.spent | {name: real.held[name] for name in damaged}
    assert balances(carried) == expected
    assert [note.partition(":")[0] for note in old.notes] == ["shard 0"]
    await goes_on(old, await stage.new(), carried, real)


Command = Callable[..., Awaitable[Ended]]


class Operator:
    """One application's configuration file, its worker, and the commands given with the file."""

    def __init__(
        self, servers: str, directory: Path, application: str, partitions: int, more: str = ""
    ) -> None:
        self.servers = servers
        self.application = application
        self.partitions = partitions
        self.port = free_port()
        self.log = directory / f"{application}.log"
        self.config = directory / f"{application}.yaml"
        text = Scene(servers, application, partitions=partitions, datasets="today, tomorrow").text()
        sections = f"sealing: {{key_file: key}}\nweb: {{port: {self.port}}}\n"
        self.config.write_text(text + sections + more)

    async def serve(self, tops: dict[str, int]) -> Service:
        """Start a worker, send it queries that become alerts, and wait until they are answered."""
        service = Service(self.config, self.port, self.log)
        await service.ready()
        queries = [
            (name, {"id": f"{name}-{number}", "value": 50_000, "series": f"item-{number}"})
            for name, count in tops.items()
            for number in range(count)
        ]
        topic = f"{self.application}.counts"
        await records.send_queries(self.servers, topic, *queries, partitions=self.partitions)

        wanted = sum(tops.values())
        await service.until(
            lambda: sum(sum(shard["offsets"].values()) for shard in service.shards().values()) >= wanted
        )
        return service


async def test_an_application_is_closed_carried_over_and_audited_with_its_successor(
    stream_svt, broker, topics, tmp_path
) -> None:
    write_secrets(tmp_path, {"key": bytes(range(32)).hex()})
    name, successor, servers = topics.name("shop"), topics.name("next"), broker.bootstrap_servers
    old = Operator(servers, tmp_path, name, 2)
    new = Operator(servers, tmp_path, successor, 3, "carried_over: carried.jsonl\n")
    assert (await stream_svt("check", "-c", old.config, "--create-topics")).code == 0
    service = await old.serve({"today": 4, "tomorrow": 1})
    try:
        await _close(stream_svt, old, successor)
    finally:
        assert await service.end() == 0
    carry_over = ("carry-over", "-c", old.config, "--successor")
    second = await stream_svt(*carry_over, "second")
    assert (second.code, second.out) == (1, "")
    assert f"the application was closed for successor '{successor}': a second one would" in second.err
    missing = await stream_svt("check", "-c", new.config)
    assert missing.code == 2
    assert "cannot read 'carried.jsonl': No such file" in missing.out + missing.err
    carried = await stream_svt(*carry_over, successor)
    said = f"Carried over from {name} to {successor}: 2 datasets, 2 of them with something left.\n"
    assert (carried.code, carried.err) == (0, said)
    head, *lines = [json.loads(line) for line in carried.out.splitlines()]
    assert (head["application"], head["successor"], head["complete"]) == (name, successor, True)
    assert {line["name"]: (line["limit"], line["spent"]) for line in lines} == {
        "today": ("4", "1.6"),
        "tomorrow": ("4", "0.6"),
    }
    await _go_on(stream_svt, old, new, carried.out)


async def _close(stream_svt: Command, old: Operator, successor: str) -> None:
    """Close an application that runs; whatever is not exactly that is refused, and changes nothing."""
    early = await stream_svt("carry-over", "-c", old.config, "--successor", successor)
    assert (early.code, early.out) == (1, "")
    assert "not closed yet: shard 0, 1. 'stream-svt control close-application -c FILE" in early.err
    close = ("control", "close-application", "-c", old.config, "--successor")
    unasked = await stream_svt(*close, successor)
    assert unasked.code == 1
    assert f"Close all shards of {old.application} for ever?" in unasked.err
    assert "not confirmed; nothing was changed" in unasked.err
    first = await stream_svt(*close, successor, "--yes")
    assert (first.code, first.err) == (0, "")
    assert [line.partition(": ")[2].partition(":")[0] for line in first.out.splitlines()] == ["accepted"] * 2
    again = await stream_svt(*close, successor, "--yes")
    closed = f"the shard is closed for ever, for successor '{successor}'"
    assert (again.code, again.out) == (0, f"shard 0: accepted: {closed}\nshard 1: accepted: {closed}\n")
    other = await stream_svt(*close, "second", "--yes")
    assert (other.code, other.err) == (1, f"shard 0: refused: {closed}\nshard 1: refused: {closed}\n")
    async with asyncio.timeout(20):
        while "closed for ever" not in (await stream_svt("status", "-c", old.config)).out:
            await asyncio.sleep(0.1)


async def _go_on(stream_svt: Command, old: Operator, new: Operator, carried: str) -> None:
    """Let the successor spend more, and audit both."""
    file = new.config.parent / "carried.jsonl"
    file.write_text("".join(carried.splitlines(keepends=True)[:-1]))
    cut = await stream_svt("check", "-c", new.config)
    assert cut.code == 2
    assert "it has 1 datasets and says 2: lines are missing, or were added" in cut.out + cut.err
    file.write_text(carried)
    assert (await stream_svt("check", "-c", new.config, "--create-topics")).code == 0
    ready = await stream_svt("check", "-c", new.config)
    assert (ready.code, ready.out.endswith("Ready to run.\n")) == (0, True)
    assert f"application '{old.application}' was closed for this one" in ready.out
    await _refused_for_another(stream_svt, old, new)
    service = await new.serve({"today": 3, "tomorrow": 13})
    assert await service.end() == 0
    audit = ("audit", "-c", new.config, "--before", old.config)
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
    turned = await stream_svt("audit", "-c", old.config, "--before", new.config)
    assert turned.code == 1
    assert f"FAIL it does not go on with the budgets of application '{new.application}'" in turned.err


async def _refused_for_another(stream_svt: Command, old: Operator, new: Operator) -> None:
    """A copy of the file in which somebody put another successor's name."""
    directory = new.config.parent
    another = Operator(new.servers, directory, f"{new.application}-b", 3, "carried_over: copied.jsonl\n")
    carried = (directory / "carried.jsonl").read_text()
    (directory / "copied.jsonl").write_text(carried.replace(new.application, another.application))
    refused = await stream_svt("check", "-c", another.config, "--create-topics")
    assert refused.code == 2
    said = f"application '{old.application}' was closed for '{new.application}': two successors would spend"
    assert said in refused.out
