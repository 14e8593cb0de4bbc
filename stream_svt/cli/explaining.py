"""The command `explain`: what an alert, or its end, means, from the configuration and the released event alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import click
import msgspec

from stream_svt import plain_text
from stream_svt.application.config import content
from stream_svt.cli import common
from stream_svt.errors import StreamSvtError
from stream_svt.monitor.released import Alert, Event, EventType, decode, event_in
from stream_svt.settings.application import load_spec
from stream_svt.terminal import say


@common.command(
    "explain -c monitors.yaml web/web-2026-11-28/many-users/1/4",
    "watch -c monitors.yaml --json --limit 1 | stream-svt explain -c monitors.yaml -",
)
@click.argument("event")
@common.config_option()
def explain(event: str, path: Path) -> None:
    """Explain an alert, or its end or not-renewed event: what was found, the odds, the price, what silence means.

    EVENT is a file with one event of the alert topic as JSON, - for standard input, or the id of an event, which is
    looked up on the alert topic. The answer follows from the configuration and released events alone. With a file it
    needs no broker, no key and no other file than those that list names.
    """
    from stream_svt.planning.alerts import explain_alert

    def lines_of(name: str) -> list[str]:
        return plain_text.lines(plain_text.decoded((path.parent / name).read_bytes()))

    spec = load_spec(content(path), str(path), lines_of)
    found = event_at(event, path, spec.application)
    is_silence = found.type in (EventType.NOT_RENEWED, EventType.UNTESTED)
    is_top = isinstance(found.data, Alert) or found.type == EventType.ALERT_ENDED
    if found.application != spec.application or not (is_silence or is_top):
        what = f"it is of type {found.type} of application {found.application!r}"
        raise StreamSvtError(f"no alert of application {spec.application!r}, which {path} declares: {what}")
    try:
        lines = [*_silence(found)] if is_silence else explain_alert(spec, found)
    except msgspec.ValidationError as error:
        raise StreamSvtError(f"{event} is no event of the alert topic: {error}") from None
    for line in lines:
        say(line)


def event_at(event: str, path: Path, application: str) -> Event[Any]:
    """Return an event from a file, from standard input ("-"), or from the alert topic by its id."""
    if event == "-" or Path(event).is_file():
        record = sys.stdin.buffer.read() if event == "-" else Path(event).read_bytes()
    elif event.startswith(f"{application}/") and event.count("/") >= 4:
        record = asyncio.run(_looked_up(path, event))
    else:
        wanted = f"expected a file, -, or an id such as {application}/DATASET/MONITOR/RUN/NUMBER"
        raise click.UsageError(f"{event!r}: {wanted}.")
    try:
        return decode(record)
    except msgspec.DecodeError as error:
        raise StreamSvtError(f"{event} is no event of the alert topic: {error}") from None


def _silence(event: Event[Any]) -> Iterator[str]:
    """Yield what the end of the watch of an alert's series means, as lines of text."""
    from stream_svt.forward.config import type_word
    from stream_svt.forward.event import silence_of

    detail = event.data.detail
    of = f"monitor {event.data.monitor}, series {detail.get('series')} in dataset {event.data.dataset}"
    yield f"{type_word(event.type)} of {of}, {event.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC:"
    yield f"  After    alert {detail.get('alert')}."
    yield f"  Silence  {silence_of(event.type, event.data)}. It never means that the value is below the threshold."
    yield "  Price    none: it follows from other released events and the schedule."


async def _looked_up(path: Path, event_id: str) -> bytes:
    """Return the record of an event by its id, which names the dataset and so the partition."""
    from aiokafka import TopicPartition

    from stream_svt.application.facts import READ_MOST
    from stream_svt.kafka import clients as kafka

    config = common.load(path, for_counter=True)
    topic, doing = config.topics.alerts, f"looking for an event on alert topic {config.topics.alerts!r}"

    def parse(record: Any) -> bytes | None:  # noqa: ANN401
        value = record.value or b""
        event = event_in(value) if event_id.encode() in value else None
        return value if event is not None and event.id == event_id else None

    place = TopicPartition(topic, config.home(event_id.split("/")[1]))
    async with kafka.started(config.cluster().reader(), doing) as reader:
        found = await kafka.newest(reader, place, parse, doing, max_lookback=READ_MOST)
    if found is None:
        raise StreamSvtError(
            f"partition {place.partition} of alert topic {topic!r} has no event {event_id!r}"
        )
    return found
