"""Closing and carrying over with one rule broken at a time: what the chains of applications must catch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.books import Books
from stream_svt.monitor.carried import Carried
from stream_svt.monitor.commands import Command
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import Account, Envelope
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.protocol.carry_over import ShardHistory, carry_over
from stream_svt.protocol.controls import Controls
from stream_svt.protocol.journal import CLOSED, Closed
from tests.simulation.chains import CarryingOver, ProvingJournal
from tests.simulation.world import ModelWorkload, Variant
from tests.support.broken_protocol import Disobedient


class ReadsOn(ShardHistory):
    """Reads what comes behind the event that closed the shard."""

    _found = False

    @property
    def _over(self) -> bool:
        return False

    @_over.setter
    def _over(self, over: bool) -> None:
        self._found = self._found or over

    def end(self) -> None:
        closed, self.closed = self.closed, None if self._found else self.closed
        super().end()
        self.closed = closed


class CountsNoReserve(ShardHistory):
    """Takes what is reserved for what is left."""

    def _account(self, sequence: int, dataset: str, account: Account) -> None:
        super()._account(sequence, dataset, Account(**{**_fields(account), "reserved": 0.0}))


class CountsTheLast(ShardHistory):
    """Takes what the last record says for the most."""

    def _account(self, sequence: int, dataset: str, account: Account) -> None:
        if dataset in self.datasets:
            self.datasets[dataset].most = 0
        super()._account(sequence, dataset, account)


class OverlooksGaps(ShardHistory):
    """Takes what it sees for all there was."""

    def end(self) -> None:
        super().end()
        self.gap = 0


class OverlooksOtherHistories(ShardHistory):
    """Takes two histories for one."""

    def end(self) -> None:
        super().end()
        self.conflict = False


class TrustsAnybody(ShardHistory):
    """Takes every end and every balance for proved."""

    def _is_proved(self, envelope: Envelope) -> bool:
        return True


class CountsNoBalances(ShardHistory):
    """Takes the balances that it sees for those of all datasets."""

    @property
    def complete(self) -> bool:
        return self._balances is not None


class SeesNoMirror(ShardHistory):
    """Takes a mirror for the source, and what it holds for all."""

    def end(self) -> None:
        super().end()
        self.cluster = ""
        self.closed = self.closed or Closed("app", 0, "")


def _fields(account: Account) -> dict[str, Any]:
    return {name: getattr(account, name) for name in account.__struct_fields__}


def asks_for_no_end(
    spec: ApplicationSpec, shards: list[ShardHistory], *, successor: str, **options: Any
) -> tuple[Carried, list[str]]:
    """Carry over what runs."""
    for one in shards:
        one.closed = one.closed or Closed(successor, 0, "")
    return carry_over(spec, shards, successor=successor, **options)


def takes_any_successor(
    spec: ApplicationSpec, shards: list[ShardHistory], *, successor: str, **options: Any
) -> tuple[Carried, list[str]]:
    """Carry over for whoever asks."""
    for one in shards:
        one.closed = one.closed and msgspec.structs.replace(one.closed, successor=successor)
    return carry_over(spec, shards, successor=successor, **options)


def forgets_what_was_carried(
    spec: ApplicationSpec, shards: list[ShardHistory], **options: Any
) -> tuple[Carried, list[str]]:
    """Count what this application spent, and nothing of those before it."""
    fresh = tuple(replace(dataset, spent_before=0) for dataset in spec.datasets)
    return carry_over(replace(spec, datasets=fresh, carried=None), shards, **options)


class _NeverClosing(Controls):
    closing = False  # type: ignore[assignment]


class GoesOnWhileClosing(Disobedient):
    """Tests queries between the slices of a close."""

    judge = _NeverClosing

    def _may_go_on(self) -> bool:
        return self._replayed and self._controls.under_way is not None


class OpensClosed(ProvingJournal):
    """Goes on with an application that was closed."""

    async def _restore(self, raw: Mapping[bytes, bytes]) -> Any:
        found = await super()._restore(raw)
        if not self.pending:
            self._meta.commands = msgspec.structs.replace(self._meta.commands, closed="")
        return found


class OverlooksTheRecord(ProvingJournal):
    """Looks at no record that says that the state was given up."""

    async def _read(self) -> dict[bytes, bytes]:
        raw = await self._log.read_state()
        raw.pop(CLOSED, None)
        return raw


class GivesUpAnything(ProvingJournal):
    """Gives a state up that can be proved."""

    async def _unproved(self) -> str | None:
        return await super()._unproved() or "so they say"


class FencesNobody(ProvingJournal):
    """Gives a state up beside whoever owns it."""

    async def give_up(self, command: Command) -> None:
        log: Any = self._log

        async def adopt() -> None:
            log._epoch = log._broker._producers["app-0"].epoch

        log.fence = adopt
        await super().give_up(command)


class _AnewAccounts(Accounts):
    def books(self, number: int) -> Books:
        if number not in self.held:
            super().books(number)
            self.held[number].ledger = Books(replace(self.datasets[number], spent_before=0)).ledger
        return super().books(number)


class BeginsAnew(Engine):
    """Gives a successor the whole limit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.accounts.__class__ = _AnewAccounts


def _carrying(**parts: Any) -> tuple[Variant, CarryingOver]:
    return Variant(journal=ProvingJournal), CarryingOver(**parts)


def _running(**parts: Any) -> tuple[Variant, CarryingOver]:
    return Variant(**{"journal": ProvingJournal} | parts), CarryingOver()


_SPENT, _RUNS, _TWICE = "was carried over, ", "that is not closed", "to two successors"

BROKEN: dict[str, tuple[tuple[Variant, CarryingOver], str]] = {
    "uncommitted events not read": (_carrying(committed=True), _SPENT),
    "what is reserved is not counted": (_carrying(history=CountsNoReserve), _SPENT),
    "the last record instead of the most": (_carrying(history=CountsTheLast), _SPENT),
    "gaps overlooked": (_carrying(history=OverlooksGaps), _SPENT),
    "events behind the end": (_carrying(history=ReadsOn), _SPENT),
    "two histories taken for one": (_carrying(history=OverlooksOtherHistories), _SPENT),
    "balances that nobody proved": (_carrying(history=TrustsAnybody), ""),
    "some balances taken for all": (_carrying(history=CountsNoBalances), _SPENT),
    "a mirror taken for the source": (_carrying(history=SeesNoMirror), ""),
    "an application that runs": (_carrying(carry_over=asks_for_no_end), _RUNS),
    "any successor": (_carrying(carry_over=takes_any_successor), _TWICE),
    "what was spent before it is forgotten": (_carrying(carry_over=forgets_what_was_carried), _SPENT),
    "a successor with the whole limit": (_running(workload=partial(ModelWorkload, kind=BeginsAnew)), ""),
    "queries tested while it is closed": (_running(tenure=GoesOnWhileClosing), ""),
    "a closed application opened": (_running(journal=OpensClosed), ""),
    "the record of a state given up overlooked": (_running(journal=OverlooksTheRecord), ""),
    "a sound state given up": (_running(journal=GivesUpAnything), ""),
    "a state given up beside its owner": (_running(journal=FencesNobody), ""),
}
"""Deliberate bugs by name, and what is said of them."""
