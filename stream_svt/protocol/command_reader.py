"""Reads commands between the transactions of a shard, and answers, refuses or returns them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.protocol.controls import CommandPhase, Controls, Refusal, Repeated
from stream_svt.protocol.ports import Clock, Observer
from stream_svt.protocol.records import Record
from stream_svt.protocol.transactions import Transactions

log = logging.getLogger(__name__)

COMMANDS_AT_ONCE = 50
"""Control records that are checked before other shards get a turn: their signatures take a few milliseconds."""
REPORTED = 100
"""Largest burst of reports of refused commands and of replies to repeated commands. The allowance grows by one each
second; beyond it, refusals are only counted."""


@dataclass(eq=False, kw_only=True)
class CommandReader:
    """Reads the records of a shard's control partition, whose topic is ``control``; commits their outcomes."""

    shard: int
    control: str
    engine: Engine
    controls: Controls
    transactions: Transactions
    clock: Clock
    observer: Observer
    _unread: deque[Record] = field(init=False, default_factory=deque)
    _slices: Iterator[CommandProgress] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._reports_full_at = self.clock.now()

    def take(self, records: Iterable[Record]) -> None:
        """Add fetched records of the control partition to those that `next_command` reads."""
        for record in records:
            self.controls.note_withdrawal(record)
            self._unread.append(record)

    async def next_command(self, phase: CommandPhase) -> Command | None:
        """Commit, and return the command to carry out now; None if every record read is refused or has to wait.

        Expired commands and withdrawals are answered here. The time of the commit, by the brokers' clock, decides
        whether a command is in time.
        """
        while (command := await self._find_command(phase)) is not None:
            await self.transactions.commit()
            if command.action is Action.WITHDRAW:
                self._withdraw(command)
            elif (now_ms := self.transactions.time_ms) > command.expires:
                operations.expire(self.engine, command, now_ms)
                self.consume_number(command, accepted=False, expired=True)
            else:
                return command
            await self.transactions.commit()
        return None

    def _withdraw(self, command: Command) -> None:
        last = self.controls.snapshot
        before = f"the last one, number {last.number} ({last.action}), {last.outcome}"
        before = before if last.number else "there was none before"
        accepted = operations.withdraw(self.engine, command, self.controls.waiting, before)
        self.consume_number(command, accepted=accepted)

    async def _find_command(self, phase: CommandPhase) -> Command | None:
        """Return the next command that may be carried out unless it has expired, or None."""
        if (command := self.controls.ready(phase, self.transactions.time_ms)) is not None:
            return command
        while self._unread:
            record = self._unread.popleft()
            self.transactions.uncommitted += 1
            found = self.controls.read(record, phase)
            if isinstance(found, Command):
                return found
            if isinstance(found, str):
                self._refuse(record.offset, found)
            elif isinstance(found, Repeated) and self._may_report():
                self._answer_again(found)
            if self._unread and len(self._unread) % COMMANDS_AT_ONCE == 0:
                await self.clock.sleep(0)
        return None

    def _answer_again(self, found: Repeated) -> None:
        stored = found.stored
        outcome = {"accepted": stored.accepted, "expired": stored.expired}
        operations.reply(self.engine, found.command, message=f"it {stored.outcome} before", **outcome)

    def consume_number(
        self,
        command: Command,
        *,
        accepted: bool,
        in_progress: CommandProgress | None = None,
        expired: bool = False,
    ) -> None:
        """Mark a command's number as used, and refuse another command that waited for it."""
        outcome = {"accepted": accepted, "expired": expired}
        waited = self.controls.consume_number(command, in_progress=in_progress, **outcome)
        if waited is not None:
            withdrawn = command.action is Action.WITHDRAW
            self._refuse(waited, Refusal.WITHDRAWN if withdrawn else Refusal.STALE)
        if in_progress is None:
            self._log_outcome(command, accepted=accepted)

    async def continue_command(self) -> None:
        """Carry out the next slice of a command to many datasets, if one is in progress, and commit."""
        if (in_progress := self.controls.in_progress) is not None:
            self._slices = self._slices or operations.apply_to_many(self.engine, in_progress)
            for in_progress in self._slices:
                self.controls.advance(in_progress)
                if self.engine.full:
                    break
                await self.clock.sleep(0)
            else:
                self._slices = None
                self.controls.end(accepted=in_progress.accepted)
                self._log_outcome(in_progress.command, accepted=in_progress.accepted)
        await self.transactions.commit()

    def _refuse(self, offset: int, reason: str) -> None:
        """Report a refused record; beyond the rate limit, only count it."""
        if self._may_report():
            self.engine.accounts.next.rejects.append((self.control, offset, reason))
            log.warning("event=command_refused shard=%d offset=%d reason=%s", self.shard, offset, reason)
        else:
            self.observer.count("records_rejected_total", self.control, reason)

    def _may_report(self) -> bool:
        """Return whether the rate limit admits one more report: a bucket that is full again at a known time."""
        now = self.clock.now()
        full_at = max(self._reports_full_at, now) + 1
        if self.engine.full or full_at - now > REPORTED:
            return False
        self._reports_full_at = full_at
        return True

    def _log_outcome(self, command: Command, *, accepted: bool) -> None:
        told = (self.shard, command.number, command.action.value)
        if accepted:
            log.info("event=command_done shard=%d number=%d action=%s", *told)
        else:
            log.warning("event=command_refused shard=%d number=%d action=%s reason=see-reply", *told)
