"""Retirement of datasets that the configuration no longer declares; their names can never be used again.

A record ``r/`` keeps name and ledger of a retired dataset, to refuse a second ledger of that name. A generated period
that is over leaves no record: its generator's watermark, the end of the last such period, refuses it.
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
    """Ends ledgers; ``retired`` has the records by name, ``watermarks`` the end of the last past period by pattern."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._undeclared: list[tuple[DatasetAccount, bool]] = []
        self._reused: list[str] = []
        self.watermarks: dict[str, int] = {}
        self.retired: dict[str, bytes] = {}

    def add(self, account: DatasetAccount) -> None:
        """Add a stored dataset that is no longer declared."""
        self._undeclared.append((account, is_over(account.name, self.watermarks)))

    def find_reused(self, datasets: Iterable[DatasetSpec]) -> Iterator[None]:
        """Find declared datasets that have the name of a past period, in slices."""
        for count, dataset in enumerate(datasets if self.watermarks else (), start=1):
            if not dataset.pattern and is_over(dataset.name, self.watermarks):
                self._reused.append(dataset.name)
            if count % AT_ONCE == 0:
                yield

    def check(self, declared: Container[str], shard: int, *, may_retire: bool) -> None:
        """Raise `ConfigError` for declared datasets that were retired before, and for undeclared ones in the state.

        ``may_retire``: the configuration was applied, so that `retire` may end the ledgers of the latter.
        """
        reused = next((name for name in self.retired if name in declared), None)
        undeclared = [] if may_retire else [account.name for account, over in self._undeclared if not over]
        if reused is not None:
            message = (
                f"dataset {reused} was retired at shard {shard}: its name cannot be used again. Declare another "
                "one; only a successor of the application can continue the ledger"
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
        """Close the open runs of undeclared datasets: at full price, but for those of past periods.

        To be called before any query is read again. Queries of these datasets are skipped from now on, though an
        earlier owner may have tested them and lost the outcomes; no owner replays queries of a past period.
        Yields after a slice of work; if the next commit is full then, the caller commits before it resumes.
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
        """End the ledgers of undeclared datasets, after `close_runs` has closed their runs.

        To be called once the configuration without them is adopted: a worker with an older one, which declares them,
        still needs the ledgers. Yields as `close_runs` does.
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
        """Announce the final balance of a retired dataset."""
        account = from_bytes(DatasetAccount, self.retired[name], key=f"r/{name}")
        self._accounts.announce(EventType.BALANCE, account, "application-closed", unit=account.unit)
        self._keep(account)

    def discard(self) -> None:
        """Release the loaded accounts."""
        self._undeclared = []

    def _keep(self, account: DatasetAccount) -> None:
        account.run_states = {}
        data = self.retired[account.name] = to_bytes(account)
        self._accounts.next.records[f"r/{account.name}".encode()] = data


def retired_datasets(spec: ApplicationSpec, keys: Iterable[bytes], progress: bytes | None) -> RetiredDatasets:
    """Return the datasets that never come back, from the carried-over file and a state's keys and progress."""
    watermarks = dict(spec.carried.watermarks)
    if progress is not None:
        watermarks |= from_bytes(ProgressRecord, progress, key="meta").watermarks
    return RetiredDatasets(watermarks, frozenset(key[2:].decode() for key in keys if key.startswith(b"r/")))
