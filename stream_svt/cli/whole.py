"""The whole application, from the newest events of its alert topic: no worker has to be reached."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from stream_svt.cli import common
from stream_svt.errors import BrokerError
from stream_svt.service.applied import workers
from stream_svt.service.config import Config
from stream_svt.service.shown import ShardShown, read_shown
from stream_svt.wording import counted, more

DATASETS_SHOWN = 50
"""Datasets of the table; the others are in the sums."""


async def read_whole(config: Config) -> dict[str, Any]:
    """Return workers (None where this user may not ask), shards, and the accounts of declared datasets."""
    cluster = config.cluster()
    try:
        members = [name for name, _ in await workers(config, cluster)]
    except BrokerError as error:
        if error.retriable:
            raise
        members = None
    shown, spec = await read_shown(config, cluster), config.current
    return {
        "application": spec.application,
        "workers": members,
        "shards": [{"shard": number, **_fields(one)} for number, one in sorted(shown.shards.items())],
        "declared": len(spec.datasets),
        "datasets": [
            {"dataset": one.name, "measure": account.measure, "limit": account.limit}
            | {"spent": account.spent, "reserved": account.reserved}
            for one in spec.datasets
            if (account := shown.accounts.get(one.name)) is not None
        ],
    }


def _fields(shard: ShardShown) -> dict[str, Any]:
    names = ("events", "time", "command", "version", "successor")
    return {name: getattr(shard, name) for name in names}


def show_whole(found: dict[str, Any], now: datetime) -> None:
    """Print it as tables; amounts are as of each shard's newest event."""
    names, datasets = found["workers"], found["datasets"]
    members = "an unknown number of workers" if names is None else counted(len(names), "worker")
    click.echo(
        f"{found['application']}: {members} in the group, as of the newest released events of each shard"
    )
    common.print_table(
        ("shard", "events", "newest event", "age", "last command", "version", "closed for"),
        [_shard_cells(shard, now) for shard in found["shards"]],
    )
    for line in _sums(datasets):
        click.echo(line)
    if missing := found["declared"] - len(datasets):
        click.echo(f"{counted(missing, 'declared dataset')} without an account in the events read")
    rows = [
        (one["dataset"], f"{one['spent']:g} of {one['limit']:g} {one['measure']}", f"{one['reserved']:g}")
        for one in datasets
    ]
    common.print_table(("dataset", "budget spent", "reserved"), rows[:DATASETS_SHOWN])
    if left_out := more(len(rows) - DATASETS_SHOWN):
        click.echo(f"..{left_out}: --json has them all")


def _shard_cells(shard: dict[str, Any], now: datetime) -> list[object]:
    if not shard["events"]:
        return [shard["shard"], 0, "none", "-", "-", "-", ""]
    at = datetime.fromisoformat(shard["time"]).astimezone(UTC)
    age = max(int((now - at).total_seconds()), 0)
    shown = f"{age} s" if age < 600 else f"{age // 60} min" if age < 36_000 else f"{age // 3600} h"
    version = shard["version"] or "-"
    newest = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return [shard["shard"], shard["events"], newest, shown, shard["command"], version, shard["successor"]]


def _sums(datasets: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the sums of each measure."""
    for measure in sorted({one["measure"] for one in datasets}):
        of_measure = [one for one in datasets if one["measure"] == measure]
        spent, reserved, limit = (
            sum(one[name] for one in of_measure) for name in ("spent", "reserved", "limit")
        )
        amounts = f"{measure} {spent:g} of {limit:g} spent, {reserved:g} reserved"
        yield f"{counted(len(of_measure), 'dataset')}: {amounts}"
