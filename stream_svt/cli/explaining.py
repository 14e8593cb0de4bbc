"""The command `explain`: what one alert means, from the configuration and the released event alone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from stream_svt import plain_text
from stream_svt.application.config import content
from stream_svt.cli import common
from stream_svt.errors import StreamSvtError
from stream_svt.monitor.released import Alert, AnyEvent, Event, decode, event_in
from stream_svt.settings.application import load_spec
from stream_svt.terminal import say


@common.command(
    "explain -c monitors.yaml web/web-2026-11-28/many-users/1/4",
    "watch -c monitors.yaml --json --limit 1 | stream-svt explain -c monitors.yaml -",
)
@click.argument("event")
@common.config_option()
def explain(event: str, path: Path) -> None:
    """Explain an alert: what was found, the odds, the bound, the price, and what silence means.

    EVENT is a file with one event of the alert topic as JSON, - for standard input, or the id of an event, which is
    looked up on the alert topic. The answer follows from the configuration and released events alone. With a file it
    needs no broker, no key and no other file than those that list names.
    """
    from stream_svt.planning.alerts import explain_alert

    def lines_of(name: str) -> list[str]:
        return plain_text.lines(plain_text.decoded((path.parent / name).read_bytes()))

    try:
        spec = load_spec(plain_text.decoded(content(path)), str(path), lines_of)
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}.") from None
    if event == "-" or Path(event).is_file():
        found = _in_file(event)
    elif event.startswith(f"{spec.application}/") and event.count("/") >= 4:
        found = asyncio.run(_looked_up(path, event))
    else:
        wanted = f"expected a file, -, or an id such as {spec.application}/DATASET/MONITOR/RUN/NUMBER"
        raise click.UsageError(f"{event!r}: {wanted}.")
    if found.application != spec.application:
        raise StreamSvtError(
            f"the event is of application {found.application!r}, and {path} declares {spec.application!r}"
        )
    if not isinstance(found.data, Alert):
        raise StreamSvtError(f"the event is no alert: its type is {found.type}")
    alert: Event[Any] = found
    for line in explain_alert(spec, alert):
        say(line)


def _in_file(name: str) -> AnyEvent:
    record = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        return decode(record)
    except msgspec.DecodeError as error:
        where = "standard input" if name == "-" else name
        raise StreamSvtError(f"{where} has no event of the alert topic: {error}") from None


async def _looked_up(path: Path, event_id: str) -> AnyEvent:
    """Return an event by its id, which names the dataset and so the partition, from its newest records."""
    from aiokafka import TopicPartition

    from stream_svt.application.facts import READ_MOST
    from stream_svt.kafka import clients as kafka

    config = common.load(path, for_counter=True)
    topic, doing = config.topics.alerts, f"looking for an event on alert topic {config.topics.alerts!r}"
    needle = event_id.encode()

    def parse(record: Any) -> AnyEvent | None:  # noqa: ANN401
        event = event_in(record.value) if needle in (record.value or b"") else None
        return event if event is not None and event.id == event_id else None

    place = TopicPartition(topic, config.home(event_id.split("/")[1]))
    async with kafka.started(config.cluster().reader(), doing) as reader:
        found = await kafka.newest(reader, place, parse, doing, max_lookback=READ_MOST)
    if found is None:
        raise StreamSvtError(
            f"partition {place.partition} of alert topic {topic!r} has no event {event_id!r}"
        )
    return found
