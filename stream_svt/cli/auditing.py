"""The command that re-derives the books."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stream_svt.cli.connection import alert_topic, alert_topic_options, wait_for
from stream_svt.privacy.loss import as_text
from stream_svt.service.kafka import Cluster, tune

if TYPE_CHECKING:
    from stream_svt.service.audit import Audit


@click.command(
    short_help="Tell from the alerts whether the books balance.",
    epilog="""\b
Examples:
  stream-svt audit -c monitors.yaml
  stream-svt audit --topic retail.alerts --bootstrap-servers broker:9092 --json
""",
)
@alert_topic_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def audit(path: Path | None, servers: str | None, topic: str | None, as_json: bool) -> int:
    """Re-derive every charge from the alert topic and say whether the books balance.

    Needs nothing but the published events: that they are numbered without gaps, that their charges add up to
    every running total and stay within the limit, that runs and tops are numbered without gaps. Exit
    code 1: they do not.
    """
    arguments, topic = alert_topic(path, servers, topic)
    tune()
    found = _audit(arguments, topic)
    if as_json:
        click.echo(json.dumps(_as_json(found), indent=2))
    else:
        _print(found, topic)
    return 0 if found.balances else 1


def _audit(arguments: dict[str, Any], topic: str) -> Audit:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from stream_svt.service.audit import audit_topic

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} events read from {task.description}"))
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(topic, total=None)
        return wait_for(
            audit_topic(Cluster(arguments), topic, on_records=lambda count: bar.advance(task, count))
        )


def _print(found: Audit, topic: str) -> None:
    for books in sorted(found.datasets.values(), key=lambda one: one.dataset):
        before = (
            f", {as_text(books.before, books.kind)} of it before the oldest event" if books.before else ""
        )
        click.echo(
            f"{books.dataset}: {books.text()} spent{before}, {books.alerts} alerts, {books.events} events"
        )
    for partition in sorted(found.truncated):
        click.echo(f"partition {partition}: its oldest events are gone; what they charged is taken on trust")
    for finding in found.findings:
        click.echo(f"{click.style('FAIL', fg='red')} {finding}", err=True)
    if found.found > len(found.findings):
        click.echo(f".. and {found.found - len(found.findings)} more", err=True)
    seen = f"{found.events} events on {topic}, {found.alerts} of them alerts"
    if found.balances:
        click.echo(f"The books balance: {seen}.")
    else:
        click.echo(f"The books do NOT balance: {found.found} findings in {seen}.", err=True)


def _as_json(found: Audit) -> dict[str, Any]:
    return {
        "balances": found.balances,
        "events": found.events,
        "alerts": found.alerts,
        "truncated_partitions": sorted(found.truncated),
        "findings": [str(finding) for finding in found.findings],
        "found": found.found,
        "datasets": [
            {
                "dataset": books.dataset,
                "measure": books.kind.measure,
                "spent": as_text(books.spent, books.kind),
                "limit": as_text(books.limit, books.kind),
                "alerts": books.alerts,
                "events": books.events,
            }
            for books in sorted(found.datasets.values(), key=lambda one: one.dataset)
        ],
    }
