"""The configuration file of the service: what is monitored, and how to reach Kafka.

One YAML file holds both. Secrets stand in files of their own or come from a command, never in the YAML or the
environment; file names are relative to the configuration file. Every problem is found before anything connects.

An environment variable ``STREAM_SVT_<SECTION>_<KEY>`` replaces a key of the sections kafka, topics, sealing,
web and commit (``STREAM_SVT_KAFKA_SESSION_TIMEOUT``), so that one file serves several places. What is
monitored and who may give commands cannot be changed from the environment.
"""

from __future__ import annotations

import ssl
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from errno import ENOENT
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from stream_svt.errors import ConfigError, Problem
from stream_svt.monitor.quantities import (
    Duration,
    Flag,
    Text,
    TopicName,
    did_you_mean,
    duration_text,
    found,
    one_of,
    whole,
)
from stream_svt.monitor.spec import (
    SERVICE_KEYS,
    ApplicationDocument,
    ApplicationSpec,
    load_spec,
    parse_application,
    parse_name,
)
from stream_svt.monitor.yaml_source import Document, Strict, read, several, without
from stream_svt.monitor.yaml_source import Path as Place
from stream_svt.protocol.configuration import Bundle
from stream_svt.service.signatures import KEY_BYTES, VerifyingKey, public_key, secret_bytes, shared_key

KEY_COMMAND_SECONDS = 10
"""How long a command that prints a key may take."""

ENVIRONMENT = "STREAM_SVT_"
"""What the variables that replace a key of the file begin with."""
_NOT_FROM_ENVIRONMENT = tuple(
    f"{ENVIRONMENT}{name}" for name in ("CONTROL_", "SEALING_ADOPT_PLAIN", "SEALING_KEY_LOST")
)

_NO_KEY = f"must hold {KEY_BYTES} bytes as {2 * KEY_BYTES} hex digits or as base64"
Section = TypeVar("Section", bound=Strict)


class SecurityProtocol(StrEnum):
    """How clients talk to the brokers."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def authenticates(self) -> bool:
        """Whether a user name and password are sent."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}

    @property
    def encrypts(self) -> bool:
        """Whether the connection is encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}


class SaslMechanism(StrEnum):
    """How a password is proved."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


