"""What a command to shards will change, shown before the operator is asked to confirm it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from stream_svt.application.config import Config
from stream_svt.application.facts import read_facts
from stream_svt.cli import common
from stream_svt.mechanisms.numbers import exact
from stream_svt.monitor.released import Account
from stream_svt.operate.control import Addressed
from stream_svt.privacy.loss import Kind, as_text, to_float
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.terminal import say
from stream_svt.wording import counted, more

SHOWN = 10
"""Datasets whose accounts are shown; further ones are counted."""


def confirm(
    config: Config, commands: Sequence[Addressed], effect: str, question: str, *, limit: str | None = None
) -> None:
    """Show accounts of the datasets that commands address, and what changes; then ask.

    Accounts are as of the newest events: the latest charges may be missing. Raises unless the answer is yes.
    """
    shards = {one.shard for one in commands}
    named = (one.command.datasets or (one.command.dataset,) for one in commands)
    names = [name for name in dict.fromkeys(chain.from_iterable(named)) if name]
    if not names:
        declared = [one.name for one in config.current.datasets]
        shards_of = config.partitioning.of_names(declared).tolist()
        names = [name for name, home in zip(declared, shards_of, strict=True) if home in shards]
    say_accounts(config, names[:SHOWN], limit)
    if left_out := more(len(names) - SHOWN):
        say(f"..{left_out}", err=True)
    where = f"{counted(len(names), 'dataset')} on {counted(len(shards), 'shard')}"
    say(f"{where}: {effect}", err=True)
    common.confirm(question)


def say_accounts(config: Config, names: Sequence[str], limit: str | None = None) -> None:
    """Show the accounts of datasets, and what a new limit means."""
    accounts = asyncio.run(read_facts(config, config.cluster(), names)).accounts if names else {}
    for name in names:
        for line in _lines(config, name, accounts.get(name), limit):
            say(line, err=True)


def _lines(config: Config, name: str, account: Account | None, limit: str | None) -> list[str]:
    """Return what a dataset's account is, and what a new limit means."""
    if (dataset := config.spec.find(name)) is None:
        return [f"{name}: not declared"]
    terms, unit = dataset.terms, dataset.terms.unit
    if account is None:
        measure, old = str(terms.kind.measure), as_text(terms.limit, terms.kind)
        head = f"{name} (unit: {unit}): limit {measure} {old} as declared; no event read shows its account"
    else:
        measure, old = account.measure, f"{account.limit:g}"
        spent = f"{account.spent:g} of {old} spent, {account.reserved:g} reserved by open runs"
        head = f"{name} (unit: {unit}): {measure} {spent}"
    if limit is None:
        return [head]
    new = f"{float(exact(limit)):g}"
    return [
        head,
        f"  limit {old} -> {new}: {unit} may lose up to {measure} {new} here, instead of {old}",
    ]


def prices(config: Config, monitors: Sequence[MonitorSpec]) -> str:
    """Return what a run of each monitor costs in each measure of the datasets, in words."""
    kinds = [kind for kind in Kind if any(one.terms.kind is kind for one in config.current.datasets)]
    return ", ".join(
        f"{one.name} {kind.measure} {to_float(one.run_price(kind), kind):g}"
        for one in monitors
        for kind in kinds
    )
