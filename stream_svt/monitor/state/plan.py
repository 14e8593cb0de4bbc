"""What a monitor's specification means for its runs: mechanism, grid, and the terms of its alerts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from stream_svt.columns.query_batch import Crossing, Grid
from stream_svt.mechanisms.accuracy import silence_probability
from stream_svt.mechanisms.estimates import GapBounds
from stream_svt.mechanisms.noise import Law, least_integer
from stream_svt.mechanisms.sparse_vector import Branch, SparseVector
from stream_svt.monitor.released import Alert, Lifecycle, NoiseLaw, Position, UnclockedEnd
from stream_svt.monitor.state.accounts import DatasetAccount
from stream_svt.monitor.state.mutes import FOR_EVER, UNTIL_RUN_ENDS
from stream_svt.monitor.state.snapshot import RunState
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.periods import EPOCH_MS
from stream_svt.settings.sources import SourceSpec

_SHOWN_ENDS: Mapping[int | None, UnclockedEnd] = {FOR_EVER: "period", UNTIL_RUN_ENDS: "run"}
"""Ends of mutes that are not a clock, in alerts."""


@dataclass(frozen=True, slots=True)
class AlertTerms:
    """What all alerts of one branch have in common; ``granularity`` is a numerator and a denominator."""

    branch: Branch
    bounds: GapBounds
    threshold_noise: NoiseLaw
    query_noise: NoiseLaw
    beta: float
    granularity: tuple[int, int]

    @classmethod
    def of(cls, spec: MonitorSpec, mechanism: SparseVector, number: int) -> AlertTerms:
        """Return the terms of a branch, by its number."""
        laws = query, threshold = mechanism.branch_laws[number], mechanism.threshold_law
        scales = [NoiseLaw(law.noise.value, float(spec.granularity / law.rate)) for law in laws]
        bounds, branch = GapBounds.of(query, threshold, spec.beta), mechanism.branches[number]
        granularity = spec.granularity.as_integer_ratio()
        return cls(branch, bounds, scales[1], scales[0], float(spec.beta), granularity)


def end_of(alert: Alert, ended: Plan, carried_from: str = "") -> Lifecycle:
    """Return the content of the event that ends an incident, from a top of negative values.

    What was a lower bound, with the sign turned, is an upper one. ``ended`` is the plan of the monitor whose alert it
    ends; that may be an alert of the application ``carried_from``.
    """
    detail: dict[str, Any] = {
        "series": alert.series,
        "severities": [name for _, name in ended.severities],
        "below": 0.0 - alert.threshold,  # no negative zero
        "bound": None if alert.bound is None else 0.0 - alert.bound,
        "estimate": None if alert.estimate is None else 0.0 - alert.estimate,
    }
    if carried_from:
        detail["carried_from"] = carried_from
    same = ("query_id", "beta", "gap", "correction", "branch", "attempt", "number", "spec_hash")
    detail |= {name: getattr(alert, name) for name in same}
    detail |= {
        name: msgspec.to_builtins(getattr(alert, name))
        for name in ("position", "threshold_noise", "query_noise")
    }
    return Lifecycle(
        dataset=alert.dataset,
        monitor=alert.monitor,
        run=alert.run,
        reason="below",
        account=alert.account,
        detail=detail,
    )


RARELY = 0.05
"""Chance of a silence that is rare."""


@lru_cache(maxsize=256)
def silent_margin(spec: MonitorSpec, windows: int, chance: float) -> float:
    """Return the least distance above the threshold, in real units, at which a silence is no likelier than a chance.

    It is the silence of several windows that one run tests: see `silence_probability`.
    """
    mechanism = spec.mechanism()
    steps = least_integer(lambda margin: silence_probability(mechanism, margin, windows=windows) <= chance)
    return float(steps * spec.granularity)


@dataclass(frozen=True, slots=True)
class Plan:
    """A monitor's specification with its mechanism and grid. A run has one plan from its begin to its end.

    ``threshold`` is that of queries without their own, in grid steps; ``laws`` and ``alerts`` have the law of noise and
    the terms of alerts by branch; ``severities`` have the least bounds, in grid steps, and names, the largest first.
    """

    spec: MonitorSpec
    hash: str
    mechanism: SparseVector
    grid: Grid
    threshold: int
    laws: tuple[Law, ...]
    alerts: tuple[AlertTerms, ...]
    severities: tuple[tuple[int, str], ...]

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, spec: MonitorSpec) -> Plan:
        """Return the plan of a specification; cached, because every takeover of a shard needs the same few."""
        low, high = spec.grid_bounds
        mechanism, grid = spec.mechanism(), Grid.of(spec.granularity, low, high)
        alerts = [AlertTerms.of(spec, mechanism, branch) for branch in range(len(mechanism.branches))]
        threshold, laws = grid.threshold(spec.threshold), mechanism.branch_laws
        falling = sorted(spec.severity.items(), key=lambda one: -one[1])
        severities = tuple((math.ceil(number / spec.granularity), name) for name, number in falling)
        return cls(spec, spec.hash(), mechanism, grid, threshold, laws, tuple(alerts), severities)

    def severity(self, bound: int | None) -> str | None:
        """Return the severity of an alert with a bound in grid steps, or without one."""
        reached = (name for least, name in self.severities if bound is not None and bound >= least)
        return next(reached, self.severities[-1][1] if self.severities else None)

    def watch(
        self, sources: Sequence[SourceSpec], until: int | None, ends_ms: int | None
    ) -> tuple[int, int, int, int, int] | None:
        """Return the fields of a `WatchedMute` from ``windows`` to ``left``, for a mute until a clock (ms).

        The first windows whose every query comes after it are watched. None without ``not_renewed``, or if the
        dataset's period ends (ms) before the last window begins.
        """
        spec = self.spec
        if (count := spec.not_renewed) is None or until is None:
            return None
        source = next((one for one in sources if one.name == spec.source), None)
        if source is None:
            return None
        asked = source.asked_after_ms(at_close=spec.asks)
        earliest = until - asked[0]
        first = earliest + (EPOCH_MS - earliest) % source.window
        last = first + (count - 1) * source.window
        if ends_ms is not None and last >= ends_ms:
            return None
        return count, first, last, last + asked[-1], count * len(asked)

    def alert(
        self,
        account: DatasetAccount,
        shard: int,
        run_state: RunState,
        crossing: Crossing,
        charge: int,
        until: int | None,
        watched_until: int | None,
    ) -> Alert:
        """Return the alert of a top of a run, with its charge and the ends of its mute and its watch."""
        terms, gap = self.alerts[crossing.branch], crossing.gap
        branch, bounds = terms.branch, terms.bounds
        correction = branch.correction(crossing.attempt)
        bar = crossing.threshold + correction
        bound = bounds.lower_bound(bar, gap)
        step, parts = terms.granularity  # a quotient of integers is rounded once, as a Fraction is
        place, query_id = (self.spec.topic, shard), crossing.query_id
        if self.spec.source is None:
            position = Position(*place, crossing.offset, crossing.row)
        else:
            position = Position(*place, -1, crossing.row, query_id)
        return Alert(  # by position, because names take longer than the rest of it
            account.name,
            self.spec.name,
            crossing.series,
            query_id,
            position,
            crossing.threshold * step / parts,
            correction * step / parts,
            gap * step / parts,
            branch.name,
            crossing.attempt + 1,
            terms.threshold_noise,
            terms.query_noise,
            None if bound is None else bounds.estimate(bar, gap) * (step / parts),
            None if bound is None else bound * step / parts,
            terms.beta,
            run_state.run,
            run_state.run_tops,
            _SHOWN_ENDS.get(until, until),
            account.account(charge),
            self.hash,
            self.severity(bound),
            watched_until,
        )
