"""The command `look`: the deciles of what a monitor tests, with noise, for a charge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from stream_svt.cli import common
from stream_svt.cli.common import option
from stream_svt.errors import StreamSvtError
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.terminal import say, say_lines, write

if TYPE_CHECKING:
    from stream_svt.application.config import Config
    from stream_svt.settings.monitors import MonitorSpec


def epsilon(text: str) -> int:
    """Return an epsilon in ledger units."""
    from stream_svt.mechanisms.numbers import exact
    from stream_svt.privacy.loss import Kind, to_units

    try:
        units = to_units(exact(text), Kind.PURE)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None
    if not 0 < units <= 1000 * UNITS_PER_EPSILON:
        raise click.BadParameter(f"{text!r} is not an epsilon such as 0.1.")
    return units


@common.command(
    "look -c monitors.yaml --monitor many-users --epsilon 0.1",
    "look -c monitors.yaml --monitor many-users --epsilon 0.1 --yes --json > look.json",
)
@common.config_option()
@option("--monitor name", "A monitor of a source of events.", required=True, metavar="NAME")
@option("--epsilon units", "What the look costs its dataset.", epsilon, required=True, metavar="EPSILON")
@option("--dataset", "The dataset. Default: the current one.", metavar="NAME")
@common.seconds_option("--timeout", 30, "Longest wait for the answer.", least=0.1)
@common.yes_option
@common.flag("--json as_json", "Print the event as one line of JSON, which plan --look takes.")
def look(
    path: Path, name: str, units: int, dataset: str | None, timeout: float, yes: bool, as_json: bool
) -> int:
    """Look at what a monitor tests: nine deciles of its values, less the threshold, with noise, for one charge.

    Reads the closed windows of one dataset that the topic of counts retains, and writes their deciles to that topic,
    for the worker: it charges epsilon to the dataset, adds noise, and publishes the event deciles. Needs the counter's
    rights to the topic of counts. Exit code 1: refused, at no cost; or no answer in time.
    """
    from stream_svt.cli.confirming import say_accounts
    from stream_svt.operate import looking
    from stream_svt.privacy.loss import Kind, as_text

    config = common.load(path, for_counter=True)
    monitor = _monitor(config, name)
    source, found = config.spec.source(monitor.source or ""), _dataset(config, monitor, dataset)
    deciles = asyncio.run(looking.read_deciles(config, monitor, found, units))
    if not yes:
        say_accounts(config, [found])
        say(f"One look at what {name} tests costs epsilon {as_text(units, Kind.PURE)}.", err=True)
        common.confirm("Look?")
    try:
        event = asyncio.run(looking.release(config, source, deciles, timeout))
    except KeyboardInterrupt:
        say(f'interrupted: a worker may still charge for the look, with "request": "{deciles.id}"', err=True)
        raise
    if event.data.reason != "released":
        why = looking.REFUSED.get(event.data.reason, event.data.reason)
        raise StreamSvtError(f"refused, nothing was charged to {found}: {why}")
    if as_json:
        write(msgspec.json.encode(event))
        return 0
    say_lines("\n".join(looking.lines_of(event, monitor)))
    say(f"Charged epsilon {as_text(units, Kind.PURE)} to {found}. Event {event.id}")
    say(f"Plan with it: stream-svt plan -c {path} --monitor {name} --look {event.id}")
    if monitor.detect is not None:
        say(f"Choose above and surely_from of detect with it: stream-svt check -c {path} names their price")
    return 0


def _monitor(config: Config, name: str) -> MonitorSpec:
    counting = {one.name for one in config.spec.sources if one.answers is None}
    known = {one.name: one for one in config.spec.monitors if one.source in counting and not one.ends}
    if name not in known:
        which = f"one of {', '.join(known)}" if known else "one of a source of events, and there is none"
        raise click.UsageError(f"--monitor must be {which}.")
    return known[name]


def _dataset(config: Config, monitor: MonitorSpec, given: str | None) -> str:
    """Return the dataset to look at: the given one, or the only current one that a monitor covers."""
    if given is not None:
        if config.spec.find(given) is None or not monitor.covers(given):
            raise click.UsageError(f"--dataset: {monitor.name} tests nothing in {given!r}.")
        return given
    names = [one.name for one in config.current.datasets if monitor.covers(one.name)]
    if len(names) != 1:
        shown = ", ".join(names[:10])
        raise click.UsageError(f"--dataset is missing: {monitor.name} covers {len(names)} now. {shown}")
    return names[0]
