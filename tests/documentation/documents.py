"""Validates the documents that pages show: YAML and JSON by whoever reads them in real life."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from stream_svt.errors import ConfigError
from stream_svt.forward.config import parse_forward_config
from stream_svt.forward.metrics import METRICS as FORWARD_METRICS
from stream_svt.monitor import released
from stream_svt.monitor.datasets import DatasetDeclaration
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.service.config import ConfigDocument, parse_config
from stream_svt.service.metrics import METRICS
from stream_svt.service.wire import _Query
from tests.documentation.pages import ROOT, Block, blocks
from tests.documentation.stage import Stage, StepFailed
from tests.support.tls import Authority

_TOP = set(ConfigDocument.model_fields)
_MONITOR = {field.alias or name for name, field in MonitorSpec.model_fields.items()}
_DATASET = {field.alias or name for name, field in DatasetDeclaration.model_fields.items()}
_CANNOT_BE_REACHED = "kafka"  # the brokers of an example are nobody's


class NoRule(AssertionError):
    """Nothing is known that could validate a document."""


def usual_configuration() -> dict[str, Any]:
    """Return the README's configuration, for pages that leave it to their reader."""
    [text] = [block.text for block in blocks(Path("README.md")) if block.name == "monitors.yaml"]
    document: dict[str, Any] = yaml.safe_load(text)
    return document


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


