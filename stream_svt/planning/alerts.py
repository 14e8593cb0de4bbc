"""An alert, or the end of an incident, in words, from the released event and the configuration alone.

No true value, state or key is needed.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from math import floor, log10
from typing import Any

import msgspec
import numpy as np

from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import Alert, Event, EventType, Lifecycle
from stream_svt.planning.budget import SURE, reported_margin, silence, wastes
from stream_svt.planning.detected import often
from stream_svt.planning.model import report_chances
from stream_svt.planning.questions import value_in_words
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.fields import END
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.questions import Question
from stream_svt.settings.sources import SourceSpec
from stream_svt.wording import counted

_FAR = {0: "at the threshold", 1: "a noise scale {}", 3: "3 noise scales {}"}


def explain_alert(spec: ApplicationSpec, event: Event[Any]) -> list[str]:
    """Return what an alert or an end means, as lines of text; odds only if its monitor is declared as when it tested.

    Raises msgspec.ValidationError for an end that lacks a detail.
    """
    is_end = event.type == EventType.ALERT_ENDED
    alert: Alert = _top_of(event.data) if is_end else event.data
    turn, beside, what = (-1, "below", "end") if is_end else (1, "above", "alert")
    declared = next((one for one in spec.monitors if one.name == alert.monitor), None)
    estimate = "none, without a bound" if alert.estimate is None else f"{turn * alert.estimate:,.6g}"
    severity = f"; severity {alert.severity}" if alert.severity else ""
    parts = {
        "Found": f"{_found(spec, alert, declared)} was found {beside} {_text(turn * alert.threshold)}.",
        "Estimate": f"{estimate}{severity}.",
        "Bound": _bound(alert, is_end=is_end),
    }
    if declared is not None and declared.hash() == alert.spec_hash:
        parts["Odds"] = _odds(declared, alert, turn)
        parts["Wastes"] = wastes(declared)
        parts["Silence"] = _silence(declared, alert, turn)
        if alert.watched_until is not None:
            parts["Watched"] = f"until {utc(alert.watched_until)} {_watched(declared)}"
    else:
        which = f"monitor {alert.monitor} otherwise" if declared else f"no monitor {alert.monitor}"
        found = f"and this was tested with digest {alert.spec_hash}"
        parts["Odds"] = f"unknown: the file declares {which}, {found}. Give the file of that time."
    parts["Protects"] = _protects(spec, alert.dataset)
    account, until = alert.account, alert.muted_until
    charge = f"{account.measure} {account.charge:.9g}" if account.charge > 0 else "paid with its run"
    parts["Price"] = (
        f"{charge}; {what} {alert.number} of run {alert.run}. After it {account.measure} {account.spent:.9g} of "
        f"{account.limit:.9g} was spent: {account.limit - account.spent:.9g} is left, {account.reserved:.9g} of it "
        "reserved by open runs."
    )
    if until is not None:
        ends = {"period": "as long as its dataset lives", "run": "for the rest of the run"}
        lasts = f"until {utc(until)}" if isinstance(until, int) else ends[until]
        parts["Mute"] = f"this series is not tested {lasts}: its silence means nothing."
    elif is_end:
        parts["Mute"] = f"over: this series is tested for alerts of {alert.monitor.removesuffix(END)} again."
    sign = "less" if is_end else "plus"
    correction = f", {sign} a correction of {alert.correction:.12g}" if alert.correction else ""
    parts["Noise"] = (
        f"with noise of scale {alert.query_noise.scale:.3g} the value was {alert.gap:.12g} {beside} the noisy "
        f"threshold: {_text(turn * alert.threshold)}{correction}, {sign} noise of scale "
        f"{alert.threshold_noise.scale:.3g}."
    )
    head = f"{what.capitalize()} {event.id} of {event.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC:"
    return [head, *(f"  {word:8} {text}" for word, text in parts.items())]


def _silence(monitor: MonitorSpec, alert: Alert, turn: int) -> str:
    """Return what it means that others were not reported; ``turn`` is the sign of the values."""
    margins = (float(reported_margin(monitor, chance)) for chance in (SURE, 0.5))
    sure, half = (f"{turn * (alert.threshold + margin):,.6g}" for margin in margins)
    odds = f"{sure} would have been reported {SURE:.0%} of the time, {half} half of the time"
    if monitor.ends:
        return f"another incident without an end may be over: {odds}, higher values less often. A test costs nothing."
    return (
        f"another series may have been tested without an alert: {odds}, lower values less often. Such a test costs "
        "nothing. A series that was muted, and one whose monitor was paused, limited, exhausted or in maintenance, was "
        "not tested."
    )


def _watched(monitor: MonitorSpec) -> str:
    """Return which events may follow an alert of a monitor with ``end`` or ``not_renewed``."""
    if monitor.end is not None:
        return (
            f"the series is tested for a value below {_text(float(monitor.end.below))} instead: alert.ended follows "
            "where one is found."
        )
    return (
        f"alert.not-renewed follows if the first {counted(monitor.not_renewed or 1, 'window')} after the mute are all "
        f"tested and none is reported, else another alert, or alert.untested. {silence(monitor).capitalize()}"
    )


def _top_of(end: Lifecycle) -> Alert:
    """Return the end of an incident as the top of the values with the sign turned: see `end_of`."""
    names = {"threshold": "below", "bound": "bound", "estimate": "estimate"}
    found = {name: end.detail.get(word) for name, word in names.items()}
    turned = {name: -one if isinstance(one, float | int) else one for name, one in found.items()}
    same = {name: getattr(end, name) for name in ("dataset", "monitor", "run", "account")}
    return msgspec.convert({**end.detail, **turned, **same, "muted_until": None}, Alert)


def _text(value: float) -> str:
    """Return a value with at most twelve digits; zero has no sign."""
    return f"{value or 0:,.12g}"


def _bound(alert: Alert, *, is_end: bool) -> str:
    sure = f"{100 * (1 - alert.beta):.6g}%"
    if alert.bound is None:
        return f"none: the gap is too small for one at {sure}, or the threshold's noise has two sides."
    bound = f"at most {_text(-alert.bound)}" if is_end else f"at least {_text(alert.bound)}"
    return (
        f"that value is {bound}, at {sure}. One such bound in {1 / alert.beta:.3g} may be "
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
    return f"{what}{series}{when}"


def _protects(spec: ApplicationSpec, name: str) -> str:
    """Return the privacy unit of a dataset."""
    if (found := spec.find(name)) is None:
        return f"unknown: the file does not declare dataset {name}."
    return f"{found.terms.unit}, in dataset {name}."


def _when(source: SourceSpec, alert: Alert, question: Question | None) -> str:
    """Return the time that a count or a question is about, from the id of its query."""
    earlier, look_back = (question.earlier, question.look_back) if question else (0, 0)
    with suppress(ValueError):
        begin, tick = (
            round(datetime.fromisoformat(one).timestamp()) for one in alert.position.window.split("/")
        )
        first, oldest = (1000 * begin - count * source.window for count in (earlier, look_back))
        until = f", as of {utc(1000 * tick)}" if source.ask == "tick" else ""
        usual = f", compared with windows back to {utc(oldest)}" if oldest < first else ""
        more = f"{until}{usual}," if until or usual else ""
        return f" from {utc(first)} to {utc(1000 * begin + source.window)}{more}"
    return ""


def _odds(monitor: MonitorSpec, alert: Alert, turn: int) -> str:
    """Return how often values on the other side of the threshold are reported; ``turn`` is the sign of the values."""
    distances = -alert.query_noise.scale * np.array([*_FAR])
    chances = report_chances(monitor, distances).mean(axis=0)
    each = zip(distances, _FAR.values(), chances, strict=True)
    beyond = "below" if turn > 0 else "above"
    digits = 2 - floor(log10(alert.query_noise.scale))  # three of the scale
    odds = ", ".join(
        f"{_text(turn * round(alert.threshold + far, digits))} ({where.format(beyond)}) {often(chance)}"
        for far, where, chance in each
    )
    tests = "" if monitor.attempts == 1 else f" by one of its {monitor.attempts} tests"
    return f"a value would be reported{tests} so often: {odds}."
