"""Commands about a configuration: check it, apply it, show the one that is applied, and try its privacy."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stream_svt.cli import common
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.protocol.configuration import Version
from stream_svt.service import applied
from stream_svt.service.config import Config, bundle_of
from stream_svt.service.signatures import SigningKey

if TYPE_CHECKING:
    from stream_svt.service.check import Finding

FIRST_WAIT = 10.0
"""Seconds to wait where no worker is a member of the group."""

_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "problem": ("FAIL", "red")}


@common.command("check -c monitors.yaml --offline", "check -c monitors.yaml --create-topics")
@common.config_option()
@common.flag("--create-topics", "Create the topics that do not exist.")
@common.flag("--offline", "Look at the configuration only.")
def check(path: Path, create_topics: bool, offline: bool) -> int:
    """Check configuration, topics and permissions.

    Prints what the budget of each monitor buys, and whether the keys open what each shard has stored last.
    Spends nothing, stores nothing, disturbs no running worker.
    """
    from stream_svt.planning import explain
    from stream_svt.service.check import check_brokers, check_offline

    if offline and create_topics:
        raise click.UsageError("--create-topics needs the brokers: leave --offline out.")
    config = common.load(path)
    findings = check_offline(config)
    _print(findings)
    click.echo("\n".join(["", *explain(config.current), ""]))
    if not offline:
        findings = asyncio.run(check_brokers(config, common.cluster(config), create_topics=create_topics))
        _print(findings)
        click.echo()
    if problems := [one for one in findings if one.level == "problem"]:
        click.echo(f"{common.count(len(problems), 'problem')}: see FAIL above.", err=True)
        return ConfigError.exit_code
    click.echo("Ready to run." if not offline else "The configuration is valid.")
    return 0


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        mark, colour = _MARKS[finding.level]
        click.echo(f"{click.style(mark, fg=colour)} {finding.subject}: {finding.message}")


@click.command(
    epilog=f"""{common.examples("schema > stream-svt.schema.json")}
\b
Then, as the first line of a configuration, for editors that use the YAML language server:
  # yaml-language-server: $schema=./stream-svt.schema.json
