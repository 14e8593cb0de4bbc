"""Carries out the commands on a shard's control partition; the session commits what they change."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from stream_svt.monitor import operations
from stream_svt.monitor.commands import Command, UnderWay
from stream_svt.monitor.engine import Engine
from stream_svt.protocol.controls import Allowance, Controls, Gate, Repeated, Untimely, acts_at_once
from stream_svt.protocol.ports import Clock, Observer, Record

log = logging.getLogger(__name__)

COMMANDS_AT_ONCE = 50
"""Records of the control partition looked at between two turns of others: signatures take a few milliseconds."""

REPORTED, REPORTED_EACH_SECOND = 100, 1.0
"""Refused commands that are reported one by one, and repeated ones that are answered: at once, and each second. The
others are counted."""


class CommandHandler:
    """Takes commands in, and changes engine and controls by them; ``topic`` is the control topic.

    Attributes:
        unread: Records that were fetched and not looked at yet.
        taken: Number of records looked at since the session last reset it: their place is to be committed.
    """

    def __init__(
        self, shard: int, topic: str, engine: Engine, controls: Controls, clock: Clock, observer: Observer
    ) -> None:
        self.controls = controls
        self.unread: deque[Record] = deque()
        self.taken = 0
        self._shard = shard
        self._topic = topic
        self._engine = engine
        self._clock = clock
        self._observer = observer
        self._sweep: Iterator[UnderWay] | None = None
        self._allowance = Allowance(REPORTED, REPORTED_EACH_SECOND, clock.now())

    def add(self, records: Iterable[Record]) -> None:
        """Take fetched records in, to be looked at by `next`."""
        self.unread.extend(records)

    async def next(self, gate: Gate) -> Command | None:
        """Return the command to be carried out now, None once everything that was read is refused or waits."""
        if (command := self.controls.ready(gate)) is not None:
            return command
        unsaid: Counter[str] = Counter()
        found = None
        for count in range(1, len(self.unread) + 1):
            record = self.unread.popleft()
            self.taken += 1
            found = self.controls.read(record, gate)
            if isinstance(found, Command):
                break
            if isinstance(found, str):
                self._refuse(record.offset, found, unsaid)
            elif isinstance(found, Repeated) and self._may_say():
                done = "carried out" if found.accepted else "refused"
                message = f"it was {done} before"
                self._engine.accounts.reply(found.command, accepted=found.accepted, message=message)
            if count % COMMANDS_AT_ONCE == 0:
                await self._clock.sleep(0)
        for reason, number in unsaid.items():
            log.warning("event=commands_refused shard=%d reason=%s count=%d", self._shard, reason, number)
        return found if isinstance(found, Command) else None

    def carry_out(self, command: Command) -> None:
        """Carry out a command; of one to all datasets, nothing yet (`go_on`). Its number is durable with its effect."""
        if command.for_all:
            self._use_up(command, accepted=False, under_way=UnderWay(command))
        else:
            self.use_up(command, accepted=operations.apply(self._engine, command))

    def use_up(self, command: Command, *, accepted: bool) -> None:
        """Note that a command was carried out, or refused by the engine."""
        self._use_up(command, accepted=accepted)
        self._tell(command, accepted=accepted)

    def may_go_on(self, *, replayed: bool) -> bool:
        """Tell whether a command to all datasets is under way that need not wait, nor closes the application."""
        under_way = self.controls.under_way
        if under_way is None or under_way.closes:
            return False
        return replayed or acts_at_once(under_way.command)

    async def go_on(self) -> None:
        """Carry out the next slice of a command to all datasets: as much as one commit holds."""
        under_way = self.controls.under_way
        if under_way is None:
            return
        if self._sweep is None:
            self._sweep = operations.going_on(self._engine, under_way)
        for under_way in self._sweep:
            self.controls.go_on(under_way)
            if self._engine.full:
                return
            await self._clock.sleep(0)
        self._sweep = None
        self.controls.end(accepted=under_way.accepted)
        self._tell(under_way.command, accepted=under_way.accepted)

    def _use_up(self, command: Command, *, accepted: bool, under_way: UnderWay | None = None) -> None:
        waited = self.controls.use_up(command, accepted=accepted, under_way=under_way)
        if waited is not None:
            self._refuse(waited[0], Untimely.STALE, Counter())

    def _refuse(self, offset: int, reason: str, unsaid: Counter[str]) -> None:
        """Report a refused record; where there were many, only count it."""
        if self._may_say():
            self._engine.refuse(self._topic, offset, reason)
            log.warning("event=command_refused shard=%d offset=%d reason=%s", self._shard, offset, reason)
        else:
            self._observer.refused(self._topic, reason)
            unsaid[reason] += 1

    def _may_say(self) -> bool:
        return not self._engine.full and self._allowance.take(self._clock.now())

    def _tell(self, command: Command, *, accepted: bool) -> None:
        action, number = command.action.value, command.number
        if accepted:
            log.info("event=command_done shard=%d number=%d action=%s", self._shard, number, action)
        else:
            said = "event=command_refused shard=%d number=%d action=%s reason=see-reply"
            log.warning(said, self._shard, number, action)
