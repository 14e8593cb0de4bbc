"""Variants of the commit protocol, each with one rule broken, that the simulator and the verifier must detect.

Each mistake is a subclass or wrapper that fits both the modelled log and a real broker.
"""

from __future__ import annotations

import asyncio
import collections
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state.accounts import Accounts, DatasetAccount
from stream_svt.monitor.state.runs import Status
from stream_svt.monitor.state.snapshot import RunState, to_bytes
from stream_svt.monitor.takeover import retire
from stream_svt.protocol.command_reader import CommandReader
from stream_svt.protocol.controls import CommandPhase, Controls, Repeated, accept_all, decode_command
from stream_svt.protocol.history.rollback import AlertScan
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Transaction
from stream_svt.protocol.records import Record
from stream_svt.protocol.session import ShardSession, Spans
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.worker.ports import ShardLog


class SameTransaction(Journal):
    """Publishes alerts in the transaction that charges them."""

    _fresh: Sequence[tuple[int, bytes, bytes]] = ()

    def __init__(self, log: Any, *args: Any, **options: Any) -> None:
        super().__init__(log, *args, **options)
        self._really = type(log).transact.__get__(log)
        log.transact = self._transact

    def _freeze(self, events: Any, origin: str) -> list[tuple[int, bytes, bytes]]:
        self._fresh = super()._freeze(events, origin)
        return self._fresh

    async def _transact(self, transaction: Transaction) -> int | None:
        if not transaction.alerts:
            transaction = replace(transaction, alerts=[(key, event) for _, key, event in self._fresh])
        self._fresh = ()
        return await self._really(transaction)


class ForgetsOutbox(Journal):
    """Ignores at a takeover the events that were charged and not yet published."""

    async def _check_rollback(self, *, empty: bool) -> None:
        await super()._check_rollback(empty=empty)
        self.records.outbox = []


class TakesAnyState(Journal):
    """Continues with any stored state, even a rolled-back one."""

    async def _check_rollback(self, *, empty: bool) -> None:
        pass


class TakesCopiesForPublications(Journal):
    """Treats events of an aborted transaction as published."""

    async def _read_alerts(self, *, committed: bool = False) -> tuple[AlertScan, int, int]:
        seen, first, end = await super()._read_alerts(committed=committed)
        if committed:
            every, *_ = await super()._read_alerts()
            seen.last = every.last
        return seen, first, end


class PublishesAgain(Journal):
    """Does not check whether the outbox was already published."""

    async def _read_alerts(self, *, committed: bool = False) -> tuple[AlertScan, int, int]:
        seen, first, end = await super()._read_alerts(committed=committed)
        if committed:
            seen.waiting = 0
        return seen, first, end


