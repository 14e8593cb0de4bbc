"""Commands that show what is released: events, a worker's status, and ledgers that are re-derived from events."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec

from stream_svt.aiokafka_fixes import apply_fixes
from stream_svt.cli import common
from stream_svt.errors import StreamSvtError, UnreadableState
from stream_svt.monitor.released import Account, Alert, Lifecycle
from stream_svt.privacy.loss import as_text
from stream_svt.subscribe import Event, Subscription

if TYPE_CHECKING:
    from stream_svt.protocol.audit import Audit


@common.command(
    "watch -c monitors.yaml", "watch --topic retail.alerts --json --from-beginning | jq .data.gap"
)
@common.alert_topic_options
@common.flag("--json as_json", "One JSON document a line.")
@common.flag("--from-beginning", "Begin with the oldest event.")
@common.flag("--lifecycle", "Also show runs, budgets, mutes and replies to commands.")
@common.option("--limit", "End after N events.", type=click.IntRange(min=1), metavar="N")
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
    brokers, topic = common.alert_topic(None if path is None else common.load(path), servers, topic)
    options = {"from_beginning": from_beginning, "lifecycle": lifecycle}
    asyncio.run(_follow(Subscription(brokers, topic, None, **options), as_json, limit))


async def _follow(subscription: Subscription[Alert | Lifecycle], as_json: bool, limit: int | None) -> None:
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shown = 0
    with contextlib.suppress(asyncio.CancelledError):
        async with subscription:
            async for event in subscription:
                click.echo(msgspec.json.encode(event) if as_json else in_words(event))
                shown += 1
                if shown == limit:
                    return


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


@common.command("status", "status --url http://worker-2:6066 --json")
@common.config_option(required=False)
@common.option("--url", "Address of a worker's web pages. Default: http://127.0.0.1:6066.", metavar="URL")
@common.json_option
def status(path: Path | None, url: str | None, as_json: bool) -> None:
    """Show a worker's shards and budgets, as of its last commit."""
    if url is None:
        web = common.load(path).web if path is not None else None
        url = f"http://{web.host}:{web.port}" if web is not None else "http://127.0.0.1:6066"
    answer = _get(url)
    if as_json:
        common.print_json(answer)
    else:
        _show(answer)


def _get(url: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"expected an address such as http://127.0.0.1:6066, found {url!r}")
    try:
        page = url.rstrip("/") + "/api/v1/status"
        # urllib would ask the proxy of http_proxy for an address of this machine, too.
        direct = [urllib.request.ProxyHandler({})] if _is_loopback(urlsplit(url).hostname) else []
        with urllib.request.build_opener(*direct).open(page, timeout=10) as response:
            answer = json.load(response)
        if not isinstance(answer, dict) or "datasets" not in answer:
            raise ValueError("the answer is not the status of a worker")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise StreamSvtError(f"no worker answers at {url} ({reason}); give its address with --url") from None
    return answer


def _is_loopback(host: str | None) -> bool:
    with contextlib.suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    return False


def _show(answer: dict[str, Any]) -> None:
    ready = "ready" if answer["ready"] else "NOT READY"
    sealed = "sealed" if answer["sealed"] else "not sealed"
    worker = f"worker {answer['worker']}, version {answer['version']}"
    click.echo(f"{answer['application']}: {worker}, {ready}, state {sealed}")
    if fault := answer["fault"]:
        click.echo(f"outside its group, {fault['cause']}: {fault['reason']}")
    if reasons := answer["refused"]["reasons"]:
        told = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        records = common.count(sum(reasons.values()), "record")
        click.echo(f"{records} refused ({told}): see topic {answer['refused']['topic']}")
    common.print_table(
        ("shard", "state", "lag", "state records", "last commit", "cause", "reason"),
        [_shard_cells(shard) for shard in answer["shards"]],
    )
    common.print_table(
        ("dataset", "budget spent", "reserved", "monitor", "state", "run", "tops", "muted", "queued"),
        [cells for dataset in answer["datasets"] for cells in _dataset_cells(dataset)],
    )


def _shard_cells(shard: dict[str, Any]) -> list[object]:
    when = "never"
    if committed := shard["committed_at"]:
        when = datetime.fromtimestamp(committed, UTC).astimezone().strftime("%H:%M:%S")
    # Nothing is known of a shard that was never open.
    known = shard | {"lag": sum(shard["lag"].values()) if shard["lag"] else "-", "when": when}
    return [known[name] for name in ("shard", "state", "lag", "state_records", "when", "cause", "reason")]


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


