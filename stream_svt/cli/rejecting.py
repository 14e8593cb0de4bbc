"""The commands `rejects`: count refused records, and show one of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from datetime import UTC
from itertools import groupby
from pathlib import Path

import click

from stream_svt.cli import common
from stream_svt.terminal import say
from stream_svt.wording import counted

_GROUP = common.examples(
    "rejects list -c monitors.yaml --since 1h",
    "rejects show -c monitors.yaml --topic retail.counts --partition 2 --offset 41",
)


@click.group(cls=common.CommandGroup, epilog=_GROUP)
def rejects() -> None:
    """Show which records were refused, and why.

    A refused record is not tested. The reason is its form or its place, never its value.
    """


@rejects.command(
    "list", epilog=common.examples("rejects list -c monitors.yaml --since 1h", "rejects list -c FILE --json")
)
@common.config_option()
@common.option(
    "--since", "Only records refused within this time: 30m, 2d.", callback=common.duration, metavar="DURATION"
)
@common.option(
    "--limit",
    "Newest records of the reject topic to read, over all partitions. Default 100000.",
    click.IntRange(1),
    default=100_000,
    metavar="N",
)
@common.json_option
def list_rejects(path: Path, since: float | None, limit: int, as_json: bool) -> None:
    """Count refused records by topic, partition and reason, with remedies.

    Reads the reject topic, which has positions and reasons, never content. Times are times of refusal.
    """
    from stream_svt.operate.rejects import REMEDIES, read_rejects

    config = common.load(path)
    since_ms = None if since is None else int((time.time() - since) * 1000)
    found = asyncio.run(read_rejects(config, config.cluster(), since_ms, limit))
    groups = found.sorted()
    if as_json:
        rows = [
            asdict(one) | {"newest": one.newest.isoformat(), "remedy": REMEDIES[one.reason]} for one in groups
        ]
        counts = {name: getattr(found, name) for name in ("read", "left_out", "unreadable")}
        common.print_json({"rejects": rows, **counts})
        return
    for (topic, reason), of_reason in groupby(groups, key=lambda one: (one.topic, one.reason)):
        partitions = list(of_reason)
        say(f"{topic}: {reason}, {counted(sum(one.count for one in partitions), 'record')}")
        say(f"  to do: {REMEDIES[reason]}")
        for one in partitions:
            when = f"{one.newest.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            say(f"  partition {one.partition}: {one.count}, the newest at {when}, offset {one.offset}")
    if not groups:
        say("No record was refused.")
    if found.unreadable:
        say(f"{counted(found.unreadable, 'record')} of the reject topic cannot be read.", err=True)
    if found.left_out:
        say(f"{counted(found.left_out, 'older offset')} left out: give --limit.", err=True)


@rejects.command(
    "show", epilog=common.examples("rejects show -c FILE --topic TOPIC --partition 2 --offset 41")
)
@common.config_option()
@common.option("--topic", "Query topic, or the control topic.", required=True, metavar="TOPIC")
@common.option("--partition", "Its partition.", click.IntRange(0), required=True, metavar="P")
@common.option("--offset", "Offset of the record.", click.IntRange(0), required=True, metavar="O")
@common.option(
    "--limit", "Bytes of its value to show. Default 4096.", click.IntRange(0), default=4096, metavar="N"
)
def show(path: Path, topic: str, partition: int, offset: int, limit: int) -> None:
    """Print the record of a query topic at a position.

    The output shows values and is for readers of the query topics only. Exit code 1: the record is gone.
    """
    from stream_svt.operate.rejects import lines_of, record_at

    config = common.load(path)
    record = asyncio.run(record_at(config, config.cluster(), topic, partition, offset))
    for line in lines_of(record, limit, config.spec):
        say(line)
