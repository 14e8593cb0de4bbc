"""From OpenSLO v1 documents to monitors of shares of errors, as YAML; what has no exact translation is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple, NoReturn, TypeAlias

from pydantic import ValidationError

from stream_svt.errors import ConfigError
from stream_svt.settings import fields
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.document import Document, KeyPath, did_you_mean, quote, read, read_all
from stream_svt.settings.questions import NotAsked, QuestionKeys, asked_by
from stream_svt.settings.sources import MeasureSpec, SourceSpec


def _duration(value: object) -> int:
    return 0 if value == "0m" else fields.duration_ms(value)


def _not_running(value: object) -> None:
    if value is not False:
        why = "a source counts each window anew, and no running counter"
        raise ValueError(f"expected false, found {quote(value)}: {why}; write false, or remove it")


class _ObjectReference(NamedTuple):
    """An object of a kind: its name, its name under a key, or the object itself."""

    kind: str
    key: str


class _SloObject(NamedTuple):
    """An object: where its content stands, its name, and what it specifies."""

    document: Document
    path: KeyPath
    name: str
    spec: dict[str, Any]


_Shape: TypeAlias = dict[str, Any]
_NAME, _NUMBER = fields.plain_name, fields.number
_SENT: _Shape = {"alertWhenNoData?": (False,), "alertWhenResolved?": (False,), "alertWhenBreaching?": (True,)}
_METRIC: _Shape = {"metricSource": {"type": ("stream-svt",), "spec": {"source": _NAME, "measure": _NAME}}}
_RATE: _Shape = {"kind?": ("burnrate",), "op?": ("gt", "gte"), "threshold": _NUMBER}
_KINDS: dict[str, _Shape] = {
    "SLO": {
        "service?": str,
        "indicatorRef": _NAME,
        "timeWindow?": [{"duration": str, "isRolling": (True,)}],  # a burn rate is the same over any
        "budgetingMethod": ("Occurrences",),
        "objectives": [{"displayName?": str, "target?": _NUMBER, "targetPercent?": _NUMBER}],
        "alertPolicies": [_ObjectReference("AlertPolicy", "alertPolicyRef")],
    },
    "SLI": {"ratioMetric": {"counter?": _not_running, "bad": _METRIC, "total": _METRIC}},
    # The forwarder's configuration says who is told.
    "AlertPolicy": _SENT
    | {"conditions": [_ObjectReference("AlertCondition", "conditionRef")], "notificationTargets?": str},
    "AlertCondition": {
        "severity": _NAME,
        "condition": _RATE | {"lookbackWindow": _duration, "alertAfter?": _duration},
    },
}
"""What the spec of each kind may have. A key with ? may be missing; a list has at least one of its item; a tuple has
the possible values, and a function reads one."""
_READ_OVER = ("Service", "DataSource", "AlertNotificationTarget")
"""Kinds that decide nothing about a monitor."""
_META: _Shape = {"name": _NAME, "displayName?": str, "labels?": str, "annotations?": str}

_Objects: TypeAlias = dict[tuple[str, str], _SloObject]


def monitors_in(content: bytes, name: str, spec: ApplicationSpec) -> list[str]:
    """Return the monitors of OpenSLO documents, one for each objective and policy of an SLO, as lines of YAML.

    ConfigError names the first key that is refused, and its line.
    """
    objects: _Objects = {}
    for document in read_all(content, name):
        kind = document.data.get("kind")
        if kind in _READ_OVER:
            continue
        if kind not in [*_KINDS]:
            _refuse(document, f"expected {', '.join([*_KINDS, *_READ_OVER])}, found {quote(kind)}", "kind")
        found = _object(document, {"apiVersion": ("openslo/v1",), "kind": str}, kind, document.data)
        if (key := (kind, found.name)) in objects:
            _refuse(document, f"another {kind} has this name", "metadata", "name")
        objects[key] = found
    lines, taken = ["monitors:"], set[str]()
    for slo in (one for (kind, _), one in objects.items() if kind == "SLO"):
        for monitor, keys in _monitors(objects, slo, spec):
            if monitor in taken or len(monitor) > 64:
                why = f"makes a monitor {quote(monitor)}, which is too long or another's name"
                _refuse(slo.document, why, "metadata", "name")
            taken.add(monitor)
            lines += [f"  - name: {monitor}", *(f"    {key}: {value}" for key, value in keys.items())]
    return lines


def _refuse(document: Document, message: str, *path: str | int) -> NoReturn:
    raise ConfigError([document.problem(path, message)], document.source)


def _object(document: Document, head: _Shape, kind: str, value: object, path: KeyPath = ()) -> _SloObject:
    """Return an object of a kind that begins with the keys of a head."""
    shape = {**head, "metadata": _META, "spec": {"description?": str, **_KINDS[kind]}}
    found = _read(document, shape, value, path)
    return _SloObject(document, (*path, "spec"), found["metadata"]["name"], found["spec"])


def _read(document: Document, shape: Any, value: Any, path: KeyPath = ()) -> Any:  # noqa: ANN401  any value
    """Return a value of a document as its shape reads it; see `_KINDS`."""
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            _refuse(document, f"expected a list that is not empty, found {quote(value)}", *path)
        return [_read(document, shape[0], one, (*path, number)) for number, one in enumerate(value)]
    if isinstance(shape, _ObjectReference):
        if isinstance(value, dict) and "spec" in value:
            head = {"apiVersion?": ("openslo/v1",), "kind?": (shape.kind,)}
            return _object(document, head, shape.kind, value, path)
        if isinstance(value, str):
            return _read(document, _NAME, value, path)
        if not isinstance(value, dict) or shape.key not in value:
            form = f"{{{shape.key}: NAME}}, or the {shape.kind} itself with metadata and spec"
            _refuse(document, f"expected {form}, found {quote(value)}", *path)
        return _read(document, {shape.key: _NAME}, value, path)[shape.key]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            _refuse(document, f"expected a mapping, found {quote(value)}", *path)
        known = {key.rstrip("?"): of for key, of in shape.items()}
        for key in (one for one in value if one not in known):
            message = f"has no translation: remove it; expected only {', '.join(known)}"
            _refuse(document, message, *path, key)
        for key in (one for one in shape if not one.endswith("?") and one not in value):
            _refuse(document, "is required", *path, key)
        return {key: _read(document, known[key], one, (*path, key)) for key, one in value.items()}
    try:
        if isinstance(shape, tuple) and value not in shape:
            raise ValueError(f"expected {' or '.join(map(quote, shape))}, found {quote(value)}")
        return value if isinstance(shape, tuple) else shape(value)
    except ValueError as error:
        _refuse(document, str(error), *path)


def _monitors(
    objects: _Objects, slo: _SloObject, spec: ApplicationSpec
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the monitors of an SLO, each with its name and its other keys."""
    sli = _named(objects, "SLI", slo, slo.spec["indicatorRef"], "indicatorRef")
    ratio = sli.spec["ratioMetric"]
    (source, total), (other, bad) = (_measure(sli, ratio, part, spec) for part in ("total", "bad"))
    if source is not other:
        _refuse(sli.document, "must be a measure of the same source as total", "spec", "ratioMetric", "bad")
    window, objectives = source.window, [*enumerate(slo.spec["objectives"])]
    for (number, objective), (index, one) in product(objectives, enumerate(slo.spec["alertPolicies"])):
        target = objective.get("target", objective.get("targetPercent", -1) / 100)
        if {"target", "targetPercent"} <= objective.keys() or not 0 <= target < 1:
            wrong = "needs one of target, from 0 to below 1, and targetPercent"
            _refuse(slo.document, wrong, "spec", "objectives", number)
        policy = _named(objects, "AlertPolicy", slo, one, "alertPolicies", index)
        if len(policy.spec["conditions"]) > 1:
            wrong = "OpenSLO allows one condition of a policy"
            _refuse(policy.document, wrong, *policy.path, "conditions", 1)
        alert = _named(objects, "AlertCondition", policy, policy.spec["conditions"][0], "conditions", 0)
        rate = alert.spec["condition"]
        windows, above = -(-rate.get("alertAfter", 0) // window), 100 * rate["threshold"] * (1 - target)
        step, back = (fields.duration_text(one) for one in (window, rate["lookbackWindow"]))
        keys = {
            "share": f"{{of: {bad.name}, above: {quote(above)}%}}",
            "over": f"[{step}, {back}]",
            "for": str(windows),
        }
        asked = {key: value for key, value in keys.items() if value not in (f"[{step}, {step}]", "0", "1")}
        for key, wrong in _problems(asked, total.name, source):
            last = {"over": "lookbackWindow", "for": "alertAfter"}.get(key.split(".")[0], "threshold")
            if key == "share.of":
                _refuse(sli.document, f"as {key}: {wrong}", "spec", "ratioMetric", "bad")
            _refuse(alert.document, f"as {key}: {wrong}", *alert.path, "condition", last)
        name = f"{slo.name}-{policy.name}" + (f"-{number + 1}" if len(objectives) > 1 else "")
        detect = f"{{above: 0, surely_from: {1000 * total.at_most}, alerts: 1{_per(source, spec)}}}"
        also = {"mute": back, "detect": f"{detect}  {CHANGE}", "severity": f"{{{alert.spec['severity']}: 0}}"}
        yield name, {"source": source.name, "measure": total.name} | asked | also


CHANGE = "# change surely_from and alerts: an example"
"""Marks the numbers that no document has."""


def _per(source: SourceSpec, spec: ApplicationSpec) -> str:
    """Return the key `per` that the limit of a source's datasets asks for."""
    generators = (
        one for one in spec.generators if any(source.covers(each.name) for each in one.named(one.from_ms))
    )
    renewal = next((one.each.renewal for one in generators), None)
    return f", per: {fields.duration_text(renewal.per_ms)}" if renewal else ""


def _problems(keys: dict[str, str], measure: str, source: SourceSpec) -> Iterable[tuple[str, str]]:
    """Return what is wrong with the keys of a question, as they are written, by key."""
    written = "\n".join(f"{key}: {value}" for key, value in keys.items())
    try:
        asked_by("", QuestionKeys.model_validate(read(written, "").data), measure, source)
    except ValidationError as error:
        return [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
    except NotAsked as error:
        return error.problems.items()
    return ()


def _named(
    objects: _Objects, kind: str, by: _SloObject, reference: str | _SloObject, *path: str | int
) -> _SloObject:
    """Return the object that a key of another one names or has."""
    if isinstance(reference, _SloObject):
        return reference
    if (kind, reference) not in objects:
        _refuse(by.document, f"no document is the {kind} {quote(reference)}", *by.path, *path)
    return objects[kind, reference]


def _measure(
    sli: _SloObject, ratio: dict[str, Any], part: str, spec: ApplicationSpec
) -> tuple[SourceSpec, MeasureSpec]:
    """Return the measure that a part of a ratio names, after its source."""
    name, measure = (ratio[part]["metricSource"]["spec"][key] for key in ("source", "measure"))
    sources = {one.name: one for one in spec.sources}
    source = sources.get(name)
    found = None if source is None or source.answers is not None else source.measure(measure)
    if source is None or found is None:
        wrong = f"no source {quote(name)} with a measure {quote(measure)} is declared{did_you_mean(name, sources)}"
        _refuse(sli.document, wrong, "spec", "ratioMetric", part, "metricSource", "spec")
    return source, found
