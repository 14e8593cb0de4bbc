"""Commands that apply a configuration, and show the one that is applied."""

from __future__ import annotations

from pathlib import Path

import click

from stream_svt.cli.connection import (
    cluster,
    config_option,
    confirm,
    examples,
    flag,
    load,
    seconds_option,
    signing_key_of,
    signing_option,
    wait_for,
)
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.protocol.configuration import Version
from stream_svt.service.applied import (
    Overtaken,
    Proposal,
    adoptions,
    ends_of_alerts,
    newest,
    propose,
    publish,
    read_versions,
    workers,
)
from stream_svt.service.config import Config, bundle_of
from stream_svt.service.signatures import SigningKey

FIRST_WAIT = 10.0
"""Seconds to wait where no worker is a member of the group."""


@click.command(
    short_help="Change what an application monitors.",
    epilog=examples("apply -c monitors.yaml --dry-run", "apply -c monitors.yaml"),
)
@config_option()
@flag("--dry-run", "Show what would change; change nothing.")
@flag("--yes", "Do not ask; datasets are retired with --retire only.")
@flag("--retire", "With --yes: retire datasets for ever that the file does not declare.")
@seconds_option("--wait", 60, "How long to wait for the shards to adopt it.")
@click.option(
    "--above",
    type=click.IntRange(min=0),
    default=0,
    metavar="NUMBER",
    help="Give the version a larger number than this: where the configuration topic was made anew.",
)
@flag("--create-topics", "Create the topics that are missing first.")
@signing_option
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
    """Make a file the configuration of all workers, those that start later included.

    Shows what changes, asks, and publishes the file's datasets and monitors, with the files that they name,
    as the next version. Every shard adopts it between two transactions; no worker is restarted. Where
    somebody else applied a version meanwhile, nothing is changed. Exit code 1: refused, overtaken, or not
    adopted by every shard in time. A parked shard adopts it once it is open; until every shard did, producers
    must not rely on it.
    """
    config = load(path)
    if dry_run and create_topics:
        raise click.UsageError("--create-topics changes something, and --dry-run changes nothing.")
    key = None if dry_run else signing_key_of(config, key_file)
    if create_topics:
        from stream_svt.service.check import create_missing

        for finding in wait_for(create_missing(config, cluster(config))):
            click.echo(finding.message, err=True)
    proposal = wait_for(propose(config, cluster(config), bundle_of(path)))
    _show(config, proposal)
    if dry_run or not proposal.is_new:
        return 0
    retired = proposal.difference.retired
    if not yes:
        also = f", and retire {retired} for ever" if retired else ""
        confirm(f"Apply this to {config.spec.application}{also}?")
    elif not retire:
        _refuse_to_retire(config, proposal, "with --retire as well, if that is meant")
    return wait_for(_apply(config, proposal, above=above, key=key, patience=wait))


def apply_file(path: Path, key_file: Path | None = None) -> None:
    """Apply a file without asking, and without waiting for shards; nothing happens where it is applied already.

    Raises:
        StreamSvtError: It cannot be applied.
    """
    config = load(path)
    key = signing_key_of(config, key_file)
    for last in (False, False, True):
        proposal = wait_for(propose(config, cluster(config), bundle_of(path)))
        if not proposal.is_new:
            return
        _refuse_to_retire(config, proposal, "with 'stream-svt apply', if that is meant")
        try:
            version = wait_for(
                publish(config, cluster(config), proposal.bundle, before=proposal.before, key=key)
            )
        except Overtaken:  # workers of one file start side by side
            if last:
                raise
        else:
            _show(config, proposal)
            click.echo(_applied(config, version), err=True)
            return


def _refuse_to_retire(config: Config, proposal: Proposal, way: str) -> None:
    """Refuse to end datasets for ever where nobody is asked: a file of yesterday declares fewer, too."""
    if retired := proposal.difference.retired:
        message = f"{retired} would be retired for ever, and nobody was asked: apply it {way}"
        raise ConfigError([Problem(0, "datasets", message)], config.source)


def _show(config: Config, proposal: Proposal) -> None:
    known = f"version {proposal.before.number}" if proposal.before is not None else "nothing"
    click.echo(f"Application {config.spec.application}: {known} is applied.", err=True)
    if proposal.refused is not None:
        topic = config.topics.config
        click.echo(f"The newest record of topic {topic} is not followed: {proposal.refused}.", err=True)
    if not proposal.is_new:
        click.echo("No change: that version says the same.", err=True)
        return
    for line in proposal.difference.lines:
        click.echo(line)


async def _apply(
    config: Config, proposal: Proposal, *, above: int, key: SigningKey | None, patience: float
) -> int:
    brokers = cluster(config)
    starts = await ends_of_alerts(config, brokers)
    version = await publish(config, brokers, proposal.bundle, before=proposal.before, above=above, key=key)
    click.echo(_applied(config, version))
    if not patience:
        return 0
    is_owned = bool(await workers(config, brokers))
    if not is_owned:  # those that wait for a first version are in no group yet
        patience = min(patience, FIRST_WAIT)
    left = set(starts)
    async for shard in adoptions(config, brokers, version.number, starts, patience):
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


@click.command(
    "config",
    short_help="Show the configuration that is applied.",
    epilog=examples("config -c monitors.yaml > applied.yaml"),
)
@config_option()
@click.option("--file", "name", metavar="NAME", help="Show this file that it names, instead of its text.")
def show_config(path: Path, name: str | None) -> None:
    """Print the version applied last, as it was written; its number goes to standard error.

    Exit code 1: no version was applied yet, or there is no such file in it.
    """
    version = wait_for(_newest(load(path)))
    if version is None:
        raise StreamSvtError("no configuration was applied yet: 'stream-svt apply -c FILE'")
    if name is not None and name not in version.bundle.files:
        there = ", ".join(version.bundle.files) or "none"
        raise StreamSvtError(f"the version names no file {name!r}; it names: {there}")
    click.echo(f"Version {version.number}, digest {version.digest[:16]}", err=True)
    click.echo(version.bundle.text if name is None else version.bundle.files[name], nl=False)


async def _newest(config: Config) -> Version | None:
    return newest(await read_versions(config, cluster(config)), config.topics.config)
