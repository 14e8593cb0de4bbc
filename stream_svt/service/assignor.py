"""Which worker gets which shard: none more than one above another, and as few as possible move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from stream_svt.protocol.configuration import FORMAT

_VERSION = 0


_Count = Annotated[int, msgspec.Meta(ge=0)]


class UserData(msgspec.Struct, frozen=True):
    """What a worker tells when it joins.

    Attributes:
        held: The shards that it holds, each with its number of transactions.
        reads: The newest format of a configuration that it reads.
    """

    held: list[tuple[_Count, _Count]] = []
    reads: _Count = 0


class StickyAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """Leaves shards with the workers that hold them; the group's first worker decides by it for all.

    Its name is this service's own: whoever else joins the group is refused, where it would be given shards.

    Args:
        held: Returns the shards that this worker holds, each with its number of transactions. Of two that
            hold one the smaller number stood still while the other went on.
    """

    name = "stream-svt"

    def __init__(self, held: Callable[[], Mapping[int, int]]) -> None:
        self._held = held

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this worker tells whoever decides."""
        told = UserData(list(self._held().items()), FORMAT)
        return ConsumerProtocolMemberMetadata(_VERSION, list(topics), msgspec.json.encode(told))

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Return the shards of every worker."""
        given: dict[str, list[tuple[str, list[int]]]] = {member: [] for member in members}
        for topic in sorted({topic for metadata in members.values() for topic in metadata.subscription}):
            claims = {
                member: dict(user_data(metadata.user_data).held)
                for member, metadata in members.items()
                if topic in metadata.subscription
            }
            for member, shards in share(cluster.partitions_for_topic(topic) or (), claims).items():
                given[member].append((topic, shards))
        return {
            member: ConsumerProtocolMemberAssignment(_VERSION, topics, b"")
            for member, topics in given.items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Nothing is kept: what is held is asked for when it is told."""


def share(shards: Iterable[int], claims: Mapping[str, Mapping[int, int]]) -> dict[str, list[int]]:
    """Return the shards of each worker, sorted, from what each of them holds."""
    left = set(shards)
    holder: dict[int, tuple[int, str]] = {}
    for member, held in claims.items():
        for shard in left.intersection(held):
            holder[shard] = max(holder.get(shard, (-1, "")), (held[shard], member))
    mine: dict[str, list[int]] = {member: [] for member in claims}
    for shard in sorted(holder):
        mine[holder[shard][1]].append(shard)
    # Whoever holds most keeps the one more that some must have.
    order = sorted(claims, key=lambda member: (-len(mine[member]), member))
    least, more = divmod(len(left), len(order))
    quota = {member: least + (place < more) for place, member in enumerate(order)}
    given = {member: mine[member][: quota[member]] for member in order}
    left -= {shard for numbers in given.values() for shard in numbers}
    spare = iter(sorted(left))
    for member, numbers in given.items():
        numbers += [next(spare) for _ in range(quota[member] - len(numbers))]
        numbers.sort()
    return given


def user_data(data: Any) -> UserData:  # noqa: ANN401  bytes of another member
    """Return what a worker tells; nothing where that cannot be read."""
    try:
        return msgspec.json.decode(data, type=UserData)
    except (msgspec.DecodeError, TypeError):
        return UserData()
