"""Commands about ledgers that exist: re-derive them, and write down what is left of those of a closed application."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stream_svt.cli.connection import (
    FILE,
    alert_topic,
    alert_topic_options,
    cluster,
    config_option,
    count,
    examples,
    flag,
    load,
    print_json,
    wait_for,
)
from stream_svt.errors import UnreadableState
from stream_svt.privacy.loss import as_text
from stream_svt.service.kafka import Cluster, tune

if TYPE_CHECKING:
    from stream_svt.protocol.audit import Audit


@click.command(
    short_help="Tell from the alerts whether the ledgers balance.",
    epilog=examples(
        "audit -c monitors.yaml",
        "audit -c monitors.yaml --state",
        "audit --topic retail.alerts --bootstrap-servers broker:9092 --json",
    ),
)
@alert_topic_options
@flag(
    "--state",
    "Hold the ledgers in the state to the events too: needs -c, the sealing key and READ on the state topic.",
)
@click.option(
    "--before",
    "earlier",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Configuration of an earlier application: check that this one begins with what it had spent. Once for each "
    "of a chain, the newest first.",
)
@flag("--json as_json", "Print the result as JSON.")
def audit(
    path: Path | None,
    servers: str | None,
    topic: str | None,
    state: bool,
    earlier: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Re-derive every charge from the alert topic and say whether the ledgers balance.

    Events, runs and tops must be numbered without gaps, and charges must add up to every running total and
    stay within the limit. With -c, alerts must have the prices of their monitors; with --state, every ledger
    must be what the events add up to. Exit code 1: they do not; 4: nothing speaks against them, but a state
    cannot be read.
    """
    from stream_svt.service.audit import audit_state, audit_topic

    tune()
    if state:
        if path is None or servers is not None or topic is not None:
            raise click.UsageError(
                "--state takes topics and brokers from the configuration: give -c FILE only."
            )
        config = load(path)
        topic = config.topics.alerts
        found = _audit(topic, partial(audit_state, config, cluster(config)))
    else:
        configured = None if path is None else load(path)
        arguments, topic = alert_topic(configured, servers, topic)
        monitors = () if configured is None else configured.spec.monitors
        found = _audit(topic, partial(audit_topic, Cluster(arguments), topic, monitors))
    applications = [(found, topic), *_follow(found, earlier)]
    if as_json:
        told = [_as_json(one) for one, _ in applications]
        print_json(told[0] | {"before": told[1:]} if earlier else told[0])
    else:
        for one, name in applications:
            _print(one, name)
    if any(one.found for one, _ in applications):
        return 1
    return UnreadableState.exit_code if found.unreadable else 0


def _follow(newest: Audit, earlier: Sequence[Path]) -> list[tuple[Audit, str]]:
    """Audit the applications before this one, and hold each to the next."""
    from stream_svt.protocol.audit import follow
    from stream_svt.service.audit import audit_topic

    found: list[tuple[Audit, str]] = []
    for path in earlier:
        config = load(path)
        topic = config.topics.alerts
        one = _audit(topic, partial(audit_topic, cluster(config), topic, config.spec.monitors))
        follow(found[-1][0] if found else newest, one, config.spec.application)
        found.append((one, topic))
    return found


def _audit(topic: str, read: Callable[..., Coroutine[Any, Any, Audit]]) -> Audit:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    text = TextColumn("{task.completed:,.0f} events read from {task.description}")
    screen, hidden = Console(stderr=True), not sys.stderr.isatty()
    with Progress(SpinnerColumn(), text, console=screen, transient=True, disable=hidden) as bar:
        task = bar.add_task(topic, total=None)
        return wait_for(read(on_records=lambda count: bar.advance(task, count)))


def _print(found: Audit, topic: str) -> None:
    for account in sorted(found.datasets.values(), key=lambda one: one.dataset):
        parts = (
            (account.carried, "by an earlier application"),
            (account.before - account.carried, "before the oldest event"),
        )
        before = "".join(f", {as_text(part, account.kind)} of it {when}" for part, when in parts if part > 0)
        counts = f"{count(account.alerts, 'alert')}, {count(account.events, 'event')}"
        click.echo(f"{account.dataset}: {account.text()} spent{before}, {counts}")
    for partition in sorted(found.truncated):
        click.echo(f"partition {partition}: its oldest events are gone; what they charged is taken on trust")
    for problem in found.problems:
        click.echo(f"{click.style('FAIL', fg='red')} {problem}", err=True)
    if found.found > len(found.findings):
        click.echo(f".. and {found.found - len(found.findings)} more", err=True)
    seen = f"{count(found.events, 'event')} on {topic}, {found.alerts} of them alerts"
    if found.ledgers is not None:
        seen += f", {count(found.ledgers, 'ledger')} in the state"
    if found.balances:
        click.echo(f"The ledgers balance: {seen}.")
    elif found.found:
        click.echo(f"The ledgers do NOT balance: {count(found.found, 'finding')} in {seen}.", err=True)
    else:
        shards = count(len(found.unreadable), "shard")
        click.echo(f"The state of {shards} could not be read. Nothing was found in {seen}.", err=True)


def _as_json(found: Audit) -> dict[str, Any]:
    return {
        "balances": found.balances,
        "events": found.events,
        "alerts": found.alerts,
        "ledgers": found.ledgers,
        "unreadable": found.unreadable,
        "truncated_partitions": sorted(found.truncated),
        "findings": [str(finding) for finding in found.findings],
        "found": found.found,
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


@click.command(
    "carry-over",
    short_help="Write down what a closed application left of each budget.",
    epilog=examples(
        "carry-over -c monitors.yaml --successor retail-2 > carried.jsonl",
        "carry-over -c mirror.yaml --successor retail-2 --source-ended > carried.jsonl",
    ),
)
@config_option()
@click.option(
    "--successor",
    required=True,
    metavar="NAME",
    help="Name of the application that goes on: the one that 'close-application' named.",
)
@flag(
    "--source-ended",
    "State that the source of this mirror has ended, and that the mirror holds its last event. Without it, a "
    "shard of a mirror without proved balances has nothing left.",
)
def carry_over(path: Path, successor: str, source_ended: bool) -> int:
    """Write down what is left of each budget of an application that was closed.

    Writes nothing to Kafka. The successor's configuration names the file as carried_over. Balances that the
    sealing key proves are exact. Without a proof, the most that was ever spent and reserved counts as spent;
    a dataset without an event behind missing ones has nothing left. Exit code 1: a shard is not closed, or
    was closed for another successor.
    """
    from stream_svt.service.carry_over import read_balances

    config = load(path)
    carried, notes = wait_for(
        read_balances(config, cluster(config), successor=successor, source_ended=source_ended)
    )
    for line in carried.lines():
        click.echo(line)
    left = sum(balance.spent < balance.limit for balance in carried.datasets.values())
    told = f"{count(len(carried.datasets), 'dataset')}, {left} of them with something left"
    notes = [*notes, f"Carried over from {carried.application} to {successor}: {told}."]
    if not carried.complete:
        notes.append(
            "Alerts are missing: a dataset that is not in the file must be declared with new: true, and a query topic "
            "that is not in it by a monitor in the configuration carried over."
        )
    click.echo("\n".join(notes), err=True)
    sys.stdout.flush()
    return 0
