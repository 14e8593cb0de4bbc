"""One alert in words: what was found, with which odds, at which price, and what silence means.

All of it follows from the released event and the configuration: no true value, no state and no key is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from fractions import Fraction

import numpy as np

from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import Alert, Event
from stream_svt.planning.budget import SURE, PaidRuns, reported_margin, wastes
from stream_svt.planning.model import report_chances
from stream_svt.privacy.loss import KINDS, Kind
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.sources import SourceSpec
from stream_svt.wording import counted

_BELOW = (0, 1, 3)
"""Noise scales below the threshold for which the odds of a report are given."""
_FEW = 0.01
_NEVER = 1e-12


def explain_alert(spec: ApplicationSpec, event: Event[Alert]) -> list[str]:
    """Return what an alert means, as lines of text; odds only if the monitor is declared as it was when it tested."""
    alert = event.data
    declared = next((one for one in spec.monitors if one.name == alert.monitor), None)
    monitor = declared if declared is not None and declared.hash() == alert.spec_hash else None
    parts = {"Found": _found(spec, alert, declared)}
    if monitor is None:
        why = f"no monitor {alert.monitor}" if declared is None else f"monitor {alert.monitor} otherwise"
        parts["Odds"] = (
            f"unknown: the file declares {why}, and this was tested with digest {alert.spec_hash}. Give the file "
            "of that time."
        )
    else:
        parts |= {"Odds": _odds(monitor, alert), "Wastes": wastes(monitor)}
    parts |= {"Bound": _bound(alert), "Price": " ".join(_price(alert, monitor))}
    if monitor is not None:
        parts["Silence"] = _silence(monitor, alert)
    parts["Mute"] = _mute(alert)
    head = f"Alert {event.id} of {event.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC:"
    return [head, *(f"  {word:8} {text}" for word, text in parts.items())]


def _found(spec: ApplicationSpec, alert: Alert, monitor: MonitorSpec | None) -> str:
    names = {one.name: one for one in spec.sources}
    source = names.get((monitor.source if monitor else None) or "")
    when, what = "", f"the answer {alert.query_id} of {alert.position.topic}"
    if monitor is not None and source is not None and source.answers is None:
        what = f"the number of {_counted(source, monitor.measure or '')}"
        when = _when(source, alert)
    series = "" if alert.series is None else f" of series {alert.series}"
    dataset = spec.find(alert.dataset)
    unit = "" if dataset is None else f" ({dataset.terms.unit})"
    correction = f", plus a correction of {alert.correction:.12g}" if alert.correction else ""
    return (
        f"{what}{series}{when}, in dataset {alert.dataset}{unit}, was found above {alert.threshold:.12g}. With noise "
        f"of scale {alert.query_noise.scale:.3g} it was {alert.gap:.12g} above the threshold{correction}, plus noise "
        f"of scale {alert.threshold_noise.scale:.3g}."
    )


def _counted(source: SourceSpec, measure: str) -> str:
    most = next((one.at_most for one in source.measures if one.name == measure), 1)
    kind = f"different `{source.unit}`" if most == 1 else f"events, {most} of each `{source.unit}` at most"
    return f"{kind} (measure {measure} of source {source.name})"


def _when(source: SourceSpec, alert: Alert) -> str:
    """Return the window of a count, from the id of its query."""
    with suppress(ValueError):
        begin, tick = (datetime.fromisoformat(one) for one in alert.position.window.split("/"))
        begin_ms = round(begin.timestamp() * 1000)
        until = f", as of {utc(round(tick.timestamp() * 1000))}" if source.ask == "tick" else ""
        return f" from {utc(begin_ms)} to {utc(begin_ms + source.window)}{until}"
    return ""


def _odds(monitor: MonitorSpec, alert: Alert) -> str:
    scale = alert.query_noise.scale
    distances = np.array([-below * scale for below in _BELOW])
    chances = report_chances(monitor, distances).mean(axis=0)
    values = [f"{alert.threshold + float(distance):,.6g}" for distance in distances]
    where = ["at the threshold", *(f"{counted(below, 'noise scale')} below" for below in _BELOW[1:])]
    tests = "" if monitor.attempts == 1 else f" by one of its {monitor.attempts} tests"
    each = zip(values, where, chances, strict=True)
    odds = ", ".join(f"{value} ({place}) {_often(float(chance))}" for value, place, chance in each)
    return f"a value would be reported{tests} so often: {odds}."


def _often(chance: float) -> str:
    if chance >= _FEW:
        return f"{100 * chance:.2g} times in 100"
    return f"once in {float(f'{1 / chance:.2g}'):,.12g} tests" if chance > _NEVER else "never in a lifetime"


def _bound(alert: Alert) -> str:
    sure = f"{100 * (1 - alert.beta):.6g}%"
    if alert.bound is None:
        return f"none: the gap is too small for one at {sure}, or the noise of the threshold has two sides."
    return (
        f"the true value is at least {alert.bound:.12g}, at {sure}. One such bound in {1 / alert.beta:.3g} may be "
        "wrong, and more of them where most alerts are false."
    )


def _price(alert: Alert, monitor: MonitorSpec | None) -> Iterator[str]:
    account = alert.account
    left = account.limit - account.spent
    paid = f"{account.measure} {account.charge:.9g}" if account.charge > 0 else "paid with its run"
    yield f"{paid}; alert {alert.number} of run {alert.run}. Tests without an alert cost nothing."
    yield (
        f"After it {account.measure} {account.spent:.9g} of {account.limit:.9g} was spent: {left:.9g} is left, "
        f"{account.reserved:.9g} of it reserved by open runs."
    )
    if monitor is not None and account.measure in KINDS:
        kind, free = KINDS[account.measure], left - account.reserved
        units = round(Fraction(free) * kind.units) - monitor.reserve_units(kind)
        runs = max(units, 0) // monitor.run_price(kind)
        if kind is Kind.PURE:
            runs = PaidRuns.paid(monitor.mechanism(), units).runs
        more = f"{counted(runs, 'more run')} of {counted(monitor.cutoff, 'alert')}"
        yield f"The rest pays for {more}, if no other monitor begins one."


def _silence(monitor: MonitorSpec, alert: Alert) -> str:
    sure, half = (
        f"{alert.threshold + float(reported_margin(monitor, chance)):,.6g}" for chance in (SURE, 0.5)
    )
    return (
        f"another series may have been tested without an alert: {sure} would have been reported {SURE:.0%} of the "
        f"time, {half} half of the time, lower values less often. Such a test costs nothing. A series that was muted, "
        "or whose monitor was paused, limited or exhausted, was not tested: its silence means nothing."
    )


def _mute(alert: Alert) -> str:
    until = alert.muted_until
    if until is None:
        return "none: the next query of this series is tested, and may cost another alert."
    ends = {"period": "as long as its dataset lives", "run": "for the rest of the run"}
    how_long = f"until {utc(until)}" if isinstance(until, int) else ends[until]
    return f"this series is not tested {how_long}: until then its silence means nothing."
