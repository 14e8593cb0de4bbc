"""Commands on released data: show or forward events, show a worker's status, audit ledgers, print final balances."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec

from stream_svt.cli import common
from stream_svt.errors import StreamSvtError, UnreadableState
from stream_svt.logs import log_to_stderr
from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import Alert, AnyEvent, Lifecycle, Position
from stream_svt.privacy.loss import as_text
from stream_svt.settings.fields import is_this_machine
from stream_svt.subscription import Subscription
from stream_svt.terminal import Styled, say, styled, write
from stream_svt.wording import counted, more

if TYPE_CHECKING:
    from stream_svt.protocol.history.audit import Audit

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
    """Print alerts and what follows them as they are published, until interrupted. Times are UTC.

    A line ends with the id of the event, which explain takes. What follows an alert is alert.not-renewed,
    alert.untested or alert.ended.
    """
    brokers, topic = common.alert_topic(None if path is None else common.load(path), servers, topic)
    options = {"from_beginning": from_beginning, "lifecycle": True}
    greeting = (
        "" if from_beginning else f"Waiting for new events on {topic}; --from-beginning shows earlier ones."
    )
    asyncio.run(_follow(Subscription(brokers, topic, None, **options), lifecycle, as_json, limit, greeting))


def is_about_alerts(event: AnyEvent) -> bool:
    """Return whether an event is an alert, or what follows one."""
    from stream_svt.forward.event import ENDING

    return isinstance(event.data, Alert) or event.type in ENDING


async def _follow(
    subscription: Subscription[Alert | Lifecycle],
    lifecycle: bool,
    as_json: bool,
    limit: int | None,
    greeting: str,
) -> None:
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shown = 0
    with contextlib.suppress(asyncio.CancelledError):
        async with subscription:
            if greeting:
                say(greeting, err=True)
            async for event in subscription:
                if not (lifecycle or is_about_alerts(event)):
                    continue
                if as_json:
                    write(msgspec.json.encode(event))
                else:
                    say(*in_words(event))
                shown += 1
                if shown == limit:
                    return


def in_words(event: AnyEvent) -> Iterator[str | Styled]:
    """Yield the parts of a line about an event."""
    data = event.data
    kind = event.type.removeprefix("io.stream-svt.").removesuffix(".v1")
    words: list[str | Styled]
    if isinstance(data, Alert):
        words = [
            styled("ALERT", fg="red", bold=True),
            data.severity or "",
            f"{event.subject}  {data.monitor}",
            _window_in_words(data.position),
            f"gap {data.gap:g}",
            "" if data.estimate is None else f"estimate {data.estimate:g}",
            "not certified: too little above the noisy threshold for a bound"
            if data.bound is None
            else f">= {data.bound:g} ({1 - data.beta:.0%})",
            f"run {data.run} alert {data.number}" + (f" attempt {data.attempt}" if data.attempt > 1 else ""),
            _mute_in_words(data.muted_until),
        ]
    elif is_about_alerts(event):
        from stream_svt.forward.event import silence_of

        subject = f"{data.dataset}/{data.detail.get('series', '')}"
        words = [styled(kind, fg="cyan"), f"{subject}  {data.monitor}", silence_of(event.type, data)]
    else:
        # Moments, in Unix milliseconds, are shown as date and time.
        shown = {
            name: utc(it) if name in ("until", "muted_until") and isinstance(it, int) else it
            for name, it in data.detail.items()
            if name != "until" or it
        }
        detail = " ".join(f"{name}={value}" for name, value in shown.items())
        words = [styled(kind, fg="cyan"), event.subject, data.monitor, data.reason, detail]
    if (account := data.account) is not None:
        words.append(f"{account.measure} {account.spent:g} of {account.limit:g} spent")
    if is_about_alerts(event):
        words.append(event.id)  # which `explain` takes
    yield styled(event.time.astimezone(UTC).strftime("%H:%M:%SZ"), dim=True)
    for word in words:
        if word:
            yield "  "
            yield word


def _window_in_words(position: Position) -> str:
    """Return the window of a count without what it was asked as of; "" for other queries."""
    begin, _, end = position.window.partition("/")
    return f"window from {begin}" if end else ""


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
            say(styled("note", fg="yellow"), f" {note}", err=True)
    if only_check:
        asyncio.run(app.check(config))
        names = ", ".join(one.name for one in config.destinations)
        say(f"Ready to forward {config.topic} to {names}.")
        return 0
    if only_test:
        answers = asyncio.run(app.send_test(config))
        for name, answer in answers:
            say(f"{name}: {answer.result} ({answer.reason})")
        return 0 if all(answer.result == "accepted" for _, answer in answers) else 1
    # Its errors name causes such as a wrong password; its other messages are about progress.
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    return asyncio.run(app.forward(config, accept_loss=accept_loss))


@common.command(
    "status",
    "status --url http://worker-2:6066 --json",
    "status -c monitors.yaml",
)
@common.config_option(required=False)
@common.option(
    "--url", "Address of one worker's web pages. Default without -c: http://127.0.0.1:6066.", metavar="URL"
)
@common.json_option
def status(path: Path | None, url: str | None, as_json: bool) -> None:
    """Show shards, budgets and monitors, of all workers with -c, otherwise of one.

    With -c, budgets come from the newest events of the alert topic. States of shards and monitors, as of
    their last commits, come from the pages of all workers in the group, at the port in FILE. If no page shows
    a shard, its states are unknown.
    """
    from stream_svt.cli.whole import read_whole, show_whole, show_worker

    if path is not None and url is None:
        show, found = show_whole, asyncio.run(read_whole(common.load(path), versions=as_json))
    else:
        show, found = show_worker, _get(url or "http://127.0.0.1:6066")
    if as_json:
        common.print_json(found)
    else:
        show(found)


def _get(url: str) -> dict[str, Any]:
    from stream_svt.operate.running import ask

    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"expected an address such as http://127.0.0.1:6066, found {url!r}")
    try:
        # urllib would ask the proxy of the variable http_proxy for an address of this machine, too.
        return ask(url, 10, proxy=not is_this_machine(urlsplit(url).hostname or ""))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        remedy = "start one with 'stream-svt run', or give its address with --url"
        raise StreamSvtError(f"no worker answers at {url} ({reason}); {remedy}") from None


@common.command(
    "audit -c monitors.yaml",
    "audit -c monitors.yaml --state",
    "audit --topic retail.alerts --bootstrap-servers broker:9092 --json",
)
@common.alert_topic_options
@common.flag(
    "--state",
    "Also compare the ledgers in the state with the events. Needs -c, the sealing key and READ on the state topic.",
)
@common.file_option(
    "--before earlier",
    "Configuration of the predecessor: check that this application starts with its charges. Repeat it for a "
    "chain of applications, the newest first.",
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

    Derives every charge again. Events, runs and alerts must be numbered without gaps. Charges must add up to
    every running total and stay within the limit. With -c, alerts must have the prices of their monitors;
    with --state, every ledger must equal the sum of its events. Exit code 1: something does not balance; 4:
    everything readable balances, but the state of a shard could not be read.
    """
    from stream_svt.operate.audit import audit_state, audit_topic

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
        say(f"{account.dataset}: {account.kind.measure} {spent} of {limit} spent{before}, {counts}")
    for partition in sorted(audit.truncated):
        say(f"partition {partition}: its oldest events were deleted; their charges cannot be checked")
    for problem in audit.problems:
        say(styled("FAIL", fg="red"), f" {problem}", err=True)
    if left_out := more(audit.found - len(audit.findings)):
        say(f"..{left_out}", err=True)
    checked = f"{counted(audit.events, 'event')} on {topic}, {audit.alerts} of them alerts"
    if audit.ledgers is not None:
        checked += f", {counted(audit.ledgers, 'ledger')} in the state"
    if audit.partitioning is not None:
        checked += f", partitioner {audit.partitioning[1]}"
    if audit.balances:
        verdict = f"The ledgers balance: {checked}."
    elif audit.found:
        verdict = f"The ledgers do NOT balance: {counted(audit.found, 'finding')} in {checked}."
    else:
        shards = counted(len(audit.unreadable), "shard")
        verdict = f"The state of {shards} could not be read. What could be read balances: {checked}."
    say(verdict, err=not audit.balances)


