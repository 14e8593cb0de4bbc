"""Datasets of a shard's state that are declared no longer, and names that can never be used again.

What stays of a retired dataset is a record ``r/`` with ledger and name, which refuses a second ledger. Of a period that
is over nothing stays: its generator's watermark, the end of the last period that is over, refuses it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from stream_svt.errors import ConfigError, Problem
from stream_svt.monitor.accounts import Accounts, DatasetAccount
from stream_svt.monitor.released import PERIOD_OVER, EventType
from stream_svt.monitor.shard_datasets import AT_ONCE
from stream_svt.monitor.snapshot import ProgressRecord, Signal, State, from_bytes, to_bytes
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec, RetiredDatasets, is_over


class Retirement:
    """Ends ledgers; ``retired`` has what stays of them by name, ``watermarks`` when periods were over by pattern."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._undeclared: list[tuple[DatasetAccount, bool]] = []
        self._reused: list[str] = []
        self.watermarks: dict[str, int] = {}
        self.retired: dict[str, bytes] = {}

    def add(self, account: DatasetAccount) -> None:
        """Take a stored dataset that is declared no longer."""
        self._undeclared.append((account, is_over(account.name, self.watermarks)))

    def find_reused(self, datasets: Iterable[DatasetSpec]) -> Iterator[None]:
        """Find datasets that have the name of a period that is over; yields now and then."""
        for count, dataset in enumerate(datasets if self.watermarks else (), start=1):
            if not dataset.pattern and is_over(dataset.name, self.watermarks):
                self._reused.append(dataset.name)
            if count % AT_ONCE == 0:
                yield

    def check(self, declared: Container[str], shard: int, *, may_retire: bool) -> None:
        """Refuse, with a `ConfigError`, datasets whose ledger was ended before, and those that are declared no longer.

        ``may_retire``: the configuration is one that was applied, so that `retire` may end the latter.
        """
        again = next((name for name in self.retired if name in declared), None)
        undeclared = [] if may_retire else [account.name for account, over in self._undeclared if not over]
        if again is not None:
            message = (
                f"dataset {again} was retired at shard {shard}: its name cannot be used again. Declare another "
                "one; only a successor of the application can go on with the ledger"
            )
        elif self._reused:
            message = (
                f"dataset {self._reused[0]} has the name of a period that a generator made and that is over at shard "
                f"{shard}: its name cannot be used again. Declare another one"
            )
        elif undeclared:
            message = (
                f"the state holds dataset {undeclared[0]}, which the configuration does not declare for shard {shard}; "
                "declare it again, or apply a configuration without it, which retires it"
            )
        else:
            return
        raise ConfigError([Problem(0, "datasets", message)])

    def close_runs(self) -> Iterator[None]:
        """Close the open runs of datasets that are declared no longer at full price, and of periods that are over.

        This comes before any query is read again: those of these datasets are passed over from now on, and an owner
        before may have tested them and lost the outcomes; but none of a period that was over before what it replayed.
        Yields after a slice of work; where the next commit is full then, the caller commits before it goes on.
        """
        for account, over in self._undeclared:
            for name, run_state in account.run_states.items():
                if run_state.state is State.RUNNING:
                    run_state.signal(Signal.ENDED)
                    lost = account.end_run(run_state, full_price=not over)
                    reason = PERIOD_OVER if over else "retired"
                    run = run_state.run
                    self._accounts.announce(EventType.RUN_CLOSED, account, reason, name, run, lost)
                    self._accounts.next.records[f"d/{account.name}".encode()] = to_bytes(account)
            yield

    def retire(self) -> Iterator[None]:
        """End the ledgers of datasets that are declared no longer; `close_runs` has closed their runs.

        To be called once the configuration that does not declare them is adopted: an older one, which does, must not
        find them gone. Yields as `close_runs`.
        """
        while self._undeclared:
            account, over = self._undeclared.pop()
            reason = PERIOD_OVER if over else "configuration"
            self._accounts.announce(EventType.RETIRED, account, reason, unit=account.unit)
            self._accounts.next.records[f"d/{account.name}".encode()] = None
            if not over:
                self._keep(account)
            yield

    def announce_balance(self, name: str) -> None:
        """Announce what is left of the ledger of a retired dataset, for ever."""
        account = from_bytes(DatasetAccount, self.retired[name], key=f"r/{name}")
        self._accounts.announce_balance(account)
        self._keep(account)

    def discard(self) -> None:
        """Let go of what was loaded."""
        self._undeclared = []

    def _keep(self, account: DatasetAccount) -> None:
        account.run_states = {}
        data = self.retired[account.name] = to_bytes(account)
        self._accounts.next.records[f"r/{account.name}".encode()] = data


def ended_datasets(
    spec: ApplicationSpec, records: Iterable[bytes], progress: bytes | None
) -> RetiredDatasets:
    """Return which datasets never come back, by what was carried over and the keys and progress of a state."""
    watermarks = dict(spec.carried.watermarks)
    if progress is not None:
        watermarks |= from_bytes(ProgressRecord, progress, key="meta").watermarks
    return RetiredDatasets(
        watermarks, frozenset(key[2:].decode() for key in records if key.startswith(b"r/"))
    )
