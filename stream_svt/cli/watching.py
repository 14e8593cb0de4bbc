"""Commands that show what is released: watch and status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from stream_svt.cli.connection import (
    alert_topic,
    alert_topic_options,
    config_option,
    count,
    examples,
    flag,
    load,
    print_json,
    print_table,
    wait_for,
)
from stream_svt.errors import StreamSvtError
from stream_svt.monitor.released import Account, Alert, Lifecycle
from stream_svt.subscribe import Event, Subscription, subscribe


@click.command(
    epilog=examples(
        "watch -c monitors.yaml",
        "watch --topic retail.alerts --json --from-beginning | jq .data.gap",
    )
)
@alert_topic_options
@flag("--json as_json", "One JSON document a line.")
@flag("--from-beginning", "Begin with the oldest event.")
@flag("--lifecycle", "Also show runs, budgets, mutes and replies to commands.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N events.")
def watch(
    path: Path | None,
    servers: str | None,
    topic: str | None,
    as_json: bool,
    from_beginning: bool,
    lifecycle: bool,
    limit: int | None,
) -> None:
    """Follow alerts as they are published, until interrupted."""
    arguments, topic = alert_topic(None if path is None else load(path), servers, topic)
    subscription = subscribe(topic=topic, from_beginning=from_beginning, lifecycle=lifecycle, **arguments)
    wait_for(_follow(subscription, as_json, limit))


async def _follow(subscription: Subscription[Alert | Lifecycle], as_json: bool, limit: int | None) -> None:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    shown = 0
    with contextlib.suppress(asyncio.CancelledError):
        async with subscription:
            async for event in subscription:
                click.echo(as_line(event) if as_json else in_words(event))
                shown += 1
                if shown == limit:
                    return


def as_line(event: Event[Alert | Lifecycle]) -> bytes:
    """Return an event as one line of JSON."""
    return msgspec.json.encode(event)


def in_words(event: Event[Alert | Lifecycle]) -> str:
    """Return an event as one line for people."""
    data = event.data
    when = click.style(event.time.astimezone().strftime("%H:%M:%S"), dim=True)
    if isinstance(data, Alert):
        bound = "not certified" if data.bound is None else f">= {data.bound:g} ({1 - data.beta:.0%})"
        guess = "" if data.estimate is None else f"  estimate {data.estimate:g}"
        parts = [
            click.style("ALERT", fg="red", bold=True),
            f"{event.subject}  {data.monitor}",
            f"gap {data.gap:g}{guess}  {bound}",
            f"run {data.run} top {data.top}" + (f" attempt {data.attempt}" if data.attempt > 1 else ""),
            _account_text(data.account),
        ]
        return "  ".join([when, *parts])
    kind = event.type.removeprefix("io.stream-svt.").removesuffix(".v1")
    detail = " ".join(f"{name}={value}" for name, value in data.detail.items())
    words = [when, click.style(kind, fg="cyan"), event.subject, data.monitor, data.reason, detail]
    if data.account is not None:
        words.append(_account_text(data.account))
    return "  ".join(word for word in words if word)


def _account_text(account: Account) -> str:
    return f"{account.measure} {account.spent:g} of {account.limit:g} spent"


@click.command(
    short_help="Show a running worker's shards and budgets.",
    epilog=examples("status", "status --url http://worker-2:6066 --json"),
)
@config_option(required=False)
@click.option("--url", metavar="URL", help="Address of a worker's web pages. Default: http://127.0.0.1:6066.")
@flag("--json as_json", "Print the answer as it came.")
def status(path: Path | None, url: str | None, as_json: bool) -> None:
    """Show shards, budgets and monitors of a running worker, as of its last commit."""
    if url is None:
        web = load(path).web if path is not None else None
        url = f"http://{web.host}:{web.port}" if web is not None else "http://127.0.0.1:6066"
    answer = _get(url)
    if as_json:
        print_json(answer)
    else:
        _show(answer)


def _get(url: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"expected an address such as http://127.0.0.1:6066, found {url!r}")
    try:
        page = url.rstrip("/") + "/api/v1/status"
        with urllib.request.urlopen(page, timeout=10) as response:  # noqa: S310 - checked above
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise StreamSvtError(f"{url} answered {error.code} {error.reason}: is that a worker?") from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise StreamSvtError(f"no worker answers at {url} ({reason}); give its address with --url") from None
    except ValueError:
        raise StreamSvtError(f"{url} is not the address of a worker's pages") from None
    if not isinstance(answer, dict) or "datasets" not in answer:
        raise StreamSvtError(f"{url} is not the address of a worker's pages")
    return answer


def refused_in_words(refused: dict[str, Any]) -> str:
    """Return how many records the worker has refused and why, empty where it has refused none."""
    if not refused["reasons"]:
        return ""
    reasons = ", ".join(f"{reason} {number}" for reason, number in refused["reasons"].items())
    records = count(sum(refused["reasons"].values()), "record")
    return f"{records} refused ({reasons}): see topic {refused['topic']}"


def _show(answer: dict[str, Any]) -> None:
    ready = "ready" if answer["ready"] else "NOT READY"
    sealed = "sealed" if answer["sealed"] else "not sealed"
    worker = f"worker {answer['worker']}, version {answer['version']}"
    click.echo(f"{answer['application']}: {worker}, {ready}, state {sealed}")
    if fault := answer["fault"]:
        click.echo(f"outside its group, {fault['cause']}: {fault['reason']}")
    if refused := refused_in_words(answer["refused"]):
        click.echo(refused)
    print_table(
        ("shard", "state", "lag", "state records", "last commit", "cause", "reason"),
        [_shard_cells(shard) for shard in answer["shards"]],
    )
    print_table(
        ("dataset", "budget spent", "reserved", "monitor", "state", "run", "tops", "muted", "queued"),
        [cells for dataset in answer["datasets"] for cells in _dataset_cells(dataset)],
    )


def _shard_cells(shard: dict[str, Any]) -> list[object]:
    when = "never"
    if committed := shard["committed_at"]:
        when = datetime.fromtimestamp(committed, UTC).astimezone().strftime("%H:%M:%S")
    # Nothing is known of a shard that was never open.
    lag = sum(shard["lag"].values()) if shard["lag"] else "-"
    known = (shard["shard"], shard["state"], lag, shard["state_records"])
    return [*known, when, shard["cause"], shard["reason"]]


def _dataset_cells(dataset: dict[str, Any]) -> Iterator[list[object]]:
    """Yield a row for each monitor on a dataset; the first one says what is spent."""
    spent = f"{dataset['spent']:g} of {dataset['limit']:g} {dataset['measure']}"
    first: list[object] = [dataset["dataset"], spent, f"{dataset['reserved']:g}"]
    for monitor in dataset["monitors"]:
        only = ", top branch only" if monitor["top_branch_only"] else ""
        counts = [monitor[name] for name in ("run", "tops", "muted", "queued")]
        yield [*first, monitor["monitor"], monitor["state"] + only, *counts]
        first = ["", "", ""]
    if not dataset["monitors"]:
        yield first
