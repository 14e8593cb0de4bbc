"""Commands that look before anything is spent: check and schema."""

from __future__ import annotations

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
    report = check_offline(config)
    _print(report.findings)
    click.echo("\n".join(["", *explain(config.current), ""]))
    if not offline:
        report = wait_for(check_brokers(config, cluster(config), create_topics=create_topics))
        _print(report.findings)
        click.echo()
    if report.problems:
        click.echo(f"{count(len(report.problems), 'problem')}: see FAIL above.", err=True)
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
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from stream_svt.settings.sections import json_schema

    print_json(json_schema())