def _servers(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise ValueError(f"expected host:port, or several with commas, found {found(value)}")
    servers = []
    for part in parts:
        host, colon, port = str(part).strip().rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ValueError(f"expected host:port such as 127.0.0.1:9092, found {found(part)}")
        servers.append(f"{host}:{port}")
    return tuple(servers)


def _words(kind: type[StrEnum]) -> BeforeValidator:
    return BeforeValidator(one_of([word.value for word in kind]))


Servers = Annotated[
    tuple[str, ...],
    PlainValidator(_servers),
    PlainSerializer(",".join, return_type=str),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
]


class KafkaConfig(Strict):
    """How to reach the brokers and how patient to be."""

    bootstrap_servers: Servers = Field(
        default=("127.0.0.1:9092",),
        description="Brokers to ask first: host:port, several with commas or as a list. Default 127.0.0.1:9092.",
    )
    security_protocol: Annotated[SecurityProtocol, _words(SecurityProtocol)] = Field(
        default=SecurityProtocol.PLAINTEXT,
        description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Default PLAINTEXT, for brokers on this machine.",
    )
    sasl_mechanism: Annotated[SaslMechanism, _words(SaslMechanism)] | None = Field(
        default=None,
        description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; with the SASL protocols. Default: none.",
    )
    username: Text | None = Field(
        default=None, description="User name; with the SASL protocols. Default: none."
    )
    password_file: Text | None = Field(
        default=None,
        description="File whose first line is the password; with the SASL protocols. Default: none.",
    )
    ca_file: Text | None = Field(
        default=None,
        description="PEM file of the authorities that may sign the brokers' certificates; with the SSL "
        "protocols. "
        "Default: those of the system.",
    )
    session_timeout: Duration = Field(
        default=6000,
        description="Silence after which the group gives a worker's partitions away. Default 6s.",
    )
    heartbeat_interval: Duration = Field(
        default=500,
        description="Time between signs of life; at most a third of session_timeout. After a worker died, another "
        "learns of it up to this much later than session_timeout. Default 500ms.",
    )
    transaction_timeout: Duration = Field(
        default=15_000,
        description="Time after which the broker aborts a dead worker's transaction; 12s to 15m. Default 15s.",
    )
    group_instance_id: Annotated[Text, Field(max_length=249)] | None = Field(
        default=None,
        description="Lasting name of this worker in its group, different for each (static membership): a "
        "restart then "
        "keeps its partitions. Default: none.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> KafkaConfig:
        protocol = self.security_protocol
        useless = f"has no use with security_protocol {protocol.value}: expected"
        wrong = f"is required with security_protocol {protocol.value}"
        if not protocol.authenticates:
            wrong = f"{useless} SASL_SSL"
        credentials = ("sasl_mechanism", "username", "password_file")
        problems = [
            (name, wrong)
            for name in credentials
            if (getattr(self, name) is not None) is not protocol.authenticates
        ]
        if self.ca_file is not None and not protocol.encrypts:
            problems.append(("ca_file", f"{useless} SSL or SASL_SSL"))
        if 3 * self.heartbeat_interval > self.session_timeout:
            most = duration_text(self.session_timeout // 3)
            problems.append(("heartbeat_interval", f"must be at most {most}, a third of session_timeout"))
        if not 12_000 <= self.transaction_timeout <= 900_000:
            limits = "12s (the service's own deadlines are shorter) and 15m (the brokers' limit)"
            found = duration_text(self.transaction_timeout)
            problems.append(("transaction_timeout", f"must lie between {limits}, found {found}"))
        if problems:
            raise several(problems)
        return self


_OWN = ("alerts", "state", "rejects", "control", "config")


def _own_topic(name: str, text: str) -> Any:  # noqa: ANN401 - a field of any type, as pydantic's own Field
    default = f"<application>.{name}"
    return Field(default="", json_schema_extra={"default": default}, description=f"{text} Default {default}.")


class TopicsConfig(Strict):
    """The service's own topics; partition p of each belongs to shard p."""

    alerts: TopicName = _own_topic("alerts", "Topic of alerts and lifecycle events.")
    state: TopicName = _own_topic(
        "state", "Compacted topic of the shards' state: trusted, readable by the service only."
    )
    rejects: TopicName = _own_topic("rejects", "Topic of the places of malformed queries.")
    control: TopicName = _own_topic("control", "Topic of operators' commands.")
    config: TopicName = _own_topic("config", "Compacted topic of the configuration that is applied.")
    partitions: Annotated[int, Field(ge=1, le=10_000), BeforeValidator(whole)] = Field(
        default=4,
        description="Partitions of every topic, query topics included: the number of shards. Never changes; a "
        "successor may have another number. Default 4.",
    )
    replication_factor: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole)] = Field(
        default=1, description="Copies of topics that are created here; 3 in production. Default 1."
    )
    start_at: Annotated[Literal["earliest", "latest"], BeforeValidator(one_of(["earliest", "latest"]))] = (
        Field(
            default="earliest",
            description="Where a query topic is read from that no monitor in use has read yet: earliest or latest. "
            "Default earliest.",
        )
    )
    allow_alert_retention: bool = Field(
        default=False,
        description="That the alert topic may have a retention. It gives up what only all alerts can show: `audit` "
        "cannot re-derive the charges that are gone, and where a state is lost, a dataset without an alert that is "
        "left has nothing left of its budget. Default false.",
    )


Argv = Annotated[tuple[Text, ...], Field(min_length=1)]


class SealingConfig(Strict):
    """Encryption of the state topic."""

    key_file: Text | None = Field(
        default=None,
        description="File with the 32-byte master key as 64 hex digits or base64. Default: state is not sealed.",
    )
    key_command: Argv | None = Field(
        default=None,
        description="Instead of key_file: a program with its arguments, as a list, that prints the key. No "
        "shell is involved. Default: none.",
    )
    previous_key_files: tuple[Text, ...] = Field(
        default=(),
        description="Files of older keys that may still be in use while a key is rotated. Default: none.",
    )
    previous_key_commands: tuple[Argv, ...] = Field(
        default=(), description="Programs that print older keys, each as a list. Default: none."
    )
    adopt_plain: bool = Field(
        default=False,
        description="Accept a state that is not sealed, once, to seal it: only for turning sealing on. "
        "Remove it afterwards: while it is true, whoever may write the state topic can replace the state. "
        "Default false.",
    )
    key_lost: bool = Field(
        default=False,
        description="The key that sealed the state is lost for good: a worker joins all the same, and parks every "
        "shard whose state it cannot open, so that close-application --give-up-state can close them. Default false.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SealingConfig:
        found = []
        without = self.key_file is None and self.key_command is None
        if self.key_file is not None and self.key_command is not None:
            found.append(("key_command", "is an alternative to key_file: name one of them"))
        if without:
            older = [name for name in ("previous_key_files", "previous_key_commands") if getattr(self, name)]
            found += [("key_file", f"or key_command is required with {name}") for name in older]
        if without and self.adopt_plain:
            found.append(("adopt_plain", "means nothing without key_file or key_command"))
        if found:
            raise several(found)
        return self


class ControlConfig(Strict):
    """Who may give commands, beyond the access control list of the control topic."""

    signatures: Annotated[Literal["required", "off"], BeforeValidator(one_of(["required", "off"]))] | None = (
        Field(
            default=None,
            description="required: only commands signed with one of the keys below are heard. off: every "
            "command on the control topic is. Default: required where a key is named, else off.",
        )
    )
    public_key_files: tuple[Text, ...] = Field(
        default=(),
        description="Files with the Ed25519 public keys (PEM) of those who may give commands. Default: none.",
    )
    hmac_key_files: tuple[Text, ...] = Field(
        default=(),
        description="Files with shared keys (HMAC-SHA256) of 32 bytes as 64 hex digits or base64; who can "
        "verify with one can also sign. Default: none.",
    )

    @property
    def required(self) -> bool:
        """Whether unsigned commands are refused."""
        return bool(self.public_key_files or self.hmac_key_files)

    @model_validator(mode="after")
    def _consistent(self) -> ControlConfig:
        if self.signatures == "required" and not self.required:
            raise several([("signatures", "required needs public_key_files or hmac_key_files")])
        if self.signatures == "off" and self.required:
            raise several([("signatures", "is off although keys are named: remove one or the other")])
        return self


class WebConfig(Strict):
    """Metrics, health and status pages."""

    host: Text = Field(default="127.0.0.1", description="Address to listen on. Default 127.0.0.1.")
    port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(whole)] = Field(
        default=6066, description="Port. Default 6066."
    )
    engine_times: Flag = Field(
        default=False,
        description="Show how long the engine took for each batch (`stream_svt_step_seconds`). The promise does not "
        "cover running times: for tests, or where those who see metrics may see the data. Default false.",
    )


def _within(least: int, most: int) -> AfterValidator:
    """Return what refuses a duration outside of these milliseconds."""
    limits = f"{duration_text(least)} and {duration_text(most)}"

    def check(value: int) -> int:
        if not least <= value <= most:
            raise ValueError(f"must lie between {limits}, found {duration_text(value)}")
        return value

    return AfterValidator(check)


class CommitConfig(Strict):
    """When a batch without tops is committed; one with a top is committed at once."""

    interval: Annotated[Duration, _within(10, 60_000)] = Field(
        default=2000, description="Longest time between commits while queries arrive; 10ms to 1m. Default 2s."
    )
    max_records: Annotated[int, Field(ge=1, le=10_000_000), BeforeValidator(whole)] = Field(
        default=20_000, description="Most records between commits. Default 20000."
    )
    cadence: Annotated[Duration, _within(50, 60_000)] | None = Field(
        default=None,
        description="Fixed time between transactions, 50ms to 1m: nothing is published between two ticks, so that "
        "the moment of an alert tells nothing of how long its batch took. Costs up to two ticks of latency. "
        "Default none: what is charged is published at once.",
    )


class ConfigDocument(ApplicationDocument):
    """The whole configuration file of stream-svt."""

    kafka: KafkaConfig = Field(default_factory=KafkaConfig, description="How to reach the brokers.")
    topics: TopicsConfig = Field(default_factory=TopicsConfig, description="The service's own topics.")
    sealing: SealingConfig = Field(
        default_factory=SealingConfig, description="Encryption of the state topic."
    )
    control: ControlConfig = Field(default_factory=ControlConfig, description="Who may give commands.")
    web: WebConfig = Field(default_factory=WebConfig, description="Metrics, health and status pages.")
    commit: CommitConfig = Field(default_factory=CommitConfig, description="When batches are committed.")


SECTIONS: Mapping[str, type[Strict]] = {
    "kafka": KafkaConfig,
    "topics": TopicsConfig,
    "sealing": SealingConfig,
    "web": WebConfig,
    "commit": CommitConfig,
}
"""Sections whose keys the environment may replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the service was told, checked.

    Attributes
    ----------
    spec
        What is monitored.
    kafka, topics, sealing, control, web, commit
        The sections of the file; the topics' names are filled in.
    password
        Of the broker's user, None without one.
    master_key, previous_keys
        32 bytes each, for sealing; None where state is not sealed.
    command_keys
        Keys whose owners may give commands; empty where signatures are not required.
    notes
        Advice: what works but may not be meant.
    source
        Name of the file.
    """

    spec: ApplicationSpec
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    topics: TopicsConfig
    sealing: SealingConfig = field(default_factory=SealingConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    web: WebConfig = field(default_factory=WebConfig)
    commit: CommitConfig = field(default_factory=CommitConfig)
    password: str | None = field(default=None, repr=False)
    master_key: bytes | None = field(default=None, repr=False)
    previous_keys: tuple[bytes, ...] = field(default=(), repr=False)
    command_keys: tuple[VerifyingKey, ...] = ()
    ca_file: Path | None = None
    notes: tuple[Problem, ...] = ()
    source: str = "configuration"

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
        "security_protocol": kafka.security_protocol.value,
    }
    if kafka.security_protocol.authenticates and kafka.sasl_mechanism is not None:
        arguments["sasl_mechanism"] = kafka.sasl_mechanism.value
        arguments["sasl_plain_username"] = kafka.username
        arguments["sasl_plain_password"] = password
    if kafka.security_protocol.encrypts:
        arguments["ssl_context"] = ssl.create_default_context(cafile=ca_file)
    return arguments


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the configuration file, for editors."""
    schema = ConfigDocument.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stream-svt configuration",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def load_config(
    path: Path | str, environ: Mapping[str, str] | None = None, *, is_whole: bool = True
) -> Config:
    """Return the configuration in a file.

    Where it is not ``is_whole``, datasets and monitors are passed over: a worker reads those from the configuration
    topic, and of the file only the application's name and how to run it.

    Raises
    ------
    ConfigError
        With every problem found in the file, the environment, and the files of secrets it names.
    """
    path = Path(path)
    return parse_config(
        content(path), source=str(path), directory=path.parent, environ=environ, is_whole=is_whole
    )


def bundle_of(path: Path) -> Bundle:
    """Return what is applied of a configuration file: its text without the service's sections, and the files it names.

    Raises
    ------
    ConfigError
        A file cannot be read, or the text is no configuration.
    """
    text = content(path).decode(errors="replace")
    document = read(text, str(path))
    names = Files(document, path.parent).names
    listed = [each.get("file") for each in document.data.get("datasets") or () if isinstance(each, dict)]
    wanted = [name for name in (document.data.get("carried_over"), *listed) if isinstance(name, str)]
    files = {}
    for name in wanted:
        try:
            files[name] = "\n".join(names(name)) + "\n"
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError([Problem(0, "", f"cannot read {found(name)}: {reason}")], str(path)) from None
    return Bundle(without(text, SERVICE_KEYS), files)


def spec_of(bundle: Bundle, source: str = "configuration") -> ApplicationSpec:
    """Return what is monitored, as it was applied.

    Raises
    ------
    ConfigError
        With every problem found.
    """

    def names(path: str) -> Sequence[str]:
        if path not in bundle.files:
            raise FileNotFoundError(ENOENT, "it is not among the files applied")
        return bundle.files[path].splitlines()

    return load_spec(bundle.text, source, names)


def content(path: Path) -> bytes:
    """Return what is in a configuration file.

    Raises
    ------
    ConfigError
        It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        problem = Problem(0, "", f"cannot be read: {error.strerror or 'unknown reason'}")
        raise ConfigError([problem], str(path)) from None


def parse_config(
    text: str | bytes,
    *,
    source: str = "configuration",
    directory: Path = Path(),
    environ: Mapping[str, str] | None = None,
    is_whole: bool = True,
) -> Config:
    """Return the configuration in a YAML text; file names in it are relative to ``directory``.

    Raises
    ------
    ConfigError
        As `load_config`, which see.
    """
    document = read(text, source)
    apply_environment(document, environ or {}, SECTIONS)
    files = Files(document, directory)
    if is_whole:
        spec = parse_application(document, files.names)
    else:
        name = parse_name(document)
        spec = None if name is None else ApplicationSpec(name, (), ())
    kafka = section(document, "kafka", KafkaConfig)
    topics = section(document, "topics", TopicsConfig)
    sealing = section(document, "sealing", SealingConfig)
    control = section(document, "control", ControlConfig)
    web = section(document, "web", WebConfig)
    commit = section(document, "commit", CommitConfig)
    password = files.password(kafka) if kafka else None
    ca_file = files.authorities(kafka) if kafka else None
    keys = files.keys(sealing) if sealing else []
    command_keys = files.command_keys(control, keys) if control else ()
    if topics is not None:
        topics = _named(document, topics, spec)
    document.finish()
    if spec is None or not (kafka and topics and sealing and control and web and commit):
        raise ConfigError([], source)  # pragma: no cover - what is None has been reported
    mine = [
        Problem(document.line(place), ".".join(place), message) for place, message in _notes(kafka, sealing)
    ]
    return Config(
        spec=spec,
        kafka=kafka,
        topics=topics,
        sealing=sealing,
        control=control,
        web=web,
        commit=commit,
        password=password,
        master_key=keys[0] if keys else None,
        previous_keys=tuple(keys[1:]),
        command_keys=command_keys,
        ca_file=ca_file,
        notes=tuple(sorted([*spec.notes, *files.notes, *mine])),
        source=source,
    )


def apply_environment(
    document: Document, environ: Mapping[str, str], sections: Mapping[str, type[Strict]]
) -> None:
    """Let environment variables replace keys of some sections; report those that name no key."""
    for variable, text in sorted(environ.items()):
        if variable.startswith(_NOT_FROM_ENVIRONMENT):
            message = "who may give commands is said in the file only: remove the variable"
            document.problems.append(Problem(0, variable, message))
        for name, model in sections.items():
            prefix = f"{ENVIRONMENT}{name.upper()}_"
            if not variable.startswith(prefix):
                continue
            key = variable.removeprefix(prefix).lower()
            if key in model.model_fields:
                document.put((name, key), text, f"environment variable {variable}")
            else:
                near = did_you_mean(key, list(model.model_fields))
                message = f"environment variable names no key of {name}{near}"
                document.problems.append(Problem(0, variable, message))


def section(document: Document, name: str, model: type[Section]) -> Section | None:
    """Return a section of the document, with its defaults where it is left out; None where it is wrong."""
    if document.data.get(name, {}) is None:
        document.data[name] = {}
    return document.check(model, (name,), default={})


def _named(document: Document, topics: TopicsConfig, spec: ApplicationSpec | None) -> TopicsConfig:
    """Fill in the names of the service's own topics; report those that meet."""
    application = spec.application if spec is not None else str(document.data.get("application", ""))
    names = {key: getattr(topics, key) or f"{application}.{key}" for key in _OWN}
    users: dict[str, str] = dict.fromkeys(spec.topics(), "a monitor reads") if spec is not None else {}
    for key, name in names.items():
        if name in users:
            message = f"topic {found(name)} has another use already ({users[name]}): use one of its own"
            document.report(("topics", key), message)
        users.setdefault(name, f"topics.{key}")
    return topics.model_copy(update=names)


def _notes(kafka: KafkaConfig, sealing: SealingConfig) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield keys with what there is to note: values in the clear on the way to another machine, what was left on."""
    local = ("127.", "localhost:", "[::1]:")
    protected = kafka.security_protocol.encrypts
    if not protected and not all(server.startswith(local) for server in kafka.bootstrap_servers):
        message = "private values cross the network in the clear: use SSL or SASL_SSL"
        yield ("kafka", "security_protocol"), message
    if sealing.adopt_plain:
        message = (
            "a state that is not sealed is accepted: remove this once 'stream-svt status' shows the key's id"
        )
        yield ("sealing", "adopt_plain"), f"{message} for every shard"
    if sealing.key_lost:
        message = (
            "a worker without the right key parks shards that another could open: only for closing them with"
        )
        yield ("sealing", "key_lost"), f"{message} 'stream-svt control close-application --give-up-state'"


class Files:
    """Reads the files that a configuration names, and reports those that cannot be used.

    Attributes
    ----------
    notes
        Files of secrets that others on the machine can read.
    """

    def __init__(self, document: Document, directory: Path) -> None:
        self._document = document
        self._directory = directory
        self.notes: list[Problem] = []

    def names(self, path: str) -> Sequence[str]:
        """Return the lines of a file of dataset names."""
        return (self._directory / path).read_text(encoding="utf-8").splitlines()

    def password(self, kafka: KafkaConfig) -> str | None:
        """Return the password of the brokers' user."""
        if kafka.password_file is None:
            return None
        return self.first_line(kafka.password_file, ("kafka", "password_file"), "password")

    def first_line(self, name: str, place: Place, what: str) -> str | None:
        """Return the first line of a file of one secret, None where it is reported."""
        text = self.secret(name, place)
        if text is None:
            return None
        lines = text.splitlines()
        if not lines or not lines[0]:
            self._document.report(place, f"file {found(name)} holds no {what} in its first line")
            return None
        return lines[0]

    def authorities(self, kafka: KafkaConfig) -> Path | None:
        """Return the file of the authorities that may sign the brokers' certificates."""
        return None if kafka.ca_file is None else self.certificates(kafka.ca_file, ("kafka", "ca_file"))

    def certificates(self, name: str, place: Place) -> Path:
        """Return the path of a PEM file; report where it cannot be loaded."""
        path = self._directory / name
        try:
            ssl.create_default_context(cafile=path)
        except ssl.SSLError:
            self._document.report(place, f"file {found(name)} holds no PEM certificate")
        except OSError as error:
            self._document.report(place, f"cannot read {found(name)}: {error.strerror}")
        return path

    def keys(self, sealing: SealingConfig) -> list[bytes]:
        """Return the master keys, the one that seals first."""
        keys: list[bytes] = []
        for kind in ("key_file", "key_command"):
            if (source := getattr(sealing, kind)) is not None:
                self._collect(keys, source, ("sealing", kind))
        for kind in ("previous_key_files", "previous_key_commands"):
            for index, source in enumerate(getattr(sealing, kind)):
                self._collect(keys, source, ("sealing", kind, index))
        return keys

    def shared_keys(self, names: Sequence[str], place: Place) -> list[bytes]:
        """Return the keys of 32 bytes in files, in their order."""
        keys: list[bytes] = []
        for index, name in enumerate(names):
            self._collect(keys, name, (*place, index))
        return keys

    def _collect(self, keys: list[bytes], source: str | Sequence[str], place: Place) -> None:
        """Add the key that a file holds, or a command prints."""
        if isinstance(source, str):
            text, origin = self.secret(source, place), f"file {found(source)}"
        else:
            text, origin = self._printed(source, place), f"what {found(source[0])} prints"
        if text is None:
            return
        key = secret_bytes(text)
        if key is None:
            self._document.report(place, f"{origin} {_NO_KEY}")
        elif key in keys:
            self._document.report(place, f"{origin} holds the same key as another")
        else:
            keys.append(key)

    def command_keys(self, control: ControlConfig, sealing: Sequence[bytes]) -> tuple[VerifyingKey, ...]:
        """Return the keys whose owners may give commands."""
        keys: dict[str, VerifyingKey] = {}
        for kind in ("public_key_files", "hmac_key_files"):
            for index, name in enumerate(getattr(control, kind)):
                place = ("control", kind, index)
                text = self.secret(name, place, secret=kind == "hmac_key_files")
                if text is None:
                    continue
                try:
                    key = public_key(text) if kind == "public_key_files" else _shared(text, sealing)
                except ValueError as error:
                    self._document.report(place, f"file {found(name)} {error}")
                    continue
                if key.name in keys:
                    self._document.report(place, f"file {found(name)} holds the same key as another")
                keys[key.name] = key
        return tuple(keys.values())

    def _printed(self, command: Sequence[str], place: Place) -> str | None:
        """Return what a program prints on its standard output; what it says otherwise is not repeated."""
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=KEY_COMMAND_SECONDS,
                check=True,
            )
            return done.stdout.decode()
        except UnicodeDecodeError:
            why = "prints no text"
        except subprocess.TimeoutExpired:
            why = f"did not end within {KEY_COMMAND_SECONDS} s"
        except subprocess.CalledProcessError as error:
            why = f"ended with exit code {error.returncode}"
        except OSError as error:
            why = f"cannot be started: {error.strerror}"
        self._document.report(place, f"program {found(command[0])} {why}")
        return None

    def secret(self, name: str, place: Place, *, secret: bool = True) -> str | None:
        """Return the text of a file, None where it is reported; ``secret``: nobody else should read it."""
        path = self._directory / name
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            self._document.report(place, f"file {found(name)} is not text")
            return None
        except OSError as error:
            self._document.report(place, f"cannot read {found(name)}: {error.strerror}")
            return None
        if mode & ((stat.S_IROTH | stat.S_IWOTH) if secret else stat.S_IWOTH):
            done = "read or written" if secret else "written"
            message = f"file {found(name)} can be {done} by everybody on this machine: chmod 600 it"
            field_name = ".".join(str(step) for step in place)
            self.notes.append(Problem(self._document.line(place), field_name, message))
        return text


def _shared(text: str, sealing: Sequence[bytes]) -> VerifyingKey:
    secret = secret_bytes(text)
    if secret is None:
        raise ValueError(_NO_KEY)
    if secret in sealing:
        raise ValueError("holds a sealing key: commands need a key of their own")
    return shared_key(secret)[1]
