"""What a worker tells programs and browsers of itself and of budgets: all of it released or public.

Of the datasets whose shards it owns, a worker knows the committed accounts. Of the others it knows what their
released events say; where the oldest of these are gone, `DatasetNow.source` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stream_svt.monitor.released import Budget, DatasetView, MonitorView, ReleasedStatus
from stream_svt.planning.budget import Exhaustion, exhaustion
from stream_svt.privacy.loss import Kind, best_guess, to_float
from stream_svt.protocol.shard_states import Cause, ShardState
from stream_svt.service.metrics import VERSION
from stream_svt.service.worker import Worker
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec


class FaultStatus(msgspec.Struct):
    """Why the worker stays out of its group."""

    cause: Annotated[str, Meta(description="One word, as in `stream_svt_worker_outside_group`.")]
    reason: Annotated[str, Meta(description="The same in words.")]


class RefusedRecords(msgspec.Struct):
    """Records refused since the worker started."""

    topic: Annotated[str, Meta(description="Where their places are listed.")]
    reasons: Annotated[dict[str, int], Meta(description="How many, by reason.")]


class ShardLine(msgspec.Struct, rename={"key_id": "sealing_key_id"}):
    """A shard that the worker owns."""

    shard: Annotated[int, Meta(description="Its number.")]
    state: Annotated[ShardState, Meta(description="Such as running or parked.")]
    cause: Annotated[Cause, Meta(description="Why it is not open, in one word.")]
    reason: Annotated[str, Meta(description="The same in words.")]
    key_id: Annotated[str, Meta(description="Id of the key that seals its state.")]
    sequence: Annotated[int, Meta(description="Number of its latest event.")]
    state_records: Annotated[int, Meta(description="Live records on the state topic.")]
    offsets: Annotated[dict[str, int], Meta(description="Committed position, by topic.")]
    lag: Annotated[dict[str, int], Meta(description="Records after it, by topic.")]
    committed_at: Annotated[float, Meta(description="Unix time of the latest commit, 0 for none.")]


class MonitorLine(msgspec.Struct):
    """A monitor as it is configured."""

    monitor: Annotated[str, Meta(description="Its name.")]
    topic: Annotated[str, Meta(description="Its query topic.")]
    mechanism: Annotated[str, Meta(description="svt, adaptive or ladder.")]
    threshold: Annotated[float, Meta(description="In real units.")]
    cutoff: Annotated[int, Meta(description="Tops that a run pays for.")]
    epsilon: Annotated[float, Meta(description="Privacy loss of a run.")]


class About(msgspec.Struct, kw_only=True):
    """The worker without the datasets: small however many there are."""

    application: Annotated[str, Meta(description="Its name.")]
    version: Annotated[str, Meta(description="Of stream-svt.")]
    worker: Annotated[str, Meta(description="Host and process.")]
    application_hash: Annotated[str, Meta(description="Digest of the datasets and monitors applied.")]
    ready: Annotated[bool, Meta(description="As `/health/ready`.")]
    fault: Annotated[FaultStatus | None, Meta(description="Why it stays out of its group.")]
    sealed: Annotated[bool, Meta(description="Whether state is encrypted.")]
    signatures_required: Annotated[bool, Meta(description="Whether unsigned commands are refused.")]
    shards: Annotated[list[ShardLine], Meta(description="Those that it owns.")]
    monitors: Annotated[list[MonitorLine], Meta(description="All of the application.")]
    refused: Annotated[RefusedRecords, Meta(description="Records refused since it started.")]


class WorkerStatus(About, kw_only=True):
    """The worker, and the datasets it owns of the first ones declared."""

    datasets_declared: Annotated[int, Meta(description="How many the application has.")]
    datasets: Annotated[list[DatasetView], Meta(description="Those of its shards, as of the last commit.")]


def status(worker: Worker) -> WorkerStatus:
    """Return the worker's shards and monitors, and the datasets it owns of the first ones declared."""
    views = {name: view for one in worker.statuses() for name, view in one.views.items()}
    spec = worker.workload.spec
    return WorkerStatus(
        **msgspec.structs.asdict(about(worker)),
        datasets_declared=len(spec.datasets),
        datasets=[views[one.name] for one in spec.shown if one.name in views],
    )


