"""From OpenSLO v1 documents to monitors of shares of errors, as YAML; what has no exact translation is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NoReturn, TypeAlias

from pydantic import ValidationError

from stream_svt.errors import ConfigError
from stream_svt.settings import fields
from stream_svt.settings.document import Document, KeyPath, did_you_mean, quote, read, read_all
from stream_svt.settings.questions import NotAsked, QuestionKeys, asked_by
from stream_svt.settings.sources import MeasureSpec, SourceSpec


def _duration(value: object) -> int:
    return 0 if value == "0m" else fields.duration_ms(value)


_Shape: TypeAlias = dict[str, Any]
_NAME, _NUMBER = fields.plain_name, fields.number
_SENT: _Shape = {"alertWhenNoData?": (False,), "alertWhenResolved?": (False,), "alertWhenBreaching?": (True,)}
_METRIC: _Shape = {"metricSource": {"type": ("stream-svt",), "spec": {"source": _NAME, "measure": _NAME}}}
_RATE: _Shape = {"kind?": ("burnrate",), "op": ("gt", "gte"), "threshold": _NUMBER}
_KINDS: dict[str, _Shape] = {
    "SLO": {
        "service?": str,
        "indicatorRef": _NAME,
        "timeWindow?": [{"duration": str, "isRolling": (True,)}],  # a burn rate is the same over any
        "budgetingMethod": ("Occurrences",),
        "objectives": [{"displayName?": str, "target?": _NUMBER, "targetPercent?": _NUMBER}],
        "alertPolicies": [{"alertPolicyRef": _NAME}],
    },
    "SLI": {"ratioMetric": {"counter?": (False,), "bad": _METRIC, "total": _METRIC}},
    # The forwarder's configuration says who is told.
    "AlertPolicy": _SENT | {"conditions": [{"conditionRef": _NAME}], "notificationTargets?": str},
    "AlertCondition": {
        "severity": _NAME,
        "condition": _RATE | {"lookbackWindow": _duration, "alertAfter?": _duration},
    },
}
"""What the spec of each kind may have. A key with ? may be missing; a list has at least one of its item; a tuple has
the possible values, and a function reads one."""
_META: _Shape = {"name": _NAME, "displayName?": str, "labels?": str, "annotations?": str}

_Objects: TypeAlias = dict[tuple[str, str], tuple[Document, dict[str, Any]]]


def monitors_in(content: bytes, name: str, sources: dict[str, SourceSpec]) -> list[str]:
    """Return the monitors of OpenSLO documents, one for each objective and policy of an SLO, as lines of YAML.

    ConfigError names the first key that is refused, and its line.
    """
    objects: _Objects = {}
    for document in read_all(content, name):
        kind = document.data.get("kind")
        if kind not in [*_KINDS]:
            _refuse(document, f"expected {', '.join(_KINDS)}, found {quote(kind)}", "kind")
        shape = {"description?": str, **_KINDS[kind]}
        whole = {"apiVersion": ("openslo/v1",), "kind": str, "metadata": _META, "spec": shape}
        found = _read(document, whole, document.data)
        if (key := (kind, found["metadata"]["name"])) in objects:
            _refuse(document, f"another {kind} has this name", "metadata", "name")
        objects[key] = (document, found["spec"])
    lines, taken = ["monitors:"], set[str]()
    for slo in (key[1] for key in objects if key[0] == "SLO"):
        for monitor, keys in _monitors(objects, slo, sources):
            if monitor in taken or len(monitor) > 64:
                why = f"makes a monitor {quote(monitor)}, which is too long or another's name"
                _refuse(objects["SLO", slo][0], why, "metadata", "name")
            taken.add(monitor)
            lines += [f"  - name: {monitor}", *(f"    {key}: {value}" for key, value in keys.items())]
    return lines


def _refuse(document: Document, message: str, *path: str | int) -> NoReturn:
    raise ConfigError([document.problem(path, message)], document.source)


def _read(document: Document, shape: Any, value: Any, path: KeyPath = ()) -> Any:  # noqa: ANN401  any value
    """Return a value of a document as its shape reads it; see `_KINDS`."""
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            _refuse(document, f"expected a list that is not empty, found {quote(value)}", *path)
        return [_read(document, shape[0], one, (*path, number)) for number, one in enumerate(value)]
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
    objects: _Objects, slo: str, sources: dict[str, SourceSpec]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the monitors of an SLO, each with its name and its other keys."""
    by, content = objects["SLO", slo]
    sli, indicator = _named(objects, "SLI", by, content["indicatorRef"], "indicatorRef")
    ratio = indicator["ratioMetric"]
    (source, total), (other, bad) = (_measure(sli, ratio, part, sources) for part in ("total", "bad"))
    if source is not other:
        _refuse(sli, "must be a measure of the same source as total", "spec", "ratioMetric", "bad")
    window, objectives = source.window, [*enumerate(content["objectives"])]
    for (number, objective), (index, one) in product(objectives, enumerate(content["alertPolicies"])):
        target = objective.get("target", objective.get("targetPercent", -1) / 100)
        if {"target", "targetPercent"} <= objective.keys() or not 0 <= target < 1:
            wrong = "needs one of target, from 0 to below 1, and targetPercent"
            _refuse(by, wrong, "spec", "objectives", number)
        place = ("alertPolicies", index, "alertPolicyRef")
        policy, body = _named(objects, "AlertPolicy", by, one["alertPolicyRef"], *place)
        if len(body["conditions"]) > 1:
            _refuse(policy, "OpenSLO allows one condition of a policy", "spec", "conditions", 1)
        reference = body["conditions"][0]["conditionRef"]
        at, alert = _named(objects, "AlertCondition", policy, reference, "conditions", 0, "conditionRef")
        rate = alert["condition"]
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
                _refuse(sli, f"as {key}: {wrong}", "spec", "ratioMetric", "bad")
            _refuse(at, f"as {key}: {wrong}", "spec", "condition", last)
        name = f"{slo}-{one['alertPolicyRef']}" + (f"-{number + 1}" if len(objectives) > 1 else "")
        of = {"source": source.name, "measure": total.name}
        yield name, of | asked | {"severity": f"{{{alert['severity']}: 0}}"}


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
    objects: _Objects, kind: str, by: Document, name: str, *path: str | int
) -> tuple[Document, dict[str, Any]]:
    """Return the object that a key names, after its document."""
    if (kind, name) not in objects:
        _refuse(by, f"no document is the {kind} {quote(name)}", "spec", *path)
    return objects[kind, name]


def _measure(
    sli: Document, ratio: dict[str, Any], part: str, sources: dict[str, SourceSpec]
) -> tuple[SourceSpec, MeasureSpec]:
    """Return the measure that a part of a ratio names, after its source."""
    name, measure = (ratio[part]["metricSource"]["spec"][key] for key in ("source", "measure"))
    source = sources.get(name)
    found = None if source is None or source.answers is not None else source.measure(measure)
    if source is None or found is None:
        wrong = f"no source {quote(name)} with a measure {quote(measure)} is declared{did_you_mean(name, sources)}"
        _refuse(sli, wrong, "spec", "ratioMetric", part, "metricSource", "spec")
    return source, found
