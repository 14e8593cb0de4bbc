"""What a worker tells programs about itself and its datasets, ready for JSON: all of it released or public."""

from __future__ import annotations

from typing import Any

import msgspec

from stream_svt.monitor.projection import sums_of
from stream_svt.protocol.session_parts import ShardStatus
from stream_svt.service.metrics import VERSION
from stream_svt.service.worker import Worker

_REFUSED = "stream_svt_records_rejected_total"


def status(worker: Worker) -> dict[str, Any]:
    """Return the worker's shards and monitors, and the datasets it owns."""
    statuses = worker.statuses()
    totals = sums_of([one.totals for one in statuses if one.totals is not None])
    # The first datasets declared: a page of a hundred thousand helps nobody.
    views = {name: view for one in statuses for name, view in one.views.items()}
    return about(worker) | {
        "datasets_declared": len(worker.workload.spec.datasets),
        "datasets": [
            msgspec.to_builtins(views[dataset.name])
            for dataset in worker.workload.spec.shown
            if dataset.name in views
        ],
        "datasets_by_state": [
            {"monitor": name, "states": dict(one.states), "muted": one.muted, "queued": one.queued}
            for name, one in totals.monitors.items()
        ],
        "datasets_summed_up": [
            {"measure": measure, **msgspec.to_builtins(sums)} for measure, sums in totals.others.items()
        ],
    }


def about(worker: Worker) -> dict[str, Any]:
    """Return the same without the datasets: small however many there are."""
    spec, fault = worker.workload.spec, worker.fault
    return {
        "application": spec.application,
        "version": VERSION,
        "worker": worker.identity,
        "spec_hash": worker.workload.hash,
        "ready": worker.ready,
        "fault": None if fault is None else {"cause": str(fault.cause), "reason": fault.reason},
        "sealed": worker.config.master_key is not None,
        "signatures_required": worker.config.control.required,
        "shards": [_shard(one) for one in worker.statuses()],
        "monitors": [
            {
                "monitor": monitor.name,
                "topic": monitor.topic,
                "mechanism": monitor.form.value,
                "threshold": float(monitor.threshold),
                "cutoff": monitor.cutoff,
                "epsilon": float(monitor.epsilon),
            }
            for monitor in spec.monitors
        ],
        "refused": {"topic": worker.config.topics.rejects, "reasons": _refused(worker)},
    }


def _shard(status: ShardStatus) -> dict[str, Any]:
    return {
        "shard": status.shard,
        "state": str(status.state),
        "cause": str(status.cause),
        "reason": status.reason,
        "sealing_key_id": status.key_id,
        "sequence": status.sequence,
        "state_records": status.state_records,
        "offsets": status.offsets,
        "lag": status.lag,
        "committed_at": status.committed_at,
    }


def _refused(worker: Worker) -> dict[str, int]:
    """Return how many records were refused since the worker started, by reason."""
    counts: dict[str, int] = {}
    for family in worker.metrics.registry.restricted_registry([_REFUSED]).collect():
        for sample in family.samples:
            if sample.name == _REFUSED and sample.value:
                reason = sample.labels["reason"]
                counts[reason] = counts.get(reason, 0) + int(sample.value)
    return dict(sorted(counts.items()))
