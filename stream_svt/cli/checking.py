"""Commands that look before anything is spent: check and schema; and the shells' completion."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

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

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
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


@click.command(
    short_help="Print a shell's completion script.",
    epilog=examples(
        "completion bash > ~/.local/share/bash-completion/completions/stream-svt",
        "completion zsh > ~/.zfunc/_stream-svt",
        "completion fish > ~/.config/fish/completions/stream-svt.fish",
    ),
)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands and options."""
    kind = _SHELLS[shell]
    script = kind(context.find_root().command, {}, "stream-svt", "_STREAM_SVT_COMPLETE")
    click.echo(script.source_template % script.source_vars())
