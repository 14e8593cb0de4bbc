"""Validates configurations of the service and of the forwarder, whole or in part, by their own readers."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from stream_svt.errors import ConfigError
from stream_svt.forward.config import parse_forward_config
from stream_svt.service.config import parse_config
from stream_svt.settings.sections import ConfigDocument
from tests.documentation.pages import blocks
from tests.documentation.stage import Stage, StepFailed
from tests.support.tls import Authority

TOP_KEYS = set(ConfigDocument.model_fields)
_CANNOT_BE_REACHED = "kafka"  # the brokers of an example are nobody's


def usual_configuration() -> dict[str, Any]:
    """Return the README's configuration without its key, for pages that leave it to their reader."""
    [text] = [block.text for block in blocks(Path("README.md")) if block.name == "monitors.yaml"]
    document: dict[str, Any] = yaml.safe_load(text)
    del document["sealing"]  # the file is made on the README; other pages name keys of their own
    return document


def check_configuration(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    """Let the service read a whole configuration."""
    _load(stage, document, text)


def check_sections(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    """Let the service read sections of a configuration in a whole one, and remember them for the page."""
    del text
    _load(stage, usual_configuration() | document)
    for key, value in document.items():
        if key != _CANNOT_BE_REACHED:
            stage.additions[key] = value


def configuration_with(additions: Mapping[str, Any], datasets: Sequence[str] = ()) -> str:
    """Return the usual configuration with what a page has shown so far, as YAML, perhaps with other datasets."""
    document = usual_configuration() | additions
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


def check_forwarding(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    """Let the forwarder read its configuration."""
    for destination in document["destinations"]:
        for name in (destination.get("webhook") or {}).get("key_files", ()):
            _make(stage.here / name, lambda: base64.b64encode(os.urandom(32)) + b"\n")
    try:
        parse_forward_config(text, directory=stage.here)
    except ConfigError as error:
        raise StepFailed(f"the forwarder refuses it: {error}") from None