"""
)
@common.flag("--forward forwarder", "That of the forwarder's file.")
def schema(forwarder: bool) -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from stream_svt.forward.config import json_schema as of_forwarder
    from stream_svt.settings.sections import json_schema

    common.print_json(of_forwarder() if forwarder else json_schema())


@common.command("prove -c monitors.yaml", "prove -c monitors.yaml --cases 2000 --seed 7")
@common.config_option()
@common.option("--cases", "Pairs of streams to try.", type=click.IntRange(1), default=100, show_default=True)
@common.option("--seed", "Another one tries other streams.", type=int, default=0, show_default=True)
def prove(path: Path, cases: int, seed: int) -> int:
    """Try whether neighbouring streams can be told apart.

    Plays random streams and their neighbours through the engine, under the monitors of a configuration. The neighbour
    differs by at most the declared sensitivity in every answer. With its noise moved as the proof says, everything
    that can be seen must be the same, and the move must cost at most what was charged. Needs no broker, reads no
    data, spends nothing.
    """
    from stream_svt.proving import prove as try_neighbours

    config = common.load(path)
    errors = click.get_text_stream("stderr")
    with click.progressbar(length=cases, label="Trying", file=errors, hidden=not errors.isatty()) as bar:
        summary = try_neighbours(
            config.current,
            cases=cases,
            rng_of=lambda number: random.Random(f"{seed} {number}"),  # noqa: S311 - streams, not noise
            progress=lambda _: bar.update(1),
        )
    count = common.count
    click.echo(
        f"Tried {count(summary.cases, 'pair')} of neighbouring streams on "
        f"{count(len(config.spec.monitors), 'monitor')}: {count(summary.queries, 'test')}, "
        f"{count(summary.alerts, 'alert')}, {count(summary.runs, 'run')}, {count(summary.commits, 'commit')}; "
        f"{count(summary.crashes, 'restart')} and {count(summary.commands, 'command')} in between."
    )
    if summary.counterexample is not None:
        click.echo(f"COUNTEREXAMPLE in case {summary.cases - 1} of seed {seed}: {summary.counterexample}.")
        click.echo(
            "The guarantee does not hold as declared. Please report this, with the configuration and the seed."
        )
        return 1
    click.echo(
        "Every comparison held: events, rejects, positions, counts, which step asked for a commit, and keys and "
        "lengths of all state records were the same. Moving the noise cost at most what was charged, in the closest "
        f"case {float(summary.largest_cost):.1%} of it."
    )
    if summary.unaligned:
        left_out = count(summary.unaligned, "pair")
        click.echo(f"{left_out} had threshold noise that no entropy leads to, and were left out.")
    click.echo(
        "This is a test of the program, not the proof: docs/privacy-guarantee.md has that, and what it assumes."
    )
    return 0


@common.command("apply -c monitors.yaml --dry-run", "apply -c monitors.yaml")
@common.config_option()
@common.flag("--dry-run", "Show what would change; change nothing.")
@common.flag("--yes", "Do not ask; datasets are retired with --retire only.")
@common.flag("--retire", "With --yes: retire datasets for ever that the file does not declare.")
@common.seconds_option("--wait", 60, "How long to wait for the shards to adopt it.")
@common.option(
    "--above",
    "Give the version a larger number than this: where the configuration topic was made anew.",
    type=click.IntRange(min=0),
    default=0,
    metavar="NUMBER",
)
@common.flag("--create-topics", "Create the topics that are missing first.")
@common.signing_option
def apply(
    path: Path,
    dry_run: bool,
    yes: bool,
    retire: bool,
    wait: float,
    above: int,
    create_topics: bool,
    key_file: Path | None,
) -> int:
    """Change what an application monitors.

    Shows what changes, asks, and publishes the file's datasets and monitors, with the files that they name, as the
    next version, for workers that start later too. Every shard adopts it between two transactions; no worker is
    restarted. Where somebody else applied a version meanwhile, nothing is changed. Exit code 1: refused, overtaken,
    or not adopted by every shard in time. A parked shard adopts it once it is open; until every shard did, producers
    must not rely on it.
    """
    config = common.load(path)
    if dry_run and create_topics:
        raise click.UsageError("--create-topics changes something, and --dry-run changes nothing.")
    key = None if dry_run else common.signing_key_of(config, key_file)
    if create_topics:
        from stream_svt.service.check import create_missing

        for finding in asyncio.run(create_missing(config, common.cluster(config))):
            click.echo(finding.message, err=True)
    proposal = asyncio.run(applied.propose(config, common.cluster(config), bundle_of(path)))
    _show(config, proposal)
    if dry_run or not proposal.is_new:
        return 0
    retired = proposal.difference.retired
    if not yes:
        also = f", and retire {retired} for ever" if retired else ""
        common.confirm(f"Apply this to {config.spec.application}{also}?")
    elif not retire:
        _refuse_to_retire(config, proposal, "with --retire as well, if that is meant")
    return asyncio.run(_apply(config, proposal, above=above, key=key, patience=wait))


def apply_file(path: Path, key_file: Path | None = None) -> None:
    """Apply a file without asking, and without waiting for shards; nothing happens where it is applied already."""
    config = common.load(path)
    brokers, key = common.cluster(config), common.signing_key_of(config, key_file)
    while (proposal := asyncio.run(applied.propose(config, brokers, bundle_of(path)))).is_new:
        _refuse_to_retire(config, proposal, "with 'stream-svt apply', if that is meant")
        bundle, before = proposal.bundle, proposal.before
        with contextlib.suppress(applied.Overtaken):  # workers of one file start side by side
            version = asyncio.run(applied.publish(config, brokers, bundle, before=before, key=key))
            _show(config, proposal)
            click.echo(_applied(config, version), err=True)
            return


def _refuse_to_retire(config: Config, proposal: applied.Proposal, way: str) -> None:
    """Refuse to end datasets for ever where nobody is asked: a file of yesterday declares fewer, too."""
    if retired := proposal.difference.retired:
        message = f"{retired} would be retired for ever, and nobody was asked: apply it {way}"
        raise ConfigError([Problem(0, "datasets", message)], config.source)


def _show(config: Config, proposal: applied.Proposal) -> None:
    known = f"version {proposal.before.number}" if proposal.before is not None else "nothing"
    click.echo(f"Application {config.spec.application}: {known} is applied.", err=True)
    if proposal.refused is not None:
        newest = f"newest record of topic {config.topics.config}"
        click.echo(f"The {newest} is not followed: {proposal.refused}.", err=True)
    if not proposal.is_new:
        click.echo("No change: that version says the same.", err=True)
        return
    for line in proposal.difference.lines:
        click.echo(line)


async def _apply(
    config: Config, proposal: applied.Proposal, *, above: int, key: SigningKey | None, patience: float
) -> int:
    brokers = common.cluster(config)
    starts = await applied.ends_of_alerts(config, brokers)
    bundle, before = proposal.bundle, proposal.before
    version = await applied.publish(config, brokers, bundle, before=before, above=above, key=key)
    click.echo(_applied(config, version))
    if not patience:
        return 0
    is_owned = bool(await applied.workers(config, brokers))
    if not is_owned:  # those that wait for a first version are in no group yet
        patience = min(patience, FIRST_WAIT)
    left = set(starts)
    async for shard in applied.adoptions(config, brokers, version.number, starts, patience):
        left.discard(shard)
    adopted = len(starts) - len(left)
    if not adopted and not is_owned:
        click.echo("No worker is there yet: each shard adopts it once one owns it.")
        return 0
    click.echo(f"Adopted by {adopted} of {len(starts)} shards.")
    if left:
        named = ", ".join(map(str, sorted(left)))
        told = f"not yet adopted by shard {named}: 'stream-svt status' says why a shard is not open"
        click.echo(f"stream-svt: {told}", err=True)
    return 1 if left else 0


def _applied(config: Config, version: Version) -> str:
    return f"Version {version.number} of {config.spec.application} is applied."


@common.command("config -c monitors.yaml > applied.yaml", name="config")
@common.config_option()
@common.option("--file name", "Show this file that it names, instead of its text.", metavar="NAME")
def show_config(path: Path, name: str | None) -> None:
    """Show the configuration that is applied.

    It is printed as it was written; its number goes to standard error. Exit code 1: no version was applied yet, or
    there is no such file in it.
    """
    config = common.load(path)
    versions = asyncio.run(applied.read_versions(config, common.cluster(config)))
    version = applied.newest(versions, config.topics.config)
    if version is None:
        raise StreamSvtError("no configuration was applied yet: 'stream-svt apply -c FILE'")
    if name is not None and name not in version.bundle.files:
        there = ", ".join(version.bundle.files) or "none"
        raise StreamSvtError(f"the version names no file {name!r}; it names: {there}")
    click.echo(f"Version {version.number}, digest {version.digest[:16]}", err=True)
    click.echo(version.bundle.text if name is None else version.bundle.files[name], nl=False)
