"""The command `count`: it counts the raw events of an application's sources."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from stream_svt.cli import common
from stream_svt.logs import log_to_stderr


@common.command("count -c monitors.yaml", "count -c monitors.yaml --accept-loss requests")
@common.config_option()
@common.option("--port", "Port of health and metrics. Default: web.port + 2.", click.IntRange(1, 65535))
@common.option(
    "--accept-loss accepts",
    "Let this source go on if it is parked at the start; several times for several sources.",
    metavar="SOURCE",
    multiple=True,
)
@click.option("--until-input-ends", is_flag=True, hidden=True)
@common.log_level_option
@common.log_format_option
def count(
    path: Path,
    port: int | None,
    accepts: tuple[str, ...],
    until_input_ends: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Count the raw events of sources, until stopped.

    Counts the sources that 'stream-svt apply' applied last, and writes a query for each count to their topics
    of counts, which workers test. Several counters share the sources. Logs for each source when its next
    answer is due. Logs, pages and metrics depend on raw events: they are for readers of the raw topics only.
    """
    from stream_svt.counting.process import run

    log_to_stderr(log_level, log_format)
    config = common.load(path, is_whole=False, for_counter=True)
    asyncio.run(run(config, port, accepts, until_input_ends=until_input_ends))
