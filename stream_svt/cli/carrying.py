"""The command that writes down what is left of each budget of a closed application."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stream_svt.cli.connection import cluster, config_option, count, examples, flag, load, wait_for


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
        notes.append("Alerts are missing: a dataset that is not in the file must be declared with new: true.")
    click.echo("\n".join(notes), err=True)
    sys.stdout.flush()
    return 0
