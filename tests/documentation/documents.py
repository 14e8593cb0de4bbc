"""Validates the documents that pages show, YAML, JSON and PromQL, by whoever reads them in real life."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import yaml

from stream_svt.forward.metrics import METRICS as FORWARD_METRICS
from stream_svt.monitor import released
from stream_svt.service.metrics import METRICS
from stream_svt.service.wire import _Query
from tests.documentation.configurations import (
    DATASET_KEYS,
    MONITOR_KEYS,
    TOP_KEYS,
    check_configuration,
    check_dataset,
    check_forwarding,
    check_monitor,
    check_sections,
)
from tests.documentation.pages import ROOT, Block
from tests.documentation.stage import NoRule, Stage, StepFailed
from tests.support import kustomize


def check_yaml(stage: Stage, block: Block) -> None:
    """Validate the YAML of a block, of one or several documents.

    Raises
    ------
    NoRule
        No reader of such a document is known.
    StepFailed
        Its reader refuses it.
    """
    text = stage.own(block.text)
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise StepFailed(f"no YAML: {error}") from None
    if not documents:
        raise NoRule("holds no document")
    for document in documents:
        reader = _reader_of(document)
        if reader is None:
            raise NoRule(f"no rule knows a YAML document with {_outline(document)}")
        reader(stage, document, text)
    if block.name:
        stage.write(block.name, block.text)


def is_yaml(text: str) -> bool:
    """Whether a text without a language is a document that a rule here knows."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return isinstance(document, dict) and _reader_of(document) is not None


def _outline(document: Any) -> str:
    return (
        f"the keys {', '.join(map(str, document))}" if isinstance(document, dict) else type(document).__name__
    )


_Reader = Callable[[Stage, Any, str], None]


def _reader_of(document: Any) -> _Reader | None:
    if isinstance(document, list):
        return _items if all(isinstance(one, dict) and _reader_of(one) for one in document) else None
    if not isinstance(document, dict):
        return None
    keys = set(map(str, document))
    for needed, reader in _BY_KEYS:
        if needed <= keys:
            return reader
    return next((reader for known, reader in _BY_LEVEL if keys <= known), None)


def _items(stage: Stage, document: list[dict[str, Any]], text: str) -> None:
    for one in document:
        reader = _reader_of(one)
        assert reader is not None
        reader(stage, one, text)


def run_tool(program: str, *arguments: str) -> _Reader:
    """Return a reader that hands the text to a program as a file."""

    def read(stage: Stage, document: Any, text: str) -> None:
        del document
        stage.need(program)
        path = stage.directory / f"shown-{program}.yaml"
        path.write_text(text)
        stage.bash(" ".join([program, *arguments, f"'{path}'"]))

    return read


def _compose(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    del text
    stage.need("docker-compose")
    path = stage.directory / "shown-compose.yaml"
    path.write_text(yaml.safe_dump({"version": "3.8", **document}))
    stage.bash(f"docker-compose -f '{path}' config -q")


def _manifest(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    del text
    import kubernetes_validate

    if document["kind"] == "Kustomization":
        _kustomization(stage, document)
        return
    try:
        kubernetes_validate.validate(dict(document), "1.31", strict=True)
    except kubernetes_validate.ValidationError as error:
        raise StepFailed(f"Kubernetes refuses it: {error.message}") from None


def _kustomization(stage: Stage, document: Mapping[str, Any]) -> None:
    """Build it beside a checkout of the repository."""
    folder, checkout = stage.directory / "overlay", stage.directory / "stream-svt"
    folder.mkdir(exist_ok=True)
    if not checkout.exists():
        checkout.symlink_to(ROOT)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    for one in document.get("configMapGenerator", ()):
        for name in one["files"]:
            (folder / name).touch()
    try:
        kustomize.build(folder)
    except kustomize.KustomizeError as error:
        raise StepFailed(str(error)) from None


# Whoever reads a document is known by keys that only it has, or by keys that are all its own.
_BY_KEYS: list[tuple[set[str], _Reader]] = [
    ({"application", "datasets", "monitors"}, check_configuration),
    ({"topic", "destinations"}, check_forwarding),
    ({"scrape_configs"}, run_tool("promtool", "check", "config", "--syntax-only")),
    ({"groups"}, run_tool("promtool", "check", "rules")),
    ({"route", "receivers"}, run_tool("amtool", "check-config")),
    ({"services"}, _compose),
    ({"apiVersion", "kind"}, _manifest),
]
_BY_LEVEL: list[tuple[set[str], _Reader]] = [
    (TOP_KEYS, check_sections),
    (MONITOR_KEYS, check_monitor),
    (DATASET_KEYS, check_dataset),
]


def check_json(stage: Stage, block: Block) -> None:
    """Validate the JSON of a block, one document or one a line.

    Raises
    ------
    NoRule
        It is neither a query nor an event of ours.
    StepFailed
        It is no JSON, or its reader refuses it.
    """
    text = stage.own(block.text)
    try:
        found = [json.loads(text)]
    except ValueError:
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise StepFailed(f"no JSON: {error}") from None
    for one in found:
        check_message(one)
    if block.name:
        stage.write(block.name, block.text)


def check_message(message: Any) -> None:
    """Validate one message of a topic: a query or a released event.

    Raises
    ------
    NoRule, StepFailed
        As `check_json`.
    """
    if isinstance(message, dict) and "specversion" in message:
        try:
            released.decode(json.dumps(message).encode())
        except Exception as error:  # noqa: BLE001 - whatever it is, the page shows no event
            raise StepFailed(f"no released event: {error}") from None
    elif isinstance(message, dict) and ("value" in message or "closed" in message):
        unknown = set(message) - set(_Query.__struct_fields__)
        if unknown or not {"id", "set"} & set(message):
            raise StepFailed(f"no query: {', '.join(sorted(unknown)) or 'id is missing'}")
    else:
        raise NoRule(f"no rule knows a JSON document with {_outline(message)}")


def check_promql(stage: Stage, text: str) -> None:
    """Validate expressions for Prometheus, one a line: their grammar, and that their metrics exist.

    Raises
    ------
    StepFailed
        Prometheus cannot read one, or there is no such metric.
    """
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    rules = [{"record": f"shown:{number}", "expr": line} for number, line in enumerate(lines) if line]
    run_tool("promtool", "check", "rules")(
        stage, None, yaml.safe_dump({"groups": [{"name": "shown", "rules": rules}]})
    )
    for name in re.findall(r"\bstream_svt[\w:]+", "\n".join(lines)):
        if not is_metric(name):
            raise StepFailed(f"there is no metric {name}")


def is_metric(name: str) -> bool:
    """Whether a worker, the forwarder or a recording rule has a metric of this name."""
    return re.sub(r"_(?:bucket|sum|count)$", "", name) in _metrics() or name in _metrics()


@cache
def _metrics() -> set[str]:
    found = {metric.name for metric in (*METRICS, *FORWARD_METRICS)}
    for path in (ROOT / "deploy/prometheus/rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            found |= {rule["record"] for rule in group["rules"] if "record" in rule}
    return found | {name.removesuffix("_total") for name in found}
