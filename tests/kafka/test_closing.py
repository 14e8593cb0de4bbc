"""An application that is closed on a real broker, its budgets carried over, and a successor that goes on.

Each drill ends an application in another way: in order, behind a mirror, or with a state that cannot be proved. Each
states what the carried file says was spent beside what really was, lets the successor spend the rest, and holds both to
every limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from stream_svt.protocol.carry_over import CarryOverRefused
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.codec import home
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
    await goes_on(old, await stage.new(), carried, real)


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
