"""Numbers and builds the released events of a shard, in the order in which things happened.

The content comes from :mod:`stream_svt.monitor.released` alone; here it is put together from charged outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stream_svt.mechanisms.estimates import estimate, lower_bound
from stream_svt.monitor.released import (
    Alert,
    EventType,
    Lifecycle,
    NoiseLaw,
    Position,
    ReleasedEvent,
)

if TYPE_CHECKING:
    from stream_svt.monitor.accounts import DatasetAccount
    from stream_svt.monitor.plan import Plan
    from stream_svt.monitor.snapshot import RunState
    from stream_svt.settings.changes import Declared


@dataclass(frozen=True, slots=True)
class Crossing:
    """A test that reached its noisy threshold: what a released alert is made of."""

    dataset: int
    branch: int
    gap: int
    threshold: int
    attempt: int
    offset: int
    row: int
    series: str | None
    query_id: str


class EventBuilder:
    """Events since the last commit, and the counters that number them.

    ``sequence`` numbers all events of the shard, ``shard_events`` those about no dataset.
    """

    def __init__(self, application: str, shard: int) -> None:
        self._application = application
        self._shard = shard
        self.sequence = 0
        self.shard_events = 0
        self.events: list[ReleasedEvent] = []

    def take(self) -> list[ReleasedEvent]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def alert(
        self,
        account: DatasetAccount,
        plan: Plan,
        run_state: RunState,
        crossing: Crossing,
        charge: int,
    ) -> None:
        """Release a top whose charge is booked."""
        spec, mechanism, grid = plan.spec, plan.mechanism, plan.grid
        branch = mechanism.branches[crossing.branch]
        correction = branch.correction(crossing.attempt)
        bar, query = crossing.threshold + correction, mechanism.branch_laws[crossing.branch]
        laws = {"query": query, "threshold": mechanism.threshold_law}
        bound = lower_bound(bar, crossing.gap, **laws, beta=spec.beta)
        guess = None
        if bound is not None:
            guess = estimate(bar, crossing.gap, **laws) * float(grid.granularity)
        alert = Alert(
            dataset=account.name,
            monitor=spec.name,
            series=crossing.series,
            query_id=crossing.query_id,
            position=Position(
                topic=spec.topic, partition=self._shard, offset=crossing.offset, row=crossing.row
            ),
            threshold=grid.real(crossing.threshold),
            correction=grid.real(correction),
            gap=grid.real(crossing.gap),
            branch=branch.name,
            attempt=crossing.attempt + 1,
            threshold_noise=NoiseLaw(
                family=mechanism.threshold_noise.value,
                scale=float(grid.granularity / mechanism.threshold_rate),
            ),
            query_noise=NoiseLaw(
                family=mechanism.query_noise.value, scale=float(grid.granularity / branch.rate)
            ),
            estimate=guess,
            bound=None if bound is None else grid.real(bound),
            beta=float(spec.beta),
            run=run_state.run,
            top=run_state.run_tops,
            account=account.account(charge),
            spec_hash=plan.hash,
        )
        subject = account.name if crossing.series is None else f"{account.name}/{crossing.series}"
        self._of_dataset(EventType.ALERT, account, subject, alert)

    def announce(
        self,
        kind: EventType,
        account: DatasetAccount,
        reason: str,
        monitor: str = "",
        run_state: RunState | None = None,
        charge: int = 0,
        detail: dict[str, Any] | None = None,
    ) -> None:
        """Announce anything else about a dataset, with its account."""
        data = Lifecycle(
            dataset=account.name,
            monitor=monitor,
            run=0 if run_state is None else run_state.run,
            reason=reason,
            account=account.account(charge),
            detail=detail or {},
        )
        self._of_dataset(kind, account, account.name, data)

    def spec_changed(self, monitor: str, reason: str, spec_hash: str, fields: list[str]) -> None:
        """Announce that a monitor was added, changed or removed."""
        detail = {"spec_hash": spec_hash, "fields": fields}
        self.shard_event(EventType.SPEC_CHANGED, monitor=monitor, reason=reason, detail=detail)

    def topic_declared(self, topic: str, declared: Declared) -> None:
        """Announce what holds of the answers on a query topic from now on, before any run under it."""
        detail = {
            "topic": topic,
            "sensitivity": str(declared.sensitivity),
            "monotonic": declared.monotonic,
        }
        self.shard_event(EventType.TOPIC_DECLARED, reason="configuration", detail=detail)

    def shard_event(self, kind: EventType, *, reason: str, detail: dict[str, Any], monitor: str = "") -> None:
        """Announce something about the shard as a whole."""
        self.shard_events += 1
        data = Lifecycle(dataset="", monitor=monitor, run=0, reason=reason, account=None, detail=detail)
        subject = f"shard-{self._shard}"
        self._add(kind, f"{subject}/{self.shard_events}", subject, data)

    def _of_dataset(
        self, kind: EventType, account: DatasetAccount, subject: str, data: Alert | Lifecycle
    ) -> None:
        account.events += 1
        self._add(kind, f"{account.name}/{data.monitor}/{data.run}/{account.events}", subject, data)

    def _add(self, kind: EventType, name: str, subject: str, data: Alert | Lifecycle) -> None:
        self.sequence += 1
        event_id = f"{self._application}/{name}"
        self.events.append(
            ReleasedEvent(type=kind, id=event_id, sequence=self.sequence, subject=subject, data=data)
        )