class _HalfPrice(DatasetAccount):
    """Charges half of a top's price."""

    def charge_top(self, run_state: RunState, left: int) -> int:
        return super().charge_top(run_state, left + (run_state.left - left + 1) // 2)


class _HalfPriceAccounts(Accounts):
    def account(self, number: int) -> DatasetAccount:
        account = super().account(number)
        account.__class__ = _HalfPrice
        return account


class ChargesHalf(Engine):
    """Charges half of a top's price, in the ledger and in the event: the sums agree."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.accounts.__class__ = _HalfPriceAccounts


class DoublesLimits(Engine):
    """Uses twice the declared limits."""

    def __init__(self, spec: ApplicationSpec, **options: Any) -> None:
        doubled = tuple(
            DatasetSpec(one.name, replace(one.terms, limit=2 * one.terms.limit)) for one in spec.datasets
        )
        names = [getattr(dataset, "name", dataset) for dataset in options.pop("datasets")]
        super().__init__(replace(spec, datasets=doubled), datasets=names, **options)


class LosesQueries(QueryDecoder):
    """Replaces every fifth query by one far below any threshold."""

    def decode(self, records: Sequence[Record]) -> QueryBatch:
        lost = msgspec.json.encode({"id": "lost", "value": 0})
        return super().decode(
            [replace(record, value=lost) if record.offset % 5 == 2 else record for record in records]
        )


class TestsBeforeDurable(Engine):
    """Tests queries in a run that is not durable yet: a lost outcome may decide who gets a budget's last run."""

    __test__ = False

    def add(self, *args: Any, **options: Any) -> Runner:
        runner = super().add(*args, **options)
        runs = runner.runs
        open_run = runs.open_run

        def opened(dataset: int, clock_ms: int) -> None:
            open_run(dataset, clock_ms)
            if runs.status[dataset] == Status.PENDING:
                runs.status[dataset] = Status.TESTABLE

        runs.open_run = opened  # type: ignore[method-assign]
        return runner


class ForgetsBegins(Engine):
    """Lets any number of runs begin within a moment."""

    def add(self, *args: Any, **options: Any) -> Runner:
        runner = super().add(*args, **options)
        runner.runs.next_begin = lambda *_: -1  # type: ignore[method-assign]
        return runner


class Disobedient(ShardSession):
    """A session with other rules for commands."""

    judge: type[Controls] = Controls
    reads: type[CommandReader] = CommandReader

    async def _load(self, records: dict[bytes, bytes]) -> None:
        await super()._load(records)
        self.reader.controls.__class__, self.reader.__class__ = self.judge, self.reads


class _PausesAtOnce(Controls):
    def _passes(self, command: Command, phase: CommandPhase) -> bool:
        return super()._passes(command, phase) or (
            command.action is Action.PAUSE and phase is CommandPhase.REPLAY
        )


class PausesBeforeReplay(Disobedient):
    """Pauses a dataset before the replay has repeated the tests of an earlier owner."""

    judge = _PausesAtOnce


class _AnyNumber(Controls):
    def read(self, record: Record, phase: CommandPhase) -> Command | Repeated | str | None:
        command = decode_command(record, accept_all)
        if isinstance(command, Command):
            command = msgspec.structs.replace(command, number=self.snapshot.number + 1)
            record = replace(record, value=msgspec.json.encode(command))  # type: ignore[type-var]
        return super().read(record, phase)


class ComparesNoNumbers(Disobedient):
    """Carries out any command that names the state, whatever its number."""

    judge = _AnyNumber


class _NeverLate(CommandReader):
    async def _find_command(self, phase: CommandPhase) -> Command | None:
        found = await super()._find_command(phase)
        return None if found is None else msgspec.structs.replace(found, expires=2**62)


class NeverExpires(Disobedient):
    """Carries out commands however late it comes to them."""

    reads = _NeverLate


class StepsUnbounded(ShardSession):
    """Steps records without a durable bound of how far it may have come."""

    async def _step_batch(self, batch: QueryBatch, count: int, **options: bool) -> bool:
        read_to = self.transactions.read_to
        read_to[batch.topic] = max(read_to.get(batch.topic, 0), batch.end)
        return await super()._step_batch(batch, count, **options)


class UsesNumbersLate(ShardSession):
    """Stores the number of a command one transaction after its effect."""

    async def _carry_out_and_commit(self, command: Command) -> None:
        if not command.for_many:
            accepted = operations.apply(self.engine, command)
            await self.transactions.commit()
            self.reader.consume_number(command, accepted=accepted)
            await self.transactions.commit()
        else:
            await super()._carry_out_and_commit(command)


class GoesOnWithAnyVersion(ShardSession):
    """Adopts any version of the configuration that its worker has."""

    def _compare_versions(self, progress: bytes) -> None:
        del progress


class RetiresTooEarly(ShardSession):
    """Retires datasets before its shard has adopted the configuration without them."""

    async def _seek_topics(self, spans: Spans) -> Mapping[str, int]:
        await self.transactions.in_slices(retire(self.engine), commits=True)
        return await super()._seek_topics(spans)


class NamesEachOwner(ShardLog):
    """Uses a new transactional id, so that no owner is fenced; the first two owners begin with empty state."""

    _owners: ClassVar[collections.defaultdict[str, int]] = collections.defaultdict(int)
    _beginnings: ClassVar[collections.defaultdict[str, asyncio.Barrier]] = collections.defaultdict(
        lambda: asyncio.Barrier(2)
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        name = self.transactional_id
        self._beginning = self._beginnings[name] if self._owners[name] < 2 else None
        self._owners[name] += 1
        self.transactional_id += f"-{self._owners[name]}"

    async def transact(self, transaction: Transaction) -> int | None:
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            await beginning.wait()
        return await super().transact(transaction)


class RedrawsNoise(Engine):
    """Draws new threshold noise at every takeover."""

    def add(self, spec: MonitorSpec, **options: Any) -> Runner:
        runner = super().add(spec, **options)
        runs = runner.runs
        show = runs.show

        def redrawn(dataset: int, run_state: RunState) -> None:
            if dataset not in self.accounts.changed and any(run_state.secrets):
                noise = 1 + int.from_bytes(os.urandom(1), "big")  # zeros: no run is open
                account = self.accounts.read(dataset)
                assert account is not None
                account.run_states[spec.name] = run_state
                run_state.secrets = noise.to_bytes(8, "little", signed=True) * 3
                self.accounts.hold(dataset, to_bytes(account))
            show(dataset, run_state)

        runs.show = redrawn  # type: ignore[method-assign]
        return runner
