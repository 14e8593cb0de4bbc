"""What a limit in rho would buy of many alerts, where a delta is accepted.

The losses of runs add up in rho, and epsilon rises with its root. So from some number of alerts on, runs of one alert
each find smaller distances under a limit in rho than runs of many under one in epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_DOWN, Context
from fractions import Fraction
from typing import Final

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.baselines.sparse import zcdp_epsilon
from stream_svt.planning.budget import SURE, PaidRuns, reported_margin
from stream_svt.privacy.loss import Kind, to_loss, to_units
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.fields import ExposureOptions
from stream_svt.settings.monitors import MonitorSpec

_SPLITS: Final = [Fraction(f"{1.15**power:.3g}") for power in range(-4, 13)]
"""Candidates for the split of a run of one alert."""


def rho_offer(
    monitor: MonitorSpec,
    spec: ApplicationSpec | None,
    limit: Fraction | None,
    budget: PaidRuns | None,
    delta: float,
) -> list[str]:
    """Return what rho would buy a monitor for a loss of epsilon and delta, as sentences.

    Args:
        limit, budget: Epsilon in all if that is given, and what it or a dataset's limit pays for. Without either, a
            run and its alerts are compared.

    Raises:
        MisuseError: The monitor cannot have a limit in rho, or has one.
    """
    if spec is not None and (left := _left(monitor, spec)):
        limit = limit or left
    if monitor.append is not None or not isinstance(monitor.correction, ExposureOptions):
        raise MisuseError("rho is compared for streams without retries: leave out --set and --drift")
    epsilon, alerts, now = monitor.epsilon, monitor.cutoff, _distance(monitor)
    if limit and budget is not None:
        epsilon, alerts = limit, budget.runs * monitor.cutoff + budget.last_run_alerts
    rho = _largest(epsilon, delta)
    each = to_units(rho, Kind.ZCDP) // max(alerts, 1)
    found = min(
        ((_distance(one), number, one) for number, one in enumerate(_runs(monitor, each))), default=None
    )
    loss = f"Epsilon {float(epsilon):g} and delta {delta:g}, in rho, pay for"
    if found is None:
        return [f"{loss} no {alerts:,} alerts. Keep the limit in epsilon."]
    distance, _, run = found
    text = (
        f"{loss} {alerts:,} runs of one alert, which report a value {distance:,.6g} above the threshold by its first "
        f"test {SURE:.0%} of the time; without delta that is {now:,.6g}."
    )
    if distance >= now:
        return [f"{text} Keep the limit in epsilon."]
    tolerated = f"correction: {{exposure: {{false_alerts: {float(_tolerated(run)):g}}}}}"
    size = f"epsilon: {float(run.epsilon):g}, split: {float(run.split or 1):g}, cutoff: 1"
    keys = (
        f"Write limit: {{rho: {float(rho):g}}} for a new dataset, and for the monitor {size}, expected_queries: "
        f"{run.expected_queries}, {tolerated}, on_halt: resample."
    )
    promise = (
        "What is promised is then this rho, and differential privacy with that epsilon and delta only: choose a delta "
        "far below one in the number of persons."
    )
    return [text, keys, promise]


def _left(monitor: MonitorSpec, spec: ApplicationSpec) -> Fraction | None:
    """Return the epsilon that is left of a monitor's first dataset; MisuseError if that cannot have a limit in rho."""
    dataset = next((one for one in spec.datasets if monitor.covers(one.name)), None)
    if dataset is None:
        return None
    terms, sharing = dataset.terms, [one.name for one in spec.monitors if one.covers(dataset.name)]
    if terms.kind is Kind.ZCDP:
        raise MisuseError(f"the limit of dataset {dataset.name} is in rho already")
    if terms.renewal is not None:
        raise MisuseError("rho is impossible with a limit per: of two periods each can have an open run")
    if len(sharing) > 1:
        raise MisuseError(f"with rho the monitors of a dataset take turns: {', '.join(sharing)}")
    return to_loss(terms.limit - terms.spent_before, Kind.PURE)


def _largest(epsilon: Fraction, delta: float) -> Fraction:
    """Return the largest rho of four digits that is (epsilon, delta)-private, and at most epsilon."""
    low, high = 0.0, float(epsilon)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if zcdp_epsilon(middle, delta) <= epsilon else (low, middle)
    return _four_digits(low)


def _four_digits(number: float) -> Fraction:
    """Return a number rounded down to four digits."""
    return Fraction(Context(prec=4, rounding=ROUND_DOWN).create_decimal_from_float(number))


def _runs(monitor: MonitorSpec, each: int) -> Iterator[MonitorSpec]:
    """Yield runs of one alert that cost at most so many units of rho; all together waste what the monitor wastes."""
    tolerated = _four_digits(float(_tolerated(monitor) / monitor.cutoff))
    alone = {
        "form": "svt",
        "cutoff": 1,
        "expected_queries": math.ceil(Fraction(monitor.expected_queries or 1, monitor.cutoff)),
        "correction": ExposureOptions(false_alerts=tolerated),
    }
    rho = each / Kind.ZCDP.units
    for split in _SPLITS:
        # The inverses of `zcdp_monotone` and `zcdp_general`.
        widest = 2 - 1 / (1 + float(split))
        epsilon = math.sqrt(8 * rho) / widest if monitor.monotonic else math.sqrt(2 * rho)
        run = monitor.model_copy(update={**alone, "split": split, "epsilon": _four_digits(epsilon)})
        try:
            if 0 < run.run_price(Kind.ZCDP) <= each and _distance(run) < math.inf:
                yield run
        except (MisuseError, OverflowError):  # too little on this grid
            continue


def _tolerated(monitor: MonitorSpec) -> Fraction:
    """Return the alerts that a run may waste."""
    return Fraction(getattr(monitor.correction_rule(), "false_alerts", 0))


def _distance(monitor: MonitorSpec) -> float:
    return float(reported_margin(monitor, SURE))
