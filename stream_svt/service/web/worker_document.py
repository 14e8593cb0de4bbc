"""What a worker tells programs about itself and its datasets: all of it released or public."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from stream_svt.monitor.released import DatasetView
from stream_svt.protocol.shard_states import Cause, State
from stream_svt.service.metrics import VERSION
from stream_svt.service.worker import Worker


class FaultStatus(msgspec.Struct):
    """Why the worker stays out of its group."""

    cause: Annotated[str, Meta(description="One word, as in `stream_svt_worker_outside_group`.")]
    reason: Annotated[str, Meta(description="The same in words.")]


class Refused(msgspec.Struct):
    """Records refused since the worker started."""

    topic: Annotated[str, Meta(description="Where their places are listed.")]
    reasons: Annotated[dict[str, int], Meta(description="How many, by reason.")]


class ShardLine(msgspec.Struct, rename={"key_id": "sealing_key_id"}):
    """A shard that the worker owns."""

    shard: Annotated[int, Meta(description="Its number.")]
    state: Annotated[State, Meta(description="Such as running or parked.")]
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
    refused: Annotated[Refused, Meta(description="Records refused since it started.")]


class Status(About, kw_only=True):
    """The worker, and the datasets it owns of the first ones declared."""

    datasets_declared: Annotated[int, Meta(description="How many the application has.")]
    datasets: Annotated[list[DatasetView], Meta(description="Those of its shards, as of the last commit.")]


def status(worker: Worker) -> Status:
    """Return the worker's shards and monitors, and the datasets it owns of the first ones declared."""
    views = {name: view for one in worker.statuses() for name, view in one.views.items()}
    spec = worker.workload.spec
    return Status(
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
        sealed=worker.config.master_key is not None,
        signatures_required=worker.config.control.required,
        shards=[
            ShardLine(*(getattr(one, name) for name in ShardLine.__struct_fields__))
            for one in worker.statuses()
        ],
        monitors=[
            MonitorLine(
                monitor=monitor.name,
                topic=monitor.topic,
                mechanism=monitor.form.value,
                threshold=float(monitor.threshold),
                cutoff=monitor.cutoff,
                epsilon=float(monitor.epsilon),
            )
            for monitor in spec.monitors
        ],
        refused=Refused(worker.config.topics.rejects, worker.metrics.refused_records()),
    )