def about(worker: Worker) -> About:
    """Return the same without the datasets."""
    spec, fault = worker.workload.spec, worker.fault
    return About(
        application=spec.application,
        version=VERSION,
        worker=worker.identity,
        application_hash=worker.workload.hash,
        ready=worker.ready,
        fault=None if fault is None else FaultStatus(str(fault.cause), fault.reason),
        sealed=bool(worker.config.master_keys),
        signatures_required=worker.config.control.required,
        shards=[
            ShardLine(*(getattr(one, name) for name in ShardLine.__struct_fields__))
            for one in worker.statuses()
        ],
        monitors=[
            MonitorLine(
                one.name, one.topic, one.form.value, float(one.threshold), one.cutoff, float(one.epsilon)
            )
            for one in spec.monitors
        ],
        refused=RefusedRecords(worker.config.topics.rejects, worker.metrics.refused_records()),
    )


class DatasetNow(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset's budget and its monitors.

    Under zCDP only the limit says how often a guess is right: what was spent on the way there is no bound by itself
    where later runs depend on earlier ones. See `stream_svt.privacy.loss.best_guess`.
    """

    dataset: Annotated[str, Meta(description="Its name.")]
    unit: Annotated[str, Meta(description="The privacy unit, as declared.")]
    measure: Annotated[str, Meta(description="epsilon or rho.")]
    limit: Annotated[float, Meta(description="Of its ledger.")]
    spent: Annotated[float | None, Meta(description="Privacy loss spent.")]
    reserved: Annotated[float | None, Meta(description="Reserved by open runs.")]
    source: Annotated[str, Meta(description="Where amounts are from: state, alerts, declaration or unknown.")]
    ends: Annotated[float | None, Meta(description="Unix time at which its period is over.")]
    guess_spent: Annotated[float | None, Meta(description="How often a guess about a unit is right by now.")]
    guess_limit: Annotated[float, Meta(description="The same after the whole limit.")]
    outlook: Annotated[Exhaustion | None, Meta(description="When the budget ends: early, expected, late.")]
    monitors: Annotated[Sequence[MonitorView | dict[str, Any]], Meta(description="Those that cover it.")]


class StatusSnapshot(ReleasedStatus):
    """Folds events, and puts the committed accounts of this worker's shards in the place of what they say.

    ``complete`` says whether every event ever released is folded.
    """

    def __init__(self, spec: ApplicationSpec, *, complete: bool) -> None:
        self.spec = spec
        self.complete = complete
        budgets = {one.name: Budget(to_float(one.limit, one.kind), one.kind.measure) for one in spec.shown}
        covers = {
            monitor.name: [name for name in budgets if monitor.covers(name)] for monitor in spec.monitors
        }
        super().__init__(budgets, covers)

    def of(self, dataset: DatasetSpec, view: DatasetView | None, now: float) -> DatasetNow:
        """Return what is known of a dataset; ``view`` is its committed account, where this worker owns its shard."""
        budget = self.budgets[dataset.name]
        limit, spent, reserved = budget.limit, budget.spent, budget.reserved
        if view is not None:
            source, limit, spent, reserved = "state", view.limit, view.spent, view.reserved
        elif budget.told:
            source = "alerts"
        else:
            source = "declaration" if self.complete else "unknown"
        known = source != "unknown"
        left = max(limit - spent, 0.0)
        return DatasetNow(
            dataset=dataset.name,
            unit=dataset.unit,
            measure=budget.measure,
            limit=limit,
            spent=spent if known else None,
            reserved=reserved if known else None,
            source=source,
            ends=None if dataset.ends_ms is None else dataset.ends_ms / 1000,
            guess_spent=best_guess(spent, dataset.kind) if known and dataset.kind is Kind.PURE else None,
            guess_limit=best_guess(limit, dataset.kind),
            outlook=exhaustion(budget.charges, left, now) if known else None,
            monitors=self._monitors(dataset.name, known=known) if view is None else view.monitors,
        )

    def _monitors(self, dataset: str, *, known: bool) -> list[dict[str, Any]]:
        """Return what events say of monitors; the rest only the worker knows that owns the shard."""
        unknown = dict.fromkeys(("spent", "muted", "queued"))
        return [
            {"monitor": name, "state": one.shown if known else None}
            | {"run": one.run, "tops": one.tops, "halts": one.halts}
            | unknown
            for name, one in self.of_dataset(dataset).items()
        ]
