"""The configuration of a shop, and what a shard reports of its datasets."""

from __future__ import annotations

import msgspec

from stream_svt.monitor.projection import STATES
from stream_svt.monitor.released import DatasetView, MonitorTotals, OtherTotals, Totals
from stream_svt.protocol.shard_states import ShardState, ShardStatus

SPEC = """
application: shop
datasets: [{names: [a, b, c], limit: {epsilon: 4}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


def view(
    dataset: str,
    *,
    alerts: int = 0,
    runs: int = 1,
    spent: float = 0.5,
    state: str = "running",
    until: int = 0,
    since: int = 0,
    **more: object,
) -> DatasetView:
    """Return the committed account of a dataset; ``more`` replaces its fields."""
    counts = {"run": runs, "run_alerts": alerts, "alerts": alerts, "runs": runs, "halts": 0, "muted": 2}
    counts["queued"] = 0
    monitor = {"monitor": "hot", "state": state, "spent": spent, "run_left": 1.0 - spent} | counts
    monitor["since"] = since
    usual = {"dataset": dataset, "shard": 0, "unit": "u", "measure": "epsilon", "limit": 4.0, "spent": spent}
    usual |= {"reserved": 0.5, "monitors": [monitor | {"top_branch_only": False, "until": until}]}
    return msgspec.convert(usual | more, DatasetView)


def owned(*views: DatasetView, others: int = 0) -> ShardStatus:
    """Return the status of a shard with datasets shown one by one, and others that each are as ``view`` says."""
    status = ShardStatus(0, ShardState.RUNNING, lag={"counts": 7}, read_ms={"counts": 1_780_000_000_000})
    status.views = {one.dataset: one for one in views}
    states = [monitor.state for view in views for monitor in view.monitors] + others * ["running"]
    hot = MonitorTotals(
        states={state: states.count(state) for state in STATES},
        muted=2 * len(states),
        queued=0,
        spent={"epsilon": 0.5 * others, "rho": 0.0},
        run_left={"epsilon": 0.5 * others, "rho": 0.0},
    )
    sums = OtherTotals(
        datasets=others, limit=4.0 * others, spent=0.5 * others, reserved=0.5 * others, charges=others
    )
    status.totals = Totals(monitors={"hot": hot}, others={"epsilon": sums} if others else {})
    return status
