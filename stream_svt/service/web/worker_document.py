"""What a worker tells programs about itself and its datasets, ready for JSON: all of it released or public."""

from __future__ import annotations

from typing import Any

import msgspec

from stream_svt.protocol.session_parts import ShardStatus
from stream_svt.service.metrics import VERSION
from stream_svt.service.worker import Worker


def status(worker: Worker) -> dict[str, Any]:
    """Return the worker's shards and monitors, and the datasets it owns of the first ones declared."""
    views = {name: view for one in worker.statuses() for name, view in one.views.items()}
    spec = worker.workload.spec
    return about(worker) | {
        "datasets_declared": len(spec.datasets),
        "datasets": [msgspec.to_builtins(views[one.name]) for one in spec.shown if one.name in views],
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
        "refused": {"topic": worker.config.topics.rejects, "reasons": worker.metrics.refused_records()},
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
