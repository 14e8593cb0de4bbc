"""One alert in words, from the released event and the configuration alone: no true value, state or key is needed."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from math import floor, log10

import numpy as np

from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import Alert, Event
from stream_svt.planning.budget import SURE, reported_margin, silence, wastes
from stream_svt.planning.detected import often
from stream_svt.planning.model import report_chances
from stream_svt.planning.questions import value_in_words
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.questions import Question
from stream_svt.settings.sources import SourceSpec
from stream_svt.wording import counted

_BELOW = {0: "at the threshold", 1: "a noise scale below", 3: "3 noise scales below"}


def explain_alert(spec: ApplicationSpec, event: Event[Alert]) -> list[str]:
    """Return what an alert means, as lines of text; odds only if the monitor is declared as it was when it tested."""
    alert = event.data
    declared = next((one for one in spec.monitors if one.name == alert.monitor), None)
    estimate = "none, without a bound" if alert.estimate is None else f"{alert.estimate:,.12g}"
    severity = f"; severity {alert.severity}" if alert.severity else ""
    parts = {
        "Found": _found(spec, alert, declared),
        "Estimate": f"{estimate}{severity}.",
        "Bound": _bound(alert),
    }
    if declared is not None and declared.hash() == alert.spec_hash:
        margins = (float(reported_margin(declared, chance)) for chance in (SURE, 0.5))
        sure, half = (f"{alert.threshold + margin:,.6g}" for margin in margins)
        parts["Odds"] = _odds(declared, alert)
        parts["Wastes"] = wastes(declared)
        parts["Silence"] = (
            f"another series may have been tested without an alert: {sure} would have been reported {SURE:.0%} of the "
            f"time, {half} half of the time, lower values less often. Such a test costs nothing. A series that was "
            "muted, and one whose monitor was paused, limited, exhausted or in maintenance, was not tested."
        )
        if alert.watched_until is not None:
            parts["Watched"] = (
                f"until {utc(alert.watched_until)} alert.not-renewed follows if the first "
                f"{counted(declared.not_renewed or 1, 'window')} after the mute are all tested and none is reported, "
                f"else another alert, or alert.untested. {silence(declared).capitalize()}"
            )
    else:
        which = f"monitor {alert.monitor} otherwise" if declared else f"no monitor {alert.monitor}"
        found = f"and this was tested with digest {alert.spec_hash}"
        parts["Odds"] = f"unknown: the file declares {which}, {found}. Give the file of that time."
    account, until = alert.account, alert.muted_until
    parts["Price"] = (
        f"{f'{account.measure} {account.charge:.9g}' if account.charge > 0 else 'paid with its run'}; alert "
        f"{alert.number} of run {alert.run}. After it {account.measure} {account.spent:.9g} of {account.limit:.9g} was "
        f"spent: {account.limit - account.spent:.9g} is left, {account.reserved:.9g} of it reserved by open runs."
    )
    if until is not None:
        ends = {"period": "as long as its dataset lives", "run": "for the rest of the run"}
        lasts = f"until {utc(until)}" if isinstance(until, int) else ends[until]
        parts["Mute"] = f"this series is not tested {lasts}: its silence means nothing."
    correction = f", plus a correction of {alert.correction:.12g}" if alert.correction else ""
    parts["Noise"] = (
        f"with noise of scale {alert.query_noise.scale:.3g} the value was {alert.gap:.12g} above the noisy threshold: "
        f"{alert.threshold:.12g}{correction}, plus noise of scale {alert.threshold_noise.scale:.3g}."
    )
    head = f"Alert {event.id} of {event.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC:"
    return [head, *(f"  {word:8} {text}" for word, text in parts.items())]


def _bound(alert: Alert) -> str:
    sure = f"{100 * (1 - alert.beta):.6g}%"
    if alert.bound is None:
        return f"none: the gap is too small for one at {sure}, or the threshold's noise has two sides."
    return (
        f"the true value is at least {alert.bound:.12g}, at {sure}. One such bound in {1 / alert.beta:.3g} may be "
        "wrong, and more of them where most alerts are false."
    )


def _found(spec: ApplicationSpec, alert: Alert, monitor: MonitorSpec | None) -> str:
    sources = {one.name: one for one in spec.sources}
    source = sources.get((monitor.source if monitor else None) or "")
    what, when = f"the answer {alert.query_id} of {alert.position.topic}", ""
    if monitor is not None and source is not None and (measure := source.measure(monitor.measure or "")):
        kind, most = f"different `{source.unit}`", measure.at_most
        kind = kind if most == 1 else f"events, {most} of each `{source.unit}` at most"
        what = f"the number of {kind} (measure {measure.name} of source {source.name})"
        question = monitor.question(source) if monitor.asks else None
        if question is not None:
            asked = value_in_words(monitor, question, source)
            what = f"{asked} ({measure.name} of source {source.name}: {kind})"
        when = _when(source, alert, question)
    series = "" if alert.series is None else f" of series {alert.series}"
    unit = "" if (dataset := spec.find(alert.dataset)) is None else f" ({dataset.terms.unit})"
    return f"{what}{series}{when}, in dataset {alert.dataset}{unit}, was found above {alert.threshold:.12g}."


def _when(source: SourceSpec, alert: Alert, question: Question | None) -> str:
    """Return the time that a count or a question is about, from the id of its query."""
    earlier, look_back = (question.earlier, question.look_back) if question else (0, 0)
    with suppress(ValueError):
        begin, tick = (
            round(datetime.fromisoformat(one).timestamp()) for one in alert.position.window.split("/")
        )
        until = f", as of {utc(1000 * tick)}" if source.ask == "tick" else ""
        first, oldest = (1000 * begin - count * source.window for count in (earlier, look_back))
        usual = f", compared with windows back to {utc(oldest)}" if oldest < first else ""
        return f" from {utc(first)} to {utc(1000 * begin + source.window)}{until}{usual}"
    return ""


def _odds(monitor: MonitorSpec, alert: Alert) -> str:
    distances = -alert.query_noise.scale * np.array([*_BELOW])
    chances = report_chances(monitor, distances).mean(axis=0)
    each = zip(distances, _BELOW.values(), chances, strict=True)
    digits = 2 - floor(log10(alert.query_noise.scale))  # three of the scale
    odds = ", ".join(
        f"{round(alert.threshold + far, digits):,.12g} ({where}) {often(chance)}"
        for far, where, chance in each
    )
    tests = "" if monitor.attempts == 1 else f" by one of its {monitor.attempts} tests"
    return f"a value would be reported{tests} so often: {odds}."
