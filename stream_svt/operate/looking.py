"""Asks for a look: reads the closed counts of a dataset, writes their deciles for the worker, and waits for its answer.

The deciles are sensitive: they go to the topic of counts, which only the trusted zone reads. The worker charges, adds
noise and releases them. So the user of this needs the rights of the counter to that topic.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from stream_svt.application.config import Config
from stream_svt.columns.query_batch import DecilesRequest
from stream_svt.errors import StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.mechanisms.grid import PARTS
from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import Event, EventType, Lifecycle, event_in
from stream_svt.queries.counts import MEASURE_HEADER, MONITOR_HEADER
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.counts import CountsRecord, closed_record, record_of_deciles
from stream_svt.sources.deciles import ValueCounts

REFUSED = {
    "budget": "what is left of its limit does not pay for it",
    "rho": "its limit is in rho, and a look costs epsilon",
    "no-monitor": "the worker's version of the configuration has no such monitor on it, or it tests something else",
    "again": "the worker answered a look before that had counts as late as this one, or later: look again",
    "wide": "its noise would be wider than any grid: choose a larger epsilon",
}
"""Why a look is refused, by the reason of its event; nothing is charged then."""


class TrueDeciles(NamedTuple):
    """The true deciles of a dataset, as the record for the worker, and its id."""

    id: str
    record: CountsRecord


async def read_deciles(config: Config, monitor: MonitorSpec, dataset: str, epsilon_units: int) -> TrueDeciles:
    """Read what a monitor of a source's counts was given of a dataset's closed windows, as far as its topic retains.

    Raises:
        StreamSvtError: No window has closed, or the topic retains none.
    """
    source = config.spec.source(monitor.source or "")
    topic, doing = source.counts_topic(config.spec.application), f"reading the counts of {dataset!r}"
    header, name, parts = MEASURE_HEADER, monitor.measure or "", 1
    if monitor.asks:
        header, name, parts = MONITOR_HEADER, monitor.rows, monitor.question(source).parts
    values, windows, tick = ValueCounts(), set[int](), 0
    place, declared = TopicPartition(topic, config.home(dataset)), config.spec.find(dataset)
    begin_ms = 0 if declared is None else declared.terms.from_ms or 0
    async with kafka.started(config.cluster().reader(), doing) as reader:
        async with kafka.deadline(kafka.CALL_DEADLINE, doing):
            begin = (await reader.offsets_for_times({place: begin_ms}))[place]
        async for one in kafka.read_partition(reader, place, begin and begin.offset, doing):
            if (one.key or b"") != dataset.encode():
                continue
            tick = max(tick, one.timestamp)
            if (header, name.encode()) not in one.headers:  # others need not be decoded
                continue
            found = closed_record(source, one.key, one.value, dict(one.headers), [name], parts)
            if found is not None:
                values.add(found.counts)
                windows.add(found.window)
    if not windows:
        raise StreamSvtError(
            f"topic {topic!r} retains no closed window of dataset {dataset!r} that {monitor.name} was asked about"
        )
    exact = [step * (PARTS // parts) for step in values.deciles()]
    request = DecilesRequest(
        id=uuid.uuid4().hex,
        monitor=monitor.name,
        tested=monitor.tested or "",
        epsilon=epsilon_units,
        from_ms=min(windows),
        until_ms=max(windows) + source.window,
        values=values.number,
    )
    return TrueDeciles(request.id, record_of_deciles(source, dataset, request, exact, tick))


async def release(
    config: Config, source: SourceSpec, deciles: TrueDeciles, timeout: float
) -> Event[Lifecycle]:
    """Write the deciles for the worker, and return the event that releases them with noise, or refuses them.

    Raises:
        StreamSvtError: No answer came in time; a worker may still charge for the look.
    """
    record, home = deciles.record, config.home(deciles.record.dataset)
    topic, doing = source.counts_topic(config.spec.application), "waiting for the look"
    alerts = TopicPartition(config.topics.alerts, home)
    async with kafka.started(config.cluster().reader(), doing) as reader:
        spans = await kafka.edges(reader, [alerts], doing)
        kafka.seek_all(reader, {alerts: spans[alerts][1]})
        client = AIOKafkaProducer(**config.cluster().arguments, acks="all", enable_idempotence=True)
        writing = f"writing to topic of counts {topic!r}"
        async with (
            kafka.started(client, writing, "WRITE") as producer,
            kafka.deadline(kafka.CALL_DEADLINE, writing, "WRITE"),
        ):
            await producer.send_and_wait(
                topic,
                record.content,
                key=record.dataset.encode(),
                partition=home,
                headers=[*record.headers],
                timestamp_ms=record.timestamp_ms,
            )
        return await _answer(reader, deciles, timeout, doing)


async def _answer(
    reader: AIOKafkaConsumer, deciles: TrueDeciles, timeout: float, doing: str
) -> Event[Lifecycle]:
    now = asyncio.get_running_loop().time
    end_time = now() + timeout
    while (left := end_time - now()) > 0:
        for one in await kafka.poll(reader, min(left, 1), doing):
            event = event_in(one.value)
            if (
                event is not None
                and event.type == EventType.DECILES
                and isinstance(event.data, Lifecycle)
                and event.data.detail.get("request") == deciles.id
            ):
                return event  # type: ignore[return-value]  # its data was checked
    raise StreamSvtError(
        f"no answer in time: a worker that reads the topic of counts charges for the look, unless "
        f"the period of {deciles.record.dataset!r} is over, and releases event "
        f"{EventType.DECILES} with \"request\": {deciles.id!r}; 'stream-svt status -c FILE' shows whether one runs"
    )


def lines_of(event: Event[Lifecycle], monitor: MonitorSpec) -> list[str]:
    """Return what an event of a released look says, as lines of text."""
    detail = event.data.detail
    span = f"{utc(detail['from'])} to {utc(detail['until'])}"
    head = f"{detail['values']:,} values that {monitor.name} tests in {event.data.dataset}, {span},"
    threshold = "" if monitor.asks and not monitor.threshold else f" {float(monitor.threshold):,.12g}"
    reach = detail["scale"] * 2.996  # ln 20
    return [
        f"{head} less the threshold{threshold}:",
        *(
            f"  {10 * tenth} in 100 are at most {one:>16,.12g}"
            for tenth, one in enumerate(detail["deciles"], 1)
        ),
        f"Noise of scale {detail['scale']:,.6g} moves each by less than {reach:,.3g} 95 times in 100.",
    ]