@common.command(
    "audit -c monitors.yaml",
    "audit -c monitors.yaml --state",
    "audit --topic retail.alerts --bootstrap-servers broker:9092 --json",
)
@common.alert_topic_options
@common.flag(
    "--state",
    "Hold the ledgers in the state to the events too: needs -c, the sealing key and READ on the state topic.",
)
@common.file_option(
    "--before earlier",
    "Configuration of an earlier application: check that this one begins with what it had spent. Once for each "
    "of a chain, the newest first.",
    multiple=True,
    metavar="FILE",
)
@common.json_option
def audit(
    path: Path | None,
    servers: str | None,
    topic: str | None,
    state: bool,
    earlier: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Tell from the alerts whether the ledgers balance.

    Every charge is derived again. Events, runs and tops must be numbered without gaps, and charges must add up to
    every running total and stay within the limit. With -c, alerts must have the prices of their monitors; with
    --state, every ledger must be what the events add up to. Exit code 1: they do not; 4: nothing speaks against them,
    but a state cannot be read.
    """
    from stream_svt.service.audit import audit_state, audit_topic

    apply_fixes()
    if state and (path is None or servers is not None or topic is not None):
        raise click.UsageError("--state takes topics and brokers from the configuration: give -c FILE only.")
    config = None if path is None else common.load(path)
    brokers, topic = common.alert_topic(config, servers, topic)
    if state and config is not None:
        found = asyncio.run(audit_state(config, common.cluster(config)))
    else:
        monitors = () if config is None else config.spec.monitors
        found = asyncio.run(audit_topic(brokers, topic, monitors))
    applications = [(found, topic)]
    for before in map(common.load, earlier):
        topic = before.topics.alerts
        one = asyncio.run(audit_topic(common.cluster(before), topic, before.spec.monitors))
        applications[-1][0].follow(one, before.spec.application)
        applications.append((one, topic))
    if as_json:
        told = [_as_json(one) for one, _ in applications]
        common.print_json(told[0] | {"before": told[1:]} if earlier else told[0])
    else:
        for one, name in applications:
            _print(one, name)
    if any(one.found for one, _ in applications):
        return 1
    return UnreadableState.exit_code if found.unreadable else 0


def _print(found: Audit, topic: str) -> None:
    for account in sorted(found.datasets.values(), key=lambda one: one.dataset):
        parts = (
            (account.carried, "by an earlier application"),
            (account.before - account.carried, "before the oldest event"),
        )
        before = "".join(f", {as_text(part, account.kind)} of it {when}" for part, when in parts if part > 0)
        counts = f"{common.count(account.alerts, 'alert')}, {common.count(account.events, 'event')}"
        click.echo(f"{account.dataset}: {account.text()} spent{before}, {counts}")
    for partition in sorted(found.truncated):
        click.echo(f"partition {partition}: its oldest events are gone; what they charged is taken on trust")
    for problem in found.problems:
        click.echo(f"{click.style('FAIL', fg='red')} {problem}", err=True)
    if found.found > len(found.findings):
        click.echo(f".. and {found.found - len(found.findings)} more", err=True)
    seen = f"{common.count(found.events, 'event')} on {topic}, {found.alerts} of them alerts"
    if found.ledgers is not None:
        seen += f", {common.count(found.ledgers, 'ledger')} in the state"
    if found.balances:
        click.echo(f"The ledgers balance: {seen}.")
    elif found.found:
        click.echo(f"The ledgers do NOT balance: {common.count(found.found, 'finding')} in {seen}.", err=True)
    else:
        shards = common.count(len(found.unreadable), "shard")
        click.echo(f"The state of {shards} could not be read. Nothing was found in {seen}.", err=True)


def _as_json(found: Audit) -> dict[str, Any]:
    names = ("balances", "events", "alerts", "ledgers", "unreadable", "found", "findings")
    return {name: getattr(found, name) for name in names} | {
        "truncated_partitions": sorted(found.truncated),
        "datasets": [
            {
                "dataset": account.dataset,
                "measure": account.kind.measure,
                "spent": as_text(account.spent, account.kind),
                "limit": as_text(account.limit, account.kind),
                "alerts": account.alerts,
                "events": account.events,
            }
            for account in sorted(found.datasets.values(), key=lambda one: one.dataset)
        ],
    }


@common.command(
    "carry-over -c monitors.yaml --successor retail-2 > carried.jsonl",
    "carry-over -c mirror.yaml --successor retail-2 --source-ended > carried.jsonl",
)
@common.config_option()
@common.option(
    "--successor",
    "Name of the application that goes on: the one that 'close-application' named.",
    required=True,
    metavar="NAME",
)
@common.flag(
    "--source-ended",
    "State that the source of this mirror has ended, and that the mirror holds its last event. Without it, a "
    "shard of a mirror without proved balances has nothing left.",
)
def carry_over(path: Path, successor: str, source_ended: bool) -> int:
    """Write down what a closed application left of each budget.

    Writes nothing to Kafka. The successor's configuration names the file as carried_over. Balances that the
    sealing key proves are exact. Without a proof, the most that was ever spent and reserved counts as spent;
    a dataset without an event behind missing ones has nothing left. Exit code 1: a shard is not closed, or
    was closed for another successor.
    """
    from stream_svt.service.audit import read_balances

    config = common.load(path)
    carried, notes = asyncio.run(
        read_balances(config, common.cluster(config), successor=successor, source_ended=source_ended)
    )
    for line in carried.lines():
        click.echo(line)
    left = sum(balance.spent < balance.limit for balance in carried.datasets.values())
    told = f"{common.count(len(carried.datasets), 'dataset')}, {left} of them with something left"
    notes = [*notes, f"Carried over from {carried.application} to {successor}: {told}."]
    if not carried.complete:
        notes.append(
            "Alerts are missing: a dataset that is not in the file must be declared with new: true, and a query topic "
            "that is not in it by a monitor in the configuration carried over."
        )
    click.echo("\n".join(notes), err=True)
    sys.stdout.flush()
    return 0
