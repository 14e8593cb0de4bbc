"""The service's configuration: the file is read, then checked, then its secrets are read."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from pathlib import Path
from typing import Any

from stream_svt.errors import ConfigError, Problem
from stream_svt.protocol.configuration import Bundle
from stream_svt.service.secret_files import SecretFiles
from stream_svt.service.signatures import VerifyingKey
from stream_svt.settings.application import ApplicationSpec, application_of, load_spec
from stream_svt.settings.datasets import ReadNames, lines_of
from stream_svt.settings.document import did_you_mean, read, without
from stream_svt.settings.sections import (
    SECTIONS,
    SERVICE_KEYS,
    CommitConfig,
    ConfigDocument,
    ControlConfig,
    KafkaConfig,
    SealingConfig,
    ServiceDocument,
    TopicsConfig,
    WebConfig,
    apply_environment,
    section_notes,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything the service was told, checked.

    Attributes:
        spec: What is monitored.
        notes: Advice: what works but may not be meant.
        source: Name of the file.
        password: Of the broker's user, None without one.
        ca_file: Path of the authorities' certificates, None for those of the system.
        master_keys: 32 bytes each, the one that seals first; empty where state is not sealed.
        command_keys: Keys whose owners may give commands; empty where signatures are not required.
    """

    kafka: KafkaConfig
    topics: TopicsConfig
    sealing: SealingConfig
    control: ControlConfig
    web: WebConfig
    commit: CommitConfig
    spec: ApplicationSpec
    notes: tuple[Problem, ...] = ()
    source: str = "configuration"
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    master_keys: tuple[bytes, ...] = field(default=(), repr=False)
    command_keys: tuple[VerifyingKey, ...] = ()

    @property
    def current(self) -> ApplicationSpec:
        """What is monitored, with the datasets of generators that queries may count for now."""
        return self.spec.at(int(time.time() * 1000))

    def kafka_arguments(self) -> dict[str, Any]:
        """Return what every aiokafka client takes as keywords: servers, protocol and credentials."""
        return client_arguments(self.kafka, self.password, self.ca_file)


def client_arguments(kafka: KafkaConfig, password: str | None, ca_file: Path | None) -> dict[str, Any]:
    """Return what every aiokafka client takes as keywords, the secrets having been read from their files."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": list(kafka.bootstrap_servers),
        "security_protocol": kafka.security_protocol,
    }
    if kafka.authenticates and kafka.sasl_mechanism is not None:
        arguments["sasl_mechanism"] = kafka.sasl_mechanism
        arguments["sasl_plain_username"] = kafka.username
        arguments["sasl_plain_password"] = password
    if kafka.encrypts:
        arguments["ssl_context"] = ssl.create_default_context(cafile=ca_file)
    return arguments


def load_config(
    path: Path | str, environ: Mapping[str, str] | None = None, *, is_whole: bool = True
) -> Config:
    """Return the configuration in a file; see `parse_config`."""
    path = Path(path)
    source, directory = str(path), path.parent
    return parse_config(content(path), source=source, directory=directory, environ=environ, is_whole=is_whole)


def bundle_of(path: Path) -> Bundle:
    """Return what is applied of a configuration file: its text without the service's sections, and files it names."""
    text = content(path).decode(errors="replace")
    document = read(text, str(path))
    names = _names_in(path.parent)
    listed = [each.get("file") for each in document.data.get("datasets") or () if isinstance(each, dict)]
    wanted = [name for name in (document.data.get("carried_over"), *listed) if isinstance(name, str)]
    try:
        files = {name: "".join(f"{line}\n" for line in lines_of(name, names)) for name in wanted}
    except ValueError as error:
        raise ConfigError([Problem(0, "", str(error))], str(path)) from None
    return Bundle(without(text, SERVICE_KEYS), files)


def spec_of(bundle: Bundle, source: str = "configuration") -> ApplicationSpec:
    """Return what is monitored, as it was applied, or raise ConfigError with every problem found."""

    def names(path: str) -> Sequence[str]:
        if path not in bundle.files:
            raise FileNotFoundError(ENOENT, "it is not among the files applied")
        return bundle.files[path].splitlines()

    return load_spec(bundle.text, source, names)


def content(path: Path) -> bytes:
    """Return what is in a configuration file, or raise ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        problem = Problem(0, "", f"cannot be read: {error.strerror or 'unknown reason'}{_others_near(path)}")
        raise ConfigError([problem], str(path)) from None


def _others_near(path: Path) -> str:
    """Return what a message adds where a file is missing: those that its directory has."""
    found = sorted(other.name for other in path.parent.glob("*.y*ml"))
    if path.exists() or not path.parent.is_dir():
        return ""
    if not found:
        return "; no YAML file is there: 'stream-svt demo --show-config' prints one to begin with"
    return did_you_mean(path.name, found) or f"; its directory has {', '.join(found[:5])}"


def parse_config(
    text: str | bytes,
    *,
    source: str = "configuration",
    directory: Path = Path(),
    environ: Mapping[str, str] | None = None,
    is_whole: bool = True,
) -> Config:
    """Return the configuration in a YAML text, or raise ConfigError with every problem found.

    File names in it are relative to ``directory``. Where it is not ``is_whole``, datasets and monitors are passed over:
    a worker reads those from the configuration topic.
    """
    document = read(text, source)
    apply_environment(document, environ or {}, SECTIONS)
    if is_whole:
        whole = document.checked(ConfigDocument)
        spec = application_of(document, whole, _names_in(directory))
        found: ServiceDocument = whole
    else:
        for key in ConfigDocument.model_fields.keys() - ServiceDocument.model_fields.keys():
            document.data.pop(key, None)
        found = document.checked(ServiceDocument)
        spec = ApplicationSpec(found.application, (), ())
    files = SecretFiles(document, directory)
    password, ca_file = files.password(found.kafka), files.authorities(found.kafka)
    keys = files.sealing_keys(found.sealing)
    command_keys = files.command_keys(found.control, keys)
    document.finish()
    notes = sorted([*spec.notes, *files.notes, *section_notes(document, found)])
    return Config(
        spec=spec,
        **{key: getattr(found, key) for key in SERVICE_KEYS},
        notes=tuple(notes),
        source=source,
        password=password,
        ca_file=ca_file,
        master_keys=tuple(keys),
        command_keys=tuple(command_keys),
    )


def _names_in(directory: Path) -> ReadNames:
    """Return what reads the lines of a file named in a configuration."""
    return lambda name: (directory / name).read_text(encoding="utf-8").splitlines()
