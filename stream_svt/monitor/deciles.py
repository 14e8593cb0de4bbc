"""Nine deciles of what a monitor tests about closed windows, with noise, for one charge.

The deciles are the values at nine fixed ranks of all values. If one unit moves each value by -a to b steps, in however
many series and windows, it moves the value of each rank by -a to b, too. So the deciles have an L1 sensitivity of 9 d
steps, d = max(a, b). Each gets two-sided geometric noise of scale 9 d / epsilon (Ghosh, Roughgarden & Sundararajan
2009, the discrete form of Dwork et al. 2006); together they cost epsilon. Sorting them afterwards costs nothing. The
noise is a function of the shard's key and of the request's id and position, so a record that is read again gets the
same noise.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from stream_svt.columns.query_batch import DECILES, DecilesRequest, QueryBatch
from stream_svt.mechanisms.grid import LEAST_RATE, Integers, grid_sensitivity
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.mechanisms.sampler import Identity, Sampler
from stream_svt.monitor.released import EventType
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state.accounts import Accounts, DatasetAccount
from stream_svt.monitor.state.snapshot import VERSION, LookRecord, to_bytes
from stream_svt.privacy.loss import Kind
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.sources import SourceSpec


def law_of(epsilon_units: int, most: int) -> Law:
    """Return the law of the noise of each decile; ``most``: grid steps by which one unit moves a value, at most."""
    return Law(Noise.LAPLACE, Fraction(epsilon_units, UNITS_PER_EPSILON * DECILES * most))


def most_moved(monitor: MonitorSpec, source: SourceSpec) -> int:
    """Return by how many grid steps one unit moves a value that a monitor tests, at most.

    A count moves by ``at_most`` of its measure; the monitor's sensitivity is the largest of all measures.
    """
    if monitor.asks:
        return max(monitor.question(source).moves)
    most = next(one.at_most for one in source.measures if one.name == monitor.measure)
    return grid_sensitivity(Fraction(most), monitor.granularity)


class NoisyDeciles:
    """Releases the deciles of a shard; ``key`` is the shard's secret.

    Attributes:
        last: The last released look at each dataset, by name.
    """

    def __init__(self, key: bytes, accounts: Accounts, sampler: Sampler) -> None:
        self._key = hmac.digest(key, b"stream-svt deciles", "sha256")
        self._accounts, self._sampler = accounts, sampler
        self.last: dict[str, LookRecord] = {}

    def salt(self, request: str) -> tuple[int, int]:
        """Return the salt of the noise of a request, by its id."""
        digest = hmac.digest(self._key, request.encode(), "sha256")
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")

    def release(self, batch: QueryBatch, row: int, runners: Mapping[str, Runner]) -> None:
        """Charge for the request whose record begins with a row, and release its deciles; or refuse it, for nothing."""
        request, number, accounts = batch.requests[row], int(batch.dataset[row]), self._accounts
        account, asked = accounts.account(number), self._asked(batch, row, runners)
        look = LookRecord(VERSION, batch.timestamp_ms.item(row), batch.offset.item(row))
        detail: dict[str, Any] = {"request": request.id, "from": request.from_ms, "until": request.until_ms}
        detail |= {"values": request.values, "deciles": [], "scale": 0.0}
        refusal, charge = "no-monitor", 0
        if asked is not None:
            refusal = self._refusal(account, look, request, asked[1])
        if asked is not None and not refusal:
            charge = request.epsilon
            _, run_state = accounts.to_change(request.monitor, number)
            account.ledger.charge(charge)
            run_state.spent += charge
            self._remember(account.name, look)
            detail |= self._found(batch, row, *asked)
        run = accounts.run_state(request.monitor, number).run
        reason = refusal or "released"
        accounts.announce(EventType.DECILES, account, reason, request.monitor, run, charge, **detail)

    def _refusal(self, account: DatasetAccount, look: LookRecord, request: DecilesRequest, law: Law) -> str:
        """Return why a request is refused, "" if it is not."""
        last, ledger = self.last.get(account.name), account.ledger
        if last is not None and (look.timestamp_ms, look.offset) <= (last.timestamp_ms, last.offset):
            return "again"
        if ledger.kind is not Kind.PURE:
            return "rho"
        if law.rate < LEAST_RATE:
            return "wide"
        return "budget" if request.epsilon > ledger.available else ""

    def _remember(self, dataset: str, look: LookRecord) -> None:
        self.last[dataset] = look
        self._accounts.next.records[f"l/{dataset}".encode()] = to_bytes(look)

    def forget(self, dataset: str) -> None:
        """Forget the last look at a dataset, which is retired."""
        if self.last.pop(dataset, None) is not None:
            self._accounts.next.records[f"l/{dataset}".encode()] = None

    def _asked(self, batch: QueryBatch, row: int, runners: Mapping[str, Runner]) -> tuple[Runner, Law] | None:
        """Return the monitor of a request, and the law of the noise.

        None if the values are not what the monitor tests there, or its source lacks them: in a replay the monitors are
        older than the sources.
        """
        request, number = batch.requests[row], int(batch.dataset[row])
        runner = runners.get(request.monitor)
        if runner is None or not runner.runs.covers[number]:
            return None
        spec = runner.spec
        if (spec.topic, spec.tested) != (batch.topic, request.tested):
            return None
        read = {spec.measure, spec.measure if spec.share is None else spec.share.of}
        for source in self._accounts.sources:
            if source.name == spec.source and read <= {*source.measure_names}:
                return runner, law_of(request.epsilon, most_moved(spec, source))
        return None

    def _found(self, batch: QueryBatch, row: int, runner: Runner, law: Law) -> dict[str, Any]:
        """Return the noisy deciles, less the threshold, and the scale of their noise."""
        spec, plan = runner.spec, runner.runs.plan
        noisy = self._noisy(batch, row, law, plan.grid.values(batch, row, row + DECILES))
        return {
            "deciles": [float(one * spec.granularity - spec.threshold) for one in noisy],
            "scale": float(spec.granularity / law.rate),
        }

    def _noisy(self, batch: QueryBatch, row: int, law: Law, values: Integers) -> list[int]:
        rows = np.arange(DECILES, dtype=np.int64)
        salt, offset = self.salt(batch.requests[row].id), int(batch.offset[row])
        noise = self._sampler.draw(law, Identity(salt, offset, rows, 0, 0, values))
        return sorted((values + noise).tolist())
