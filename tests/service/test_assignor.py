"""Which worker gets which shard: fair, and as few as possible move."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from stream_svt.service.assignor import StickyAssignor, share


def moved(before: dict[str, list[int]], after: dict[str, list[int]]) -> int:
    """How many shards have another worker than before, among those that had one that is still there."""
    owner = {shard: member for member, shards in before.items() for shard in shards}
    return sum(
        owner.get(shard) in after and owner[shard] != member
        for member, shards in after.items()
        for shard in shards
    )


def claims(given: dict[str, list[int]]) -> dict[str, dict[int, int]]:
    return {member: dict.fromkeys(shards, 1) for member, shards in given.items()}


def test_nobody_has_more_than_one_above_another() -> None:
    chance = random.Random(1)
    for _ in range(500):
        shards = range(chance.randint(0, 20))
        members = [f"m{number}" for number in range(chance.randint(1, 7))]
        held = {
            member: {chance.randrange(25): chance.randrange(9) for _ in range(chance.randint(0, 9))}
            for member in members
        }
        given = share(shards, held)
        assert sorted(shard for mine in given.values() for shard in mine) == list(shards)
        counts = [len(mine) for mine in given.values()]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("shards", "members"), [(4, 1), (64, 5), (7, 3), (8, 4), (3, 4)])
def test_a_worker_that_joins_takes_its_share_and_nothing_else_moves(shards: int, members: int) -> None:
    before = share(range(shards), {f"m{number}": {} for number in range(members)})
    after = share(range(shards), {**claims(before), "a-new-one": {}})
    assert moved(before, after) == len(after["a-new-one"])
    assert len(after["a-new-one"]) in {shards // (members + 1), shards // (members + 1) + 1}


def test_a_worker_that_leaves_gives_its_own_away_and_nothing_else_moves() -> None:
    before = share(range(64), {f"m{number}": {} for number in range(5)})
    left = {member: shards for member, shards in before.items() if member != "m2"}
    assert moved(left, share(range(64), claims(left))) == 0


def test_of_two_that_hold_one_shard_the_one_that_went_on_keeps_it() -> None:
    assert share([0, 1], {"a-frozen": {0: 10, 1: 10}, "owner": {0: 12, 1: 12}, "c": {}}) == {
        "owner": [0],
        "a-frozen": [1],
        "c": [],
    }
    assert share([0, 1], {"owner": {0: 12}, "z-frozen": {0: 10}})["owner"] == [0]


@pytest.mark.parametrize(
    "held", [b"", b"x", b"[1]", b"null", b'[["a", 1]]', b"\xff", b"[[0, -5]]", b"[[-1, 5]]"]
)
def test_a_member_that_says_nothing_readable_holds_nothing(held: bytes) -> None:
    ours = StickyAssignor(lambda: {1: 5})
    members = {
        "odd": ConsumerProtocolMemberMetadata(0, ["control"], b'{"held": %s}' % held),
        "us": ConsumerProtocolMemberMetadata.decode(ours.metadata(["control"]).encode()),
    }
    cluster = SimpleNamespace(partitions_for_topic={"control": {0, 1}}.get)
    given = ours.assign(cluster, members)
    assert {member: assignment.assignment for member, assignment in given.items()} == {
        "us": [("control", [1])],
        "odd": [("control", [0])],
    }
