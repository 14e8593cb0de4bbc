"""Commands on released data: show or forward events, show a worker's status, audit ledgers, print final balances."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
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

from stream_svt.cli import common
from stream_svt.errors import StreamSvtError, UnreadableState
from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import Alert, Lifecycle
from stream_svt.privacy.loss import as_text
from stream_svt.service.logs import log_to_stderr
from stream_svt.settings.fields import is_this_machine
from stream_svt.subscription import Event, Subscription
from stream_svt.wording import counted, more

if TYPE_CHECKING:
    from stream_svt.protocol.audit import Audit

log = logging.getLogger(__name__)


@common.command(
    "watch -c monitors.yaml", "watch --topic retail.alerts --json --from-beginning | jq .data.gap"
)
@common.alert_topic_options
@common.flag("--json as_json", "Print each event as one line of JSON.")
@common.flag("--from-beginning", "Start with the oldest event.")
@common.flag("--lifecycle", "Also show runs, budgets and replies to commands.")
@common.option("--limit", "Stop after N events.", click.IntRange(min=1), metavar="N")
def watch(
    path: Path | None,
    servers: str | None,
    topic: str | None,
    as_json: bool,
    from_beginning: bool,
    lifecycle: bool,
    limit: int | None,
) -> None:
    """Print alerts as they are published, until interrupted. Times are UTC."""
    brokers, topic = common.alert_topic(None if path is None else common.load(path), servers, topic)
    options = {"from_beginning": from_beginning, "lifecycle": lifecycle}
    greeting = (
        "" if from_beginning else f"Waiting for new events on {topic}; --from-beginning shows earlier ones."
    )
    asyncio.run(_follow(Subscription(brokers, topic, None, **options), as_json, limit, greeting))


async def _follow(
    subscription: Subscription[Alert | Lifecycle], as_json: bool, limit: int | None, greeting: str
) -> None:
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shown = 0
    with contextlib.suppress(asyncio.CancelledError):
        async with subscription:
            if greeting:
                click.echo(greeting, err=True)
            async for event in subscription:
                click.echo(msgspec.json.encode(event) if as_json else in_words(event))
                shown += 1
                if shown == limit:
                    return


def in_words(event: Event[Alert | Lifecycle]) -> str:
    """Return an event as one line of text."""
    data = event.data
    when = click.style(event.time.astimezone(UTC).strftime("%H:%M:%SZ"), dim=True)
    if isinstance(data, Alert):
        words = [
            click.style("ALERT", fg="red", bold=True),
            f"{event.subject}  {data.monitor}",
            f"gap {data.gap:g}",
            "" if data.estimate is None else f"estimate {data.estimate:g}",
            "not certified" if data.bound is None else f">= {data.bound:g} ({1 - data.beta:.0%})",
            f"run {data.run} alert {data.number}" + (f" attempt {data.attempt}" if data.attempt > 1 else ""),
            _mute_in_words(data.muted_until),
        ]
    else:
        kind = event.type.removeprefix("io.stream-svt.").removesuffix(".v1")
        # Moments, in Unix milliseconds, are shown as date and time.
        shown = {
            name: utc(it) if name == "until" and isinstance(it, int) else it
            for name, it in data.detail.items()
        }
        detail = " ".join(f"{name}={value}" for name, value in shown.items())
        words = [click.style(kind, fg="cyan"), event.subject, data.monitor, data.reason, detail]
    if (account := data.account) is not None:
        words.append(f"{account.measure} {account.spent:g} of {account.limit:g} spent")
    return "  ".join(word for word in (when, *words) if word)


def _mute_in_words(until: str | int | None) -> str:
    if until is None:
        return ""
    return f"muted until {utc(until)}" if isinstance(until, int) else f"muted for the {until}"


@common.command(
    "forward -c forward.yaml --check", "forward -c forward.yaml --test", "forward -c forward.yaml"
)
@common.config_option(variable="STREAM_SVT_FORWARD_CONFIG")
@common.flag("--check only_check", "Check the configuration, topics and permissions, and exit.")
@common.flag("--test only_test", "Post a test event to every destination, and exit.")
@common.flag("--accept-loss", "Continue although retention deleted events before their delivery.")
@common.log_level_option
@common.log_format_option
def forward(
    path: Path, only_check: bool, only_test: bool, accept_loss: bool, log_level: str, log_format: str
) -> int:
    """Post alerts to Alertmanager and webhooks, until stopped.

    Each event is posted at least once, with the same id each time, and in order for each dataset. Several
    forwarders share the partitions.
    """
    from stream_svt.forward import app
    from stream_svt.forward.config import load_forward_config

    if only_check and only_test:
        raise click.UsageError("--check and --test cannot be combined: give one of them.")
    forwards = not (only_check or only_test)
    if forwards:
        log_to_stderr(log_level, log_format)
    config = load_forward_config(path, os.environ)
    for note in config.notes:
        if forwards:
            log.warning("event=configuration_note note=%r", str(note))
        else:
            click.echo(f"{click.style('note', fg='yellow')} {note}", err=True)
    if only_check:
        asyncio.run(app.check(config))
        names = ", ".join(one.name for one in config.destinations)
        click.echo(f"Ready to forward {config.topic} to {names}.")
        return 0
    if only_test:
        answers = asyncio.run(app.send_test(config))
        for name, answer in answers:
            click.echo(f"{name}: {answer.result} ({answer.reason})")
        return 0 if all(answer.result == "accepted" for _, answer in answers) else 1
    # Its errors name causes such as a wrong password; its other messages are about progress.
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    return asyncio.run(app.forward(config, accept_loss=accept_loss))


@common.command(
    "status",
    "status --url http://worker-2:6066 --json",
    "status -c monitors.yaml --all     from the alert topic",
)
@common.config_option(required=False)
@common.option("--url", "Address of a worker's web pages. Default http://127.0.0.1:6066.", metavar="URL")
@common.flag("--all every", "All shards and workers, as of the newest released events; needs -c.")
@common.json_option
def status(path: Path | None, url: str | None, every: bool, as_json: bool) -> None:
    """Show a worker's shards and budgets, as of its last commit.

    With --all, show the whole application from the newest events of the alert topic: no worker has to be reached.
    """
    if every:
        from stream_svt.cli.whole import read_whole, show_whole

        if path is None or url is not None:
            raise click.UsageError("--all reads the alert topic that -c FILE names: give -c, and no --url.")
        found = asyncio.run(read_whole(common.load(path)))
        if as_json:
            common.print_json(found)
        else:
            show_whole(found, datetime.now(UTC))
        return
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
        # urllib would ask the proxy of the variable http_proxy for an address of this machine, too.
        direct = [urllib.request.ProxyHandler({})] if is_this_machine(urlsplit(page).hostname or "") else []
        with urllib.request.build_opener(*direct).open(page, timeout=10) as response:
            answer = json.load(response)
        if not isinstance(answer, dict) or "datasets" not in answer:
            raise ValueError("the answer is not the status of a worker")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        remedy = "start one with 'stream-svt run', or give its address with --url"
        raise StreamSvtError(f"no worker answers at {url} ({reason}); {remedy}") from None
    return answer


def _show(answer: dict[str, Any]) -> None:
    ready = "ready" if answer["ready"] else "NOT READY"
    sealed = f"{'sealed' if answer['sealed'] else 'not sealed'}, partitioner {answer['partitioner']}"
    worker = f"worker {answer['worker']}, version {answer['version']}"
    click.echo(f"{answer['application']}: {worker}, {ready}, state {sealed}")
    if fault := answer["fault"]:
        click.echo(f"not in its group, cause {fault['cause']}: {fault['reason']}")
    if answer["lacks"]:
        click.echo(f"not ready to take over: {answer['lacks']}")
    if reasons := answer["refused"]["reasons"]:
        counts = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        records, topic = counted(sum(reasons.values()), "record"), answer["refused"]["topic"]
        click.echo(
            f"{records} refused ({counts}): 'stream-svt rejects list -c FILE' says what to do (topic {topic})"
        )
        if remedy := answer["refused"]["remedy"]:
            click.echo(f"misrouted: {remedy}")
    common.print_table(
        ("shard", "state", "lag", "state records", "last commit", "cause", "reason"),
        [_shard_cells(shard) for shard in answer["shards"]],
        spare=("state records", "last commit"),
    )
    common.print_table(
        ("dataset", "budget spent", "reserved", "monitor", "state", "run", "alerts", "muted", "queued"),
        [cells for dataset in answer["datasets"] for cells in _dataset_cells(dataset)],
        spare=("queued", "muted", "reserved", "run"),
    )


def _shard_cells(shard: dict[str, Any]) -> list[object]:
    when = "never"
    if committed := shard["committed_at"]:
        when = datetime.fromtimestamp(committed, UTC).strftime("%H:%M:%SZ")
    # The lag of a shard that was never open is unknown.
    known = shard | {"lag": sum(shard["lag"].values()) if shard["lag"] else "-", "when": when}
    return [known[name] for name in ("shard", "state", "lag", "state_records", "when", "cause", "reason")]


def _dataset_cells(dataset: dict[str, Any]) -> Iterator[list[object]]:
    """Yield a row for each monitor on a dataset; the first row shows the dataset's budget."""
    spent = f"{dataset['spent']:g} of {dataset['limit']:g} {dataset['measure']}"
    first: list[object] = [dataset["dataset"], spent, f"{dataset['reserved']:g}"]
    for monitor in dataset["monitors"]:
        more = ", top branch only" if monitor["top_branch_only"] else ""
        if monitor["next_run"]:
            more = f" until {utc(monitor['next_run'])}"
        counts = [monitor[name] for name in ("run", "alerts", "muted", "queued")]
        yield [*first, monitor["monitor"], monitor["state"] + more, *counts]
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
    "Compare the ledgers in the state with the events, too: needs -c, the sealing key and READ on the state topic.",
)
@common.file_option(
    "--before earlier",
    "Configuration of the previous application: check that this one starts with what it had spent. Repeat it for "
    "a chain of applications, the newest first.",
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
    """Check from the released events that the ledgers balance.

    Derives every charge again. Events, runs and alerts must be numbered without gaps, and charges must add up to every
    running total and stay within the limit. With -c, alerts must have the prices of their monitors; with --state,
    every ledger must equal the sum of its events. Exit code 1: something does not balance; 4: everything that could be
    read balances, but the state of a shard could not be read.
    """
    from stream_svt.service.audit import audit_state, audit_topic

    if state and (path is None or servers is not None or topic is not None):
        raise click.UsageError("--state takes topics and brokers from the configuration: give -c FILE only.")
    config = None if path is None else common.load(path)
    brokers, topic = common.alert_topic(config, servers, topic)
    if state and config is not None:
        newest = asyncio.run(audit_state(config, config.cluster()))
    else:
        monitors = () if config is None else config.spec.monitors
        newest = asyncio.run(audit_topic(brokers, topic, monitors))
    audits = [(newest, topic)]
    for before in map(common.load, earlier):
        topic = before.topics.alerts
        audit = asyncio.run(audit_topic(before.cluster(), topic, before.spec.monitors))
        audits[-1][0].follow(audit, before.spec.application)
        audits.append((audit, topic))
    if as_json:
        documents = [_as_json(audit) for audit, _ in audits]
        common.print_json(documents[0] | {"before": documents[1:]} if earlier else documents[0])
    else:
        for audit, name in audits:
            _print(audit, name)
    if any(audit.found for audit, _ in audits):
        return 1
    return UnreadableState.exit_code if newest.unreadable else 0


def _print(audit: Audit, topic: str) -> None:
    for account in sorted(audit.datasets.values(), key=lambda one: one.dataset):
        parts = (
            (account.carried, "by an earlier application"),
            (account.before - account.carried, "before the oldest event"),
        )
        before = "".join(f", {as_text(part, account.kind)} of it {when}" for part, when in parts if part > 0)
        counts = f"{counted(account.alerts, 'alert')}, {counted(account.events, 'event')}"
        spent, limit = as_text(account.spent, account.kind), as_text(account.limit, account.kind)
        click.echo(f"{account.dataset}: {account.kind.measure} {spent} of {limit} spent{before}, {counts}")
    for partition in sorted(audit.truncated):
        click.echo(f"partition {partition}: its oldest events were deleted; their charges cannot be checked")
    for problem in audit.problems:
        click.echo(f"{click.style('FAIL', fg='red')} {problem}", err=True)
    if left_out := more(audit.found - len(audit.findings)):
        click.echo(f"..{left_out}", err=True)
    checked = f"{counted(audit.events, 'event')} on {topic}, {audit.alerts} of them alerts"
    if audit.ledgers is not None:
        checked += f", {counted(audit.ledgers, 'ledger')} in the state"
    if audit.homes is not None:
        checked += f", partitioner {audit.homes[1]}"
    if audit.balances:
        verdict = f"The ledgers balance: {checked}."
    elif audit.found:
        verdict = f"The ledgers do NOT balance: {counted(audit.found, 'finding')} in {checked}."
    else:
        shards = counted(len(audit.unreadable), "shard")
        verdict = f"The state of {shards} could not be read. What could be read balances: {checked}."
    click.echo(verdict, err=not audit.balances)


def _as_json(audit: Audit) -> dict[str, Any]:
    names = ("balances", "events", "alerts", "ledgers", "unreadable", "found", "findings")
    return {name: getattr(audit, name) for name in names} | {
        "truncated_partitions": sorted(audit.truncated),
        "partitioner": audit.homes[1] if audit.homes else None,
        "datasets": [
            {
                "dataset": account.dataset,
                "measure": account.kind.measure,
                "spent": as_text(account.spent, account.kind),
                "limit": as_text(account.limit, account.kind),
                "alerts": account.alerts,
                "events": account.events,
            }
            for account in sorted(audit.datasets.values(), key=lambda one: one.dataset)
        ],
    }


@common.command(
    "carry-over -c monitors.yaml --successor retail-2 > carried.jsonl",
    "carry-over -c mirror.yaml --successor retail-2 --source-ended > carried.jsonl",
)
@common.config_option()
@common.option(
    "--successor", "Name of the successor, as given to 'close-application'.", required=True, metavar="NAME"
)
@common.flag(
    "--source-ended",
    "Confirm that the source of this mirror has ended, and that the mirror holds its last event. Without it, a "
    "shard of a mirror without proved balances has nothing left.",
)
def carry_over(path: Path, successor: str, source_ended: bool) -> int:
    """Print the balances of a closed application, for its successor.

    Writes nothing to Kafka. Save the output to the file that the successor's configuration names as carried_over.
    Balances that the sealing key proves are exact. Without a proof, the most that was ever spent and reserved
    counts as spent; if events are missing, a dataset without a later event has nothing left. Exit code 1: a shard
    is not closed, or was closed for another successor.
    """
    from stream_svt.service.audit import read_balances

    config = common.load(path)
    carried, notes = asyncio.run(
        read_balances(config, config.cluster(), successor=successor, source_ended=source_ended)
    )
    for line in carried.lines():
        click.echo(line)
    left = sum(balance.spent < balance.limit for balance in carried.datasets.values())
    counts = f"{counted(len(carried.datasets), 'dataset')}, {left} of them with budget left"
    notes = [*notes, f"Carried over from {carried.application} to {successor}: {counts}."]
    if not carried.complete:
        notes.append(
            "Alerts are missing. A dataset that the file lacks needs new: true in the successor's configuration; a "
            "query topic that the file lacks needs a monitor in the configuration of the closed application."
        )
    click.echo("\n".join(notes), err=True)
    sys.stdout.flush()
    return 0
