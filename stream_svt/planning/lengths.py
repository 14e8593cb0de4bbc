"""The length of periods that suits the monitors of a limit that renews.

Each of *K* periods can spend a *K*-th of the limit: *K* is small with long ones, and runs of short ones pay for fewer
alerts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.accuracy import reported_margin
from stream_svt.planning.budget import PaidRuns
from stream_svt.privacy.loss import EPSILON_UNITS, Kind
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.detection import SURE, DetectOptions, SolvedRun, solve
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.periods import DATE_SLOT, DAY_MS, WEEK_SLOT, Renewal, in_words
from stream_svt.wording import counted

_ALIKE = 1.05
"""Costs, and numbers of incidents found, are alike up to this factor. Of lengths that are alike the longest is best:
its runs pay for most alerts at a time, and fewest incidents are charged again at a border."""


def proposal(spec: ApplicationSpec, dataset: DatasetSpec) -> str:
    """Return what the length of periods costs the monitors of a dataset, and which one suits them better.

    Only lengths of `per` and the look-back in equal parts are compared: shorter ones have as many periods to pay for.
    """
    monitors = [one for one in spec.monitors if one.covers(dataset.name)]
    if (renewal := dataset.terms.renewal) is None or not monitors:
        return ""
    windows = {spec.source(one.source).window for one in monitors if one.source} - {0}
    fitting = [one for one in renewal.others if not any(one.length_ms % window for window in windows)]
    now, *offers = (_offer(monitors, renewal, one) for one in (renewal, *fitting))
    per, text = in_words(renewal.per_ms), f"Each pays for {counted(now.alerts, 'alert')}"
    if any(one.detect is None and not one.ends for one in monitors):
        incidents = max(one.paid for one in (now, *offers))
        most = max(one.found(incidents) for one in (now, *offers))
        text += f", about {now.paid:.0f} in {per}"
        if now.found(incidents) * _ALIKE >= most:
            return f"{text}; no other length finds many more."
        best = [one for one in offers if one.found(incidents) * _ALIKE >= most][-1]
        more = f"{best.alerts}, about {best.paid:.0f} in {per}"
    else:
        least = min(one.cost for one in (now, *offers))
        text += f", for epsilon {now.cost:.3g} in any {per}"
        if now.cost <= least * _ALIKE:
            return f"{text}; no other length costs much less."
        best = [one for one in offers if one.cost <= least * _ALIKE][-1]
        best = _offer(monitors, renewal, best.renewal, exact=True)
        more = f"{best.alerts}, for epsilon {best.cost:.3g}"
    slot = f"{DATE_SLOT} and " if WEEK_SLOT in dataset.terms.pattern else ""
    every = f"{slot}every: {best.renewal.length_ms // DAY_MS}d"
    return f"{text}; with {every} for {more}. Choose before you apply: `every` never changes."


@dataclass(frozen=True, slots=True)
class _Offer:
    """What periods of a length give.

    ``cost`` is the epsilon of a run a period of each monitor with `detect`, in any time `per`. ``alerts`` are the
    alerts of these runs in a period or, with monitors without `detect`, of the runs for which the rest pays.
    """

    renewal: Renewal
    cost: float
    alerts: int

    @property
    def paid(self) -> float:
        """Alerts in the time `per`."""
        return self.alerts * self.renewal.per_ms / self.renewal.length_ms

    def found(self, incidents: float) -> float:
        """Return how many incidents get an alert, if so many come at random in the time `per` on average."""
        from scipy.special import pdtrc  # slow to import

        periods = self.renewal.per_ms / self.renewal.length_ms
        return periods * float(pdtrc(np.arange(self.alerts), incidents / periods).sum())


def _offer(monitors: Sequence[MonitorSpec], now: Renewal, then: Renewal, *, exact: bool = False) -> _Offer:
    """Return what periods of another length give; costs are off by 2 % unless ``exact``."""
    by_name = {one.name: one for one in monitors}
    cost, alerts, others = 0.0, 0, list[MonitorSpec]()
    for one in monitors:
        alerting = by_name.get(one.ends, one)
        if alerting.detect is None:
            others.append(one)
        elif alerting is not one and alerting.end is not None and alerting.end.epsilon is not None:
            cost += float(one.epsilon)
        else:
            cost += _epsilon(alerting, alerting.detect, now.length_ms, then.length_ms, exact=exact)
            alerts += 0 if one.ends else alerting.detect.cutoff(then.length_ms)
    rest = then.share - math.ceil(min(cost, then.limit) * EPSILON_UNITS)
    return _Offer(then, cost * then.periods, _alerts(others, rest) if others else alerts)


def _epsilon(monitor: MonitorSpec, detect: DetectOptions, now_ms: int, then_ms: int, *, exact: bool) -> float:
    """Return the epsilon of a run in periods of another length."""
    if then_ms == now_ms:
        return float(monitor.epsilon)
    now = SolvedRun.by(monitor, detect).of
    run = now.at_length(detect, now_ms, then_ms)
    if exact:
        solved = solve(run)
        return math.inf if solved is None else float(solved[0])
    if run.cutoff > run.queries:
        return math.inf
    # The distance falls with epsilon, and the best split rises with the root of the cutoff.
    split = Fraction(f"{float(monitor.split or 1) * math.sqrt(run.cutoff / now.cutoff):.3g}")
    try:
        found = reported_margin(run.mechanism(monitor.epsilon, split), SURE)
    except (MisuseError, OverflowError):  # too little for so many alerts
        return math.inf
    return float(monitor.epsilon) * found / run.distance


def _alerts(monitors: Sequence[MonitorSpec], units: int) -> int:
    """Return the alerts for which an amount of epsilon pays in whole runs of each, or of one in a shorter one, too."""
    if not monitors or units <= 0:
        return 0
    first, once = monitors[0], [one.on_halt == "stop" for one in monitors]
    if len(monitors) == 1 and not once[0]:
        paid = PaidRuns.paid(first.mechanism(), units - first.reserve_units(Kind.PURE))
        return paid.runs * first.cutoff + paid.last_run_alerts
    runs = units // sum(one.run_price(Kind.PURE) for one in monitors)
    return sum(
        one.cutoff * (min(runs, 1) if is_once else runs)
        for one, is_once in zip(monitors, once, strict=True)
        if not one.ends
    )