def _configuration(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    _load(stage, document, text)


def _sections(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    del text
    _load(stage, merged(usual_configuration(), document))
    for key, value in document.items():
        if key != _CANNOT_BE_REACHED:
            stage.additions[key] = value


def _monitor(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    del text
    whole = usual_configuration()
    [monitor] = whole["monitors"]
    if "correction" in document and "expected_queries" not in document:
        del monitor["expected_queries"]  # only some corrections look at it
    _load(stage, {**whole, "monitors": [merged(monitor, document)]})


def _dataset(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    del text
    whole = usual_configuration()
    usual = {"limit": {"epsilon": 4}, "unit": "one basket"}
    if not {"name", "names", "file", "generate"} & set(document):
        usual["name"] = "retail-2026"
    _load(stage, {**whole, "datasets": [{**usual, **document}]})


def merged(base: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with what a fragment says in addition or instead."""
    return {**base, **added}


def configuration_with(additions: Mapping[str, Any], datasets: Sequence[str] = ()) -> str:
    """Return the usual configuration with what a page has shown so far, as YAML, perhaps with other datasets."""
    document = merged(usual_configuration(), additions)
    if datasets:
        [usual] = usual_configuration()["datasets"]
        document["datasets"] = [{**usual, "name": name} for name in datasets]
    return yaml.safe_dump(document, sort_keys=False)


def _load(stage: Stage, document: Mapping[str, Any], text: str | None = None) -> None:
    for path, make in _named_files(document):
        _make(stage.here / path, make)
    environment = {"PATH": stage.environment["PATH"]}
    before = os.environ["PATH"]
    os.environ["PATH"] = environment["PATH"]  # a key command is looked up there
    try:
        parse_config(text or yaml.safe_dump(dict(document)), directory=stage.here)
    except ConfigError as error:
        raise StepFailed(f"the configuration is refused: {error}") from None
    finally:
        os.environ["PATH"] = before


def _named_files(document: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    kafka, sealing, control = (document.get(name) or {} for name in ("kafka", "sealing", "control"))
    if "password_file" in kafka:
        yield kafka["password_file"], lambda: b"open sesame\n"
    if "ca_file" in kafka:
        yield kafka["ca_file"], lambda: Authority.new().pem
    for name in [
        sealing.get("key_file"),
        *sealing.get("previous_key_files", ()),
        *control.get("hmac_key_files", ()),
    ]:
        if name:
            yield name, lambda: base64.b64encode(os.urandom(32)) + b"\n"
    for name in control.get("public_key_files", ()):
        yield name, _public_key


def _public_key() -> bytes:
    return (
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )


def _make(path: Path, content: Callable[[], bytes]) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content())
        path.chmod(0o600)


def _forwarding(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    for destination in document["destinations"]:
        for name in (destination.get("webhook") or {}).get("key_files", ()):
            _make(stage.here / name, lambda: base64.b64encode(os.urandom(32)) + b"\n")
    try:
        parse_forward_config(text, directory=stage.here)
    except ConfigError as error:
        raise StepFailed(f"the forwarder refuses it: {error}") from None


def _tool(program: str, *arguments: str) -> _Reader:
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
    del stage, text
    import kubernetes_validate

    if document["kind"] == "Kustomization":
        _kustomization(document)
        return
    try:
        kubernetes_validate.validate(dict(document), "1.31", strict=True)
    except kubernetes_validate.ValidationError as error:
        raise StepFailed(f"Kubernetes refuses it: {error.message}") from None


def _kustomization(document: Mapping[str, Any]) -> None:
    """What it builds on exists, and so does what it replaces there; it stands beside a checkout of the repository."""
    unknown = set(document) - _OF_A_KUSTOMIZATION
    if unknown:
        raise StepFailed(f"a kustomization has no {', '.join(sorted(unknown))}")
    below = "".join(_below(name) for name in document.get("resources", ()))
    for kind in ("configMapGenerator", "images"):
        for one in document.get(kind, ()):
            if not re.search(rf"\b{re.escape(one['name'])}\b", below):
                raise StepFailed(f"what it builds on has no {one['name']}")


_OF_A_KUSTOMIZATION = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "configMapGenerator",
    "images",
    "patches",
    "labels",
}


def _below(name: str) -> str:
    """Return the texts of a folder of manifests and of those that it builds on."""
    folder = ROOT / name.removeprefix("../stream-svt/")
    if not (folder / "kustomization.yaml").is_file():
        raise StepFailed(f"there is no {name}")
    texts = [path.read_text() for path in folder.glob("*.yaml")]
    document = yaml.safe_load((folder / "kustomization.yaml").read_text())
    texts += [
        (path / "kustomization.yaml").read_text()
        for one in document["resources"]
        if (path := folder / one).is_dir()
    ]
    return "\n".join(texts)


# Whoever reads a document is known by keys that only it has, or by keys that are all its own.
_BY_KEYS: list[tuple[set[str], _Reader]] = [
    ({"application", "datasets", "monitors"}, _configuration),
    ({"topic", "destinations"}, _forwarding),
    ({"scrape_configs"}, _tool("promtool", "check", "config", "--syntax-only")),
    ({"groups"}, _tool("promtool", "check", "rules")),
    ({"route", "receivers"}, _tool("amtool", "check-config")),
    ({"services"}, _compose),
    ({"apiVersion", "kind"}, _manifest),
]
_BY_LEVEL: list[tuple[set[str], _Reader]] = [(_TOP, _sections), (_MONITOR, _monitor), (_DATASET, _dataset)]


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
    _tool("promtool", "check", "rules")(
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


def same_words(text: str) -> str:
    """Return a text with every run of white space as one blank."""
    return re.sub(r"\s+", " ", text).strip()


def check_printed(stage: Stage, text: str) -> None:
    """Hold what a page shows as printed to what its commands printed, line by line and in order.

    ``...`` stands for anything, on a line of its own for any lines. Numbers need not be those of this run where noise
    or the time of day is in them.

    Raises
    ------
    StepFailed
        A line was not printed.
    """
    place = 0
    for line in map(same_words, text.splitlines()):
        if not line or line in {"...", "…"}:
            continue
        place = next((at + 1 for at in range(place, len(stage.lines)) if _alike(line, *stage.lines[at])), 0)
        if not place:
            raise StepFailed(f"this line was not printed: {line}\nprinted:\n{stage.printed[-1500:]}")


def _alike(shown: str, printed: str, noisy: bool) -> bool:
    printed = same_words(printed)
    if noisy:
        shown, printed = _NUMBER.sub("0", shown), _NUMBER.sub("0", printed)
    return re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*").replace("…", ".*"), printed) is not None


_NUMBER = re.compile(r"\d+(?:[.:]\d+)*")


def repository_file(name: str) -> bool:
    """Whether there is a file or folder whose path ends so."""
    return any(path.endswith(f"/{name.rstrip('/')}") for path in _paths()) or bool(list(ROOT.glob(name)))


@cache
def _paths() -> list[str]:
    tops = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    return [f"/{path.relative_to(ROOT)}" for top in tops for path in (top, *top.rglob("*"))]
