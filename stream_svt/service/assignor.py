"""Which worker gets which shard: none more than one above another, and as few as possible move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

_VERSION = 0
_Count = Annotated[int, msgspec.Meta(ge=0)]
_HELD = msgspec.json.Decoder(list[tuple[_Count, _Count]])


class StickyAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """Leaves shards with the workers that hold them; the group's first worker decides by it for all.

    Its name is this service's own: whoever else joins the group is refused, where it would be given shards. A worker
    tells which shards it holds, each with its number of transactions: of two that hold one the smaller number stood
    still while the other went on.
    """

    name = "stream-svt"

    def __init__(self, held: Callable[[], Mapping[int, int]]) -> None:
        self._held = held

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this worker tells whoever decides."""
        held = msgspec.json.encode(list(self._held().items()))
        return ConsumerProtocolMemberMetadata(_VERSION, list(topics), held)

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Return the shards of every worker."""
        given: dict[str, list[tuple[str, list[int]]]] = {member: [] for member in members}
        for topic in sorted({topic for metadata in members.values() for topic in metadata.subscription}):
            claims = {
                member: _held_by(metadata.user_data)
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


def _held_by(told: Any) -> dict[int, int]:  # noqa: ANN401  bytes of another member
    """Return the shards that a worker tells it holds; none where that cannot be read."""
    try:
        return dict(_HELD.decode(told))
    except (msgspec.DecodeError, TypeError):
        return {}
