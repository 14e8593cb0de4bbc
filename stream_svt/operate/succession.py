"""Compares a successor with the application whose budgets it continues, for ``check``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from aiokafka import TopicPartition

from stream_svt.errors import BrokerError
from stream_svt.kafka import clients as kafka
from stream_svt.operate.control import newest_events
from stream_svt.operate.findings import CheckContext, Finding, note, ok, problem
from stream_svt.protocol.state_records import created_again
from stream_svt.wording import counted, listed

SHOWN = 10
"""Datasets and partitions that a message names."""
_SUBJECT = "carried_over"


async def predecessor(context: CheckContext) -> AsyncIterator[Finding]:
    """Check that the predecessor was closed for this application, if there is one and its alert topic can be read."""
    config, cluster, carried = context.config, context.cluster, context.config.spec.carried
    if not carried.application or carried.cluster != context.topology.cluster_id:
        return
    doing = f"reading the end of alert topic {carried.alerts!r}"
    try:
        count = (await kafka.partition_counts(cluster, doing)).get(carried.alerts, 0)
        partitions = [TopicPartition(carried.alerts, shard) for shard in range(count)]
        async with kafka.started(cluster.reader(), doing) as reader:
            ends = await newest_events(reader, partitions) if partitions else {}
    except BrokerError as error:
        yield note(_SUBJECT, str(error))
        return
    name = f"application {carried.application!r}"
    others = sorted({end.successor for end in ends.values()} - {config.spec.application, ""})
    still_open = ", ".join(str(shard) for shard, end in sorted(ends.items()) if not end.successor)
    if others:
        message = f"{name} was closed for {others[0]!r}: two successors would spend the same budget"
    elif still_open:
        message = f"{name} is not closed: shard {still_open} may still spend what was carried over"
    elif not ends:
        message = f"alert topic {carried.alerts!r} has no events of {name}: nothing shows that it was closed"
    else:
        message = f"{name} was closed for this one"
    finding = problem if others or still_open else ok if ends else note
    yield finding(_SUBJECT, message)


async def move(context: CheckContext) -> AsyncIterator[Finding]:
    """Yield what a successor continues with at its first start, and datasets that no monitor watches then."""
    config, topology = context.config, context.topology
    if not config.spec.carried.application or await context.states():
        return
    carried, (running, waiting, undeclared) = config.spec.carried, config.spec.going_on()
    periods = f"; {listed(running, SHOWN)} in the period in progress" if running else ""
    yield ok(_SUBJECT, f"{counted(len(carried.datasets), 'dataset')} from its file{periods}")
    if undeclared:
        message = (
            f"nothing declares {listed(undeclared, SHOWN)}, which the file has: their queries are refused"
        )
        yield note(_SUBJECT, message)
    if waiting:
        message = f"the file lacks {listed(waiting, SHOWN)}: nobody watches them in the period in progress"
        yield note(
            _SUBJECT, f"{message}; if the earlier application never had them, declare them with new: true"
        )
    same_cluster = carried.cluster == topology.cluster_id
    left: dict[str, dict[int, int]] = {}
    for topic in config.spec.topics():
        stopped = carried.offsets(topic) if same_cluster and topic in topology.partitions else {}
        left[topic] = {
            shard: offset for shard, offset in stopped.items() if shard < topology.partitions[topic]
        }
    places = [TopicPartition(topic, shard) for topic, known in left.items() for shard in known]
    replaced, spans = set[str](), dict[TopicPartition, tuple[int, int]]()
    if places:
        doing = "reading the offsets of query topics"
        spans, ids = await kafka.spans_and_ids(context.cluster, places, doing)
        replaced = created_again(carried.topic_ids, ids)
    for topic, known in left.items():
        if lacking := config.topics.partitions - len(known):
            begin = "begin" if config.topics.start_at == "earliest" else "end"
            where = "begin" if topic in config.spec.counts_topics() else f"{begin} (topics.start_at)"
            message = f"topic {topic!r} is read from its {where} on {counted(lacking, 'partition')}"
            yield note(_SUBJECT, message)
        if known:
            held = {one.partition: span for one, span in spans.items() if one.topic == topic}
            yield _positions(topic, known, held, is_new=topic in replaced)


def _positions(
    topic: str, stopped: Mapping[int, int], held: Mapping[int, tuple[int, int]], *, is_new: bool
) -> Finding:
    """Compare the positions of an earlier application, by partition, with the offsets that a topic holds."""
    remedy = (
        "their shards will wait for 'stream-svt control accept-loss'; a topic of another name begins anew"
    )
    if is_new:
        return problem(
            _SUBJECT, f"topic {topic!r} was created again after the earlier application read it: {remedy}"
        )
    gone = [
        f"partition {shard} from offset {stopped[shard]}, which holds {first} to {end}"
        for shard, (first, end) in held.items()
        if not first <= stopped[shard] <= end
    ]
    if gone:
        message = f"records of topic {topic!r} are gone that nobody read: {listed(gone, SHOWN)}"
        return problem(_SUBJECT, f"{message}: {remedy}")
    behind = sum(end - stopped[shard] for shard, (_, end) in held.items())
    return ok(_SUBJECT, f"topic {topic!r} continues where it was left, {behind} offsets before its end")
