"""The command that changes the number of partitions of a stopped application."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stream_svt.cli.connection import cluster, config_option, load, wait_for
from stream_svt.cli.naming import count
from stream_svt.service.config import Config

if TYPE_CHECKING:
    from stream_svt.protocol.migration import Report


@click.command(
    short_help="Change the number of partitions of a stopped application.",
    epilog="""\b
Examples:
  stream-svt migrate -c monitors.yaml --partitions 12 --dry-run
  stream-svt migrate -c monitors.yaml --partitions 12
""",
)
@config_option()
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=10_000),
    required=True,
    metavar="COUNT",
    help="The number of partitions wanted; the file still says the present one.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option(
    "--leave-unread",
    is_flag=True,
    help="Do not insist that every query was read: those of datasets that move will be refused, and open runs that may "
    "have tested them close at their full price.",
)
def migrate(path: Path, partitions: int, dry_run: bool, leave_unread: bool) -> int:
    """Change the number of partitions of a stopped application, its books in balance.

    First stop the producers, let the service run until its lag is 0, and stop it. Datasets that get another home take
    their ledgers along; their open runs end, and what those did not spend stays in the budgets. Kafka only ever adds
    partitions. Interrupted, the same command goes on where it was.

    Afterwards write the new number into topics.partitions, let the producers partition by it, and start both.
    """
    from stream_svt.service.migrate import migrate as carry_out
    from stream_svt.service.migrate import rehearse

    config = load(path)
    work = rehearse if dry_run else carry_out
    _print(
        config,
        wait_for(work(config, cluster(config), partitions, leave_unread=leave_unread)),
        partitions,
        dry_run,
    )
    return 0


def _print(config: Config, report: Report, partitions: int, dry_run: bool) -> None:
    if report.finished_before:
        click.echo(f"The migration to {partitions} partitions is done: nothing is left to do.")
    else:
        will = "would move" if dry_run else "moved"
        moved = f"{len(report.moved)} of {count(len(report.books), 'dataset')}"
        ended = "would end" if dry_run else "ended"
        click.echo(f"{moved} {will}, {count(report.runs_closed, 'open run')} {ended}.")
        if report.full_price:
            click.echo(
                f"{report.full_price} of those runs, whose queries are left unread, "
                f"{'would count' if dry_run else 'count'} as spent in full."
            )
        if dry_run:
            click.echo(f"Nothing was changed. All topics would have {partitions} partitions.")
            return
        kept = "" if not report.full_price else ", but for those runs"
        click.echo(
            f"All topics have {partitions} partitions. What is spent and the limits are what they were{kept}."
        )
    click.echo(f"Now set topics.partitions to {partitions} in {config.source}, and let the producers use it.")
