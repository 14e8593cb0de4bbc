"""Findings of `check` about a running application: positions that the topics no longer have, parked shards."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final

from aiokafka import TopicPartition

from stream_svt.application.config import Config
from stream_svt.kafka import clients as kafka
from stream_svt.monitor.state.snapshot import ProgressRecord, from_bytes
from stream_svt.operate.findings import CheckContext, Finding, note, ok, problem
from stream_svt.protocol.state_records import Meta, created_again
from stream_svt.settings.application import ApplicationSpec
from stream_svt.wording import counted, named
from stream_svt.worker.config_versions import declared_in, workers

SHARDS_SHOWN: Final = 20
"""Shards that a message names."""
SECONDS: Final = 3.0
"""Seconds in which a worker's status page has to answer."""


async def positions(context: CheckContext) -> AsyncIterator[Finding]:
    """Compare the offsets and topic ids in the shards' states with the topics: a difference parks a shard.

    Query topics are taken from the version applied last. States that cannot be opened are left out.
    """
    config, cluster, own = context.config, context.cluster, context.config.topics
    if not context.fits(own.state) or not await context.states():
        return
    spec = declared_in(await context.applied()) or config.spec
    metas = await context.metas()
    alerts, names = own.alerts, sorted({own.alerts, own.state, *spec.topics()})
    doing = "comparing stored offsets with the topics"
    counts = await kafka.partition_counts(cluster, doing)
    partitions = [
        TopicPartition(name, shard) for name in names for shard in metas if counts.get(name, 0) > shard
    ]
    if not partitions:
        return
    spans, ids = await kafka.spans_and_ids(cluster, partitions, doing)
    found, state = 0, own.state
    replaced = {shard: created_again(meta.topic_ids, ids) for shard, meta in metas.items()}
    again = [shard for shard in metas if state in replaced[shard]]
    if again:
        found += 1
        yield problem(
            "topics.state",
            f"topic {state!r} was created again after {named('shard', again, SHARDS_SHOWN)} wrote to it: unless "
            "all records were put back, they park as state-unreadable; 'stream-svt audit -c FILE --state' tells",
        )
    for shard, meta in metas.items():
        held = {tp.topic: span for tp, span in spans.items() if tp.partition == shard}
        for one in (
            *_alerts(shard, meta, alerts, held, replaced[shard]),
            *_queries(shard, meta, spec, held, replaced[shard]),
        ):
            found += 1
            yield one
    if not found:
        yield ok("positions", f"the topics hold what {counted(len(metas), 'shard')} will read next")


def _alerts(
    shard: int, meta: Meta, topic: str, held: Mapping[str, tuple[int, int]], replaced: set[str]
) -> Iterator[Finding]:
    if topic not in held or not meta.published:
        return
    first, end = held[topic]
    if topic in replaced:
        why = "was created again after its shard published events"
    elif end < meta.alert_end - 1 or first > meta.alert_end:
        why = f"holds offsets {first} to {end}, and the state saw its end at {meta.alert_end}"
    else:
        return
    yield problem(
        "topics.alerts",
        f"partition {shard} of alert topic {topic!r} {why}: events are gone, and the shard parks as "
        "state-rolled-back at its next takeover; the runbook says what to do (ShardParked)",
    )


def _queries(
    shard: int, meta: Meta, spec: ApplicationSpec, held: Mapping[str, tuple[int, int]], replaced: set[str]
) -> Iterator[Finding]:
    if meta.progress is None:
        return
    topics, counts = {one.name: one.topic for one in spec.monitors}, spec.counts_topics()
    progress = from_bytes(ProgressRecord, meta.progress, key="meta")
    next_offsets: dict[str, int] = {}
    for monitor, (offset, *_) in progress.positions.items():
        topic = topics.get(monitor, "")
        if topic in held:
            next_offsets[topic] = min(next_offsets.get(topic, offset), offset)
    for topic, offset in next_offsets.items():
        first, end = held[topic]
        if first <= offset <= end and not (offset and topic in replaced):
            continue
        again = "was created again and " if topic in replaced else ""
        what, place = f"topic {topic!r} on from offset {offset}; it {again}now holds {first} to {end}", offset
        if topic in counts:
            what, place = f"counts of {topic!r}, which {again}lacks the next ones", 0
        yield problem(
            "monitors.topic",
            f"shard {shard} reads {what}: records are gone, and the shard parks as records-lost. 'stream-svt control "
            f"accept-loss -c FILE --shard {shard} --topic {topic} --offset {place}' continues",
        )


async def shards(context: CheckContext) -> AsyncIterator[Finding]:
    """Ask the status pages of all members of the group which shards are parked."""
    config = context.config
    members = [name for name, _ in await workers(config, context.cluster)]
    answers = await pages(config, members)
    for answer in answers:
        for shard in answer["shards"]:
            if shard["state"] == "parked":
                yield problem(
                    "shards",
                    f"shard {shard['shard']} is parked at worker {answer['worker']}, {shard['cause']}: "
                    f"{shard['reason']}",
                )
    if silent := without_page(config, len(members), answers):
        yield note("shards", silent)
    elif members:
        yield ok("shards", f"asked the status pages of {counted(len(members), 'worker')}")


async def pages(config: Config, members: Iterable[str]) -> list[dict[str, Any]]:
    """Return the answers of the status pages at the hosts of the group's members and at ``web.host``, by worker."""
    hosts = sorted({name.rpartition(" at ")[2] for name in members} | {config.web.host})
    answers = await asyncio.gather(*(asyncio.to_thread(_status, config, host) for host in hosts))
    return [*{answer["worker"]: answer for answer in answers if answer is not None}.values()]


def without_page(config: Config, members: int, answers: Iterable[Mapping[str, Any]]) -> str:
    """Return the text about workers whose pages do not answer; "" if all do."""
    silent = members - sum(answer["fault"] is None for answer in answers)
    if silent <= 0:
        return ""
    return (
        f"{silent} of {counted(members, 'worker')} answered no request for a status page at port "
        f"{config.web.port}: the states of their shards are not known here; 'stream-svt status --url URL' asks one. If "
        "the worker has another STREAM_SVT_WEB_PORT, set it here, too"
    )


def _status(config: Config, host: str) -> dict[str, Any] | None:
    """Return the answer of a worker of this application, or None."""
    address = f"[{host}]" if ":" in host else host
    try:
        # The pages are on machines of this application: no proxy is used.
        answer = ask(f"http://{address}:{config.web.port}", SECONDS, proxy=False)
    except (OSError, ValueError):
        return None
    return answer if answer.get("application") == config.spec.application else None


def ask(url: str, seconds: float, *, proxy: bool) -> dict[str, Any]:
    """Return the status of the worker whose pages are at an address; raises OSError or ValueError without one."""
    opener = urllib.request.build_opener(*([] if proxy else [urllib.request.ProxyHandler({})]))
    with opener.open(url.rstrip("/") + "/api/v1/status", timeout=seconds) as response:
        answer = json.load(response)
    if not isinstance(answer, dict) or "datasets" not in answer:
        raise ValueError("the answer is not the status of a worker")
    return answer
