"""Commands that look before anything is spent: check, prove and schema."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stream_svt.cli.connection import (
    cluster,
    config_option,
    count,
    examples,
    flag,
    load,
    print_json,
    wait_for,
)
from stream_svt.errors import ConfigError

if TYPE_CHECKING:
    from stream_svt.service.check import Finding

_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "problem": ("FAIL", "red")}


@click.command(
    short_help="Check configuration, topics and permissions.",
    epilog=examples("check -c monitors.yaml --offline", "check -c monitors.yaml --create-topics"),
)
@config_option()
@flag("--create-topics", "Create the topics that do not exist.")
@flag("--offline", "Look at the configuration only.")
def check(path: Path, create_topics: bool, offline: bool) -> int:
    """Check a configuration, the brokers' topics and the permissions.

    Prints what the budget of each monitor buys, and whether the keys open what each shard has stored last.
    Spends nothing, stores nothing, disturbs no running worker.
    """
    from stream_svt.planning import explain
    from stream_svt.service.check import check_brokers, check_offline

    if offline and create_topics:
        raise click.UsageError("--create-topics needs the brokers: leave --offline out.")
    config = load(path)
    findings = check_offline(config)
    _print(findings)
    click.echo("\n".join(["", *explain(config.current), ""]))
    if not offline:
        findings = wait_for(check_brokers(config, cluster(config), create_topics=create_topics))
        _print(findings)
        click.echo()
    if problems := sum(finding.is_problem for finding in findings):
        click.echo(f"{count(problems, 'problem')}: see FAIL above.", err=True)
        return ConfigError.exit_code
    click.echo("Ready to run." if not offline else "The configuration is valid.")
    return 0


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        mark, colour = _MARKS[finding.level.value]
        click.echo(f"{click.style(mark, fg=colour)} {finding.subject}: {finding.message}")


@click.command(
    epilog=f"""{examples("schema > stream-svt.schema.json")}
\b
Then, as the first line of a configuration, for editors that use the YAML language server:
  # yaml-language-server: $schema=./stream-svt.schema.json
"""
)
@flag("--forward forwarder", "That of the forwarder's file.")
def schema(forwarder: bool) -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from stream_svt.forward.config import json_schema as of_forwarder
    from stream_svt.settings.sections import json_schema

    print_json(of_forwarder() if forwarder else json_schema())


@click.command(
    short_help="Try whether neighbouring streams can be told apart.",
    epilog=examples("prove -c monitors.yaml", "prove -c monitors.yaml --cases 2000 --seed 7"),
)
@config_option()
@click.option(
    "--cases", type=click.IntRange(1), default=100, show_default=True, help="Pairs of streams to try."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another one tries other streams.")
def prove(path: Path, cases: int, seed: int) -> int:
    """Play random streams and their neighbours through the engine, under the monitors of a configuration.

    The neighbour differs by at most the declared sensitivity in every answer. With its noise moved as the
    proof says, everything that can be seen must be the same, and the move must cost at most what was charged.
    Needs no broker, reads no data, spends nothing.
    """
    from stream_svt.proving import prove as try_neighbours

    config = load(path)
    errors = click.get_text_stream("stderr")
    with click.progressbar(length=cases, label="Trying", file=errors, hidden=not errors.isatty()) as bar:
        summary = try_neighbours(
            config.current,
            cases=cases,
            chance_of=lambda number: random.Random(f"{seed} {number}"),  # noqa: S311 - streams, not noise
            progress=lambda _: bar.update(1),
        )
    click.echo(
        f"Tried {count(summary.cases, 'pair')} of neighbouring streams on "
        f"{count(len(config.spec.monitors), 'monitor')}: {count(summary.queries, 'test')}, "
        f"{count(summary.alerts, 'alert')}, {count(summary.runs, 'run')}, {count(summary.commits, 'commit')}; "
        f"{count(summary.crashes, 'restart')} and {count(summary.commands, 'command')} in between."
    )
    if summary.found is not None:
        click.echo(f"COUNTEREXAMPLE in case {summary.found.case} of seed {seed}: {summary.found.what}.")
        click.echo(
            "The guarantee does not hold as declared. Please report this, with the configuration and the seed."
        )
        return 1
    click.echo(
        "Every comparison held: events, rejects, positions, counts, which step asked for a commit, and keys and "
        "lengths of all state records were the same. Moving the noise cost at most what was charged, in the closest "
        f"case {float(summary.closest):.1%} of it."
    )
    if summary.unaligned:
        left_out = count(summary.unaligned, "pair")
        click.echo(f"{left_out} had threshold noise that no entropy leads to, and were left out.")
    click.echo(
        "This is a test of the program, not the proof: docs/privacy-guarantee.md has that, and what it assumes."
    )
    return 0
