"""Validates the documents that pages show, YAML and JSON, and names of metrics, by whoever reads them in real life."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import yaml

from stream_svt.forward.metrics import METRICS as FORWARD_METRICS
from stream_svt.monitor import released
from stream_svt.service.codec import _Query
from stream_svt.service.metrics import METRICS
from tests.documentation.configurations import (
    TOP_KEYS,
    check_configuration,
    check_forwarding,
    check_sections,
)
from tests.documentation.pages import ROOT, Block
from tests.documentation.stage import NoRule, Stage, StepFailed
from tests.support import kustomize


def check_yaml(stage: Stage, block: Block) -> None:
    """Validate the YAML of a block, of one or several documents.

    Raises:
        NoRule: No reader of such a document is known.
        StepFailed: Its reader refuses it.
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


def _outline(document: Any) -> str:
    return (
        f"the keys {', '.join(map(str, document))}" if isinstance(document, dict) else type(document).__name__
    )


_Reader = Callable[[Stage, Any, str], None]


def _reader_of(document: Any) -> _Reader | None:
    """Return who reads a document, known by keys that only it has, or by keys that are all its own."""
    keys = set(map(str, document)) if isinstance(document, dict) else set()
    for needed, reader in _BY_KEYS:
        if needed <= keys:
            return reader
    return check_sections if keys and keys <= TOP_KEYS else None


def _kustomization(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    """Build it beside a checkout of the repository."""
    del text
    if document["kind"] != "Kustomization":
        raise NoRule(f"no rule knows a manifest of a {document['kind']}")
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


_BY_KEYS: list[tuple[set[str], _Reader]] = [
    ({"application", "datasets", "monitors"}, check_configuration),
    ({"topic", "destinations"}, check_forwarding),
    ({"apiVersion", "kind"}, _kustomization),
]


def check_json(stage: Stage, block: Block) -> None:
    """Validate the JSON of a block, one document or one a line.

    Raises:
        NoRule: It is neither a query nor an event of ours.
        StepFailed: It is no JSON, or its reader refuses it.
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

    Raises:
        NoRule, StepFailed: As `check_json`.
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