def _as_json(audit: Audit) -> dict[str, Any]:
    names = ("balances", "events", "alerts", "ledgers", "unreadable", "found", "findings")
    return {name: getattr(audit, name) for name in names} | {
        "truncated_partitions": sorted(audit.truncated),
        "partitioner": audit.partitioning[1] if audit.partitioning else None,
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
    "--successor",
    "Name of the successor, as given to 'close-application'.",
    callback=common.name,
    required=True,
    metavar="NAME",
)
@common.flag(
    "--source-ended",
    "Confirm that the source of this mirror has ended, and that the mirror holds its last event. Without it, a "
    "shard of a mirror without proved balances has nothing left.",
)
def carry_over(path: Path, successor: str, source_ended: bool) -> int:
    """Print what a successor takes over from a closed application: balances, periods, mutes and positions.

    Writes nothing to Kafka. Save the output to the file that carried_over names in the successor's
    configuration. Balances that the sealing key proves are exact. Without a proof, the most that was ever spent and
    reserved counts. Exit code 1: a shard is not closed, or was closed for another successor.
    """
    from stream_svt.operate.audit import read_balances
    from stream_svt.protocol.history.carry_over import summary

    config = common.load(path)
    carried, notes = asyncio.run(
        read_balances(config, config.cluster(), successor=successor, source_ended=source_ended)
    )
    for line in carried.lines():
        write(line)
    left = sum(balance.spent < balance.limit for balance in carried.datasets.values())
    counts = f"{counted(len(carried.datasets), 'dataset')}, {left} of them with budget left"
    notes += [*summary(carried), f"Carried over from {carried.application} to {successor}: {counts}."]
    if not carried.complete:
        notes.append(
            "Alerts are missing. A dataset that the file lacks needs new: true in the successor's configuration; a "
            "query topic that the file lacks needs a monitor in the configuration of the closed application."
        )
    for note in notes:
        say(note, err=True)
    sys.stdout.flush()
    return 0
