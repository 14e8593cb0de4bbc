"""The configuration file: the sections that only the service reads, and the whole document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)

from stream_svt.settings import counted, fields
from stream_svt.settings.carried import NOTHING, Carried, parse
from stream_svt.settings.datasets import DatasetDeclaration
from stream_svt.settings.document import Found, Strict, Used, consistent, quote, refuse, together, unused
from stream_svt.settings.maintenance import MaintenanceField
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.sources import SourceSpec, log_topic


def _servers(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise ValueError(f"expected host:port, or several with commas, found {quote(value)}")
    servers = []
    for part in parts:
        host, colon, port = str(part).strip().rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ValueError(f"expected host:port such as 127.0.0.1:9092, found {quote(part)}")
        servers.append(f"{fields.visible(host)}:{port}")
    return tuple(servers)


_LIST = {"type": "array", "items": {"type": "string"}, "minItems": 1}
Servers = Annotated[tuple[str, ...], fields.Form(_servers, {"anyOf": [{"type": "string"}, _LIST]}, ",".join)]


_TLS = Used("security_protocol", ("SSL", "SASL_SSL"))
_SASL = Used("security_protocol", ("SASL_PLAINTEXT", "SASL_SSL"), required=True)
_PASSWORD = Used("sasl_mechanism", ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), required=True)
_OAUTH = Used("sasl_mechanism", ("OAUTHBEARER",))
_MSK = Used("sasl_mechanism", ("AWS_MSK_IAM",), required=True)
_ENDPOINT = Used("oauth_token_url")
_CLIENT = Used("oauth_token_url", required=True)
_KEY, _CERTIFICATE = Used("private_key_file", required=True), Used("certificate_file", required=True)


def _extensions(found: dict[str, str]) -> dict[str, str]:
    for name, value in found.items():
        if not re.fullmatch("[A-Za-z]+", name) or name == "auth" or not re.fullmatch(r"[\t -~]+", value):
            raise ValueError(f"expected words of letters and their printable values, found {quote(name)}")
    return found


class KafkaConfig(Strict):
    """Connection to the brokers, and timeouts."""

    bootstrap_servers: Servers = ("127.0.0.1:9092",)
    """Brokers for the first connection, as host:port: several with commas or as a list. Default 127.0.0.1:9092."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol of connections. Default PLAINTEXT, for brokers on this machine."""
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None, _SASL
    ] = None
    """Kind of login, with the SASL protocols; AWS_MSK_IAM needs the extra `msk`. Default: none."""
    username: Annotated[fields.Text | None, _PASSWORD] = None
    """User name; with PLAIN and SCRAM. Default: none."""
    password_file: Annotated[fields.FirstLine | None, _PASSWORD] = None
    """File whose first line is the password; with PLAIN and SCRAM. Default: none."""
    oauth_token_command: Annotated[fields.Program | None, _OAUTH] = None
    """Program with its arguments, without a shell, that prints an access token, or JSON with access_token and
    expires_in; with OAUTHBEARER. Default: none."""
    oauth_token_url: Annotated[fields.Url | None, _OAUTH] = None
    """Token endpoint for OAuth 2 client credentials, instead of oauth_token_command. Default: none."""
    oauth_client_id: Annotated[fields.Text | None, _CLIENT] = None
    """Client id at the token endpoint. Default: none."""
    oauth_client_secret_file: Annotated[fields.SecretFile | None, _CLIENT] = None
    """File whose first line is the client secret; read for each token. Default: none."""
    oauth_scope: Annotated[fields.Text | None, _ENDPOINT] = None
    """Scopes for the token endpoint, separated by spaces. Default: none."""
    oauth_ca_file: Annotated[fields.Authorities | None, _ENDPOINT] = None
    """PEM file of the token endpoint's certificate authorities. Default: the system's."""
    oauth_extensions: Annotated[dict[str, fields.Text], AfterValidator(_extensions), _OAUTH] = Field({})
    """SASL extensions of the brokers, such as {logicalCluster: lkc-1, identityPoolId: pool-1}; with OAUTHBEARER.
    Default: none."""
    aws_region: Annotated[Annotated[fields.Text, Field(pattern=r"^[a-z0-9-]+$")] | None, _MSK] = None
    """Region of the brokers, such as eu-west-1; with AWS_MSK_IAM and the credentials that AWS's SDK finds. Default:
    none."""
    ca_file: Annotated[fields.Authorities | None, _TLS] = None
    """PEM file of the brokers' certificate authorities; with the SSL protocols. Default: the system's."""
    certificate_file: Annotated[fields.Certificate | None, _TLS, _KEY] = None
    """PEM file of this client's certificate and its intermediate certificates; with the SSL protocols. Default:
    none."""
    private_key_file: Annotated[fields.PrivateKey | None, _TLS, _CERTIFICATE] = None
    """PEM file of the certificate's unencrypted private key. Default: none."""
    session_timeout: fields.Duration = 6000
    """Time without a heartbeat after which the group reassigns a worker's partitions. Default 6s."""
    heartbeat_interval: fields.Duration = 500
    """Time between heartbeats; at most a third of session_timeout. Default 500ms."""
    transaction_timeout: Annotated[fields.Duration, fields.within(12_000, 900_000)] = 15_000
    """Time after which the broker aborts a dead worker's transaction; 12s to 15m. Default 15s."""
    group_instance_id: Annotated[fields.Text, Field(max_length=249)] | None = None
    """Unique, permanent name of this worker in its group (static membership): a restarted worker keeps its
    partitions. Default: none."""
    client_id: Annotated[fields.Text, Field(max_length=100)] = "stream-svt"
    """Prefix of the names of clients, to which brokers apply quotas. Default stream-svt."""
    request_timeout: Annotated[fields.Duration, fields.within(1000, 10_000)] = 5000
    """Longest time for one response, 1s to 10s. Increase it for distant brokers. Default 5s."""
    metadata_max_age: Annotated[fields.Duration, fields.within(500, 30_000)] = 3000
    """Interval at which a worker requests metadata, 500ms to 30s. A longer interval relieves brokers with many
    topics, but delays the discovery of deleted topics. Default 3s."""
    connections_max_idle: Annotated[fields.Duration, fields.within(10_000, 3_600_000)] = 180_000
    """Time after which an idle connection is closed, 10s to 1h. Keep it below a load balancer's time (4 minutes on
    Azure, 350 seconds on AWS): a shard whose connection is cut reads its state again. Default 3m."""

    @property
    def encrypts(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security_protocol.endswith("SSL")

    @consistent
    def _problems(self) -> Found:
        yield from unused(self)
        if self.sasl_mechanism == "AWS_MSK_IAM" and find_spec("aws_msk_iam_sasl_signer") is None:
            yield "sasl_mechanism", "AWS_MSK_IAM needs the extra 'msk': pip install 'stream-svt[msk]'"
        is_oauth = self.sasl_mechanism == "OAUTHBEARER"
        if is_oauth and (self.oauth_token_command is None) is (self.oauth_token_url is None):
            yield "oauth_token_url", "or oauth_token_command is required, and only one of them"
        if 3 * self.heartbeat_interval > self.session_timeout:
            longest = fields.duration_text(self.session_timeout // 3)
            yield "heartbeat_interval", f"must be at most {longest}, a third of session_timeout"


Partitioner = Literal["murmur2", "crc32"]


class KafkaDocument(Strict):
    """A connection alone."""

    kafka: KafkaConfig
    """Connection to the brokers."""


_OWN_TOPICS = ("alerts", "state", "rejects", "control", "config")


def _own_topic(name: str, text: str) -> Any:  # noqa: ANN401 - a field of any type, as pydantic's own Field
    default = f"<application>.{name}"
    return Field(default="", json_schema_extra={"default": default}, description=f"{text} Default {default}.")


class TopicsConfig(Strict):
    """The service's own topics; partition p of each belongs to shard p."""

    alerts: fields.TopicName = _own_topic("alerts", "Topic of alerts and lifecycle events.")
    state: fields.TopicName = _own_topic(
        "state", "Compacted topic of the shards' state: trusted, readable by the service only."
    )
    rejects: fields.TopicName = _own_topic("rejects", "Topic of the positions of malformed queries.")
    control: fields.TopicName = _own_topic("control", "Topic of operators' commands.")
    config: fields.TopicName = _own_topic("config", "Compacted topic of the applied configuration.")
    partitions: Annotated[int, Field(ge=1, le=10_000), BeforeValidator(fields.integer)] = 4
    """Number of shards, and of partitions of every topic, including query topics. Fixed; a successor may have
    another number. Default 4."""
    partitioner: Partitioner = "murmur2"
    """Partitioner of all producers: murmur2 (Kafka's Java client and aiokafka) or crc32 (librdkafka's clients).
    Fixed; a successor may have another partitioner. Default murmur2."""
    replication_factor: Annotated[int, Field(ge=1, le=100), BeforeValidator(fields.integer)] = 1
    """Replication factor of topics that stream-svt creates; use 3 in production. Default 1."""
    start_at: Literal["earliest", "latest"] = "earliest"
    """Where reading starts in a new query topic. Default earliest."""
    allow_alert_retention: bool = False
    """Allow a retention on the alert topic. `audit` then cannot derive the charges of deleted alerts, and after a
    lost state a dataset without a remaining alert has no budget left. Default false."""


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


_SealingKey = Annotated[fields.Named[bytes], fields.Outside("sealing_key", fields.FileOrProgram)]


class SealingConfig(Strict):
    """Encryption of the state topic."""

    keys: Annotated[tuple[_SealingKey, ...], BeforeValidator(_one_or_more)] = ()
    """Master keys of 32 bytes as 64 hex digits or base64: the current one, then older ones during a rotation. Each is
    a file, or a list, the program with its arguments, without a shell, that prints the key. Default: state is not
    sealed."""
    adopt_plain: bool = False
    """Accept an unsealed state, to seal it. Remove it afterwards: while it is true, anyone with write access to the
    state topic can replace the state. Default false."""
    key_lost: bool = False
    """Whether the key is lost. A worker then joins anyway and parks shards whose state it cannot open, so that
    close-application --give-up-state can close them. Default false."""

    @property
    def master_keys(self) -> tuple[bytes, ...]:
        """What the keys hold."""
        return tuple(one.held for one in self.keys)

    @consistent
    def _problems(self) -> Found:
        if self.adopt_plain and not self.keys:
            yield "adopt_plain", "has no effect without keys"


class ControlConfig(Strict):
    """Signatures of commands, in addition to the access control list of the control topic."""

    keys: tuple[Annotated[fields.Named[Any], fields.Outside("command_key")], ...] = ()
    """Files with keys that verify commands: Ed25519 public keys (PEM), or shared keys (HMAC-SHA256) of 32 bytes as 64
    hex digits or base64, with which one can also sign. With a key, unsigned commands are refused. Default: none."""


def _registry(text: str) -> str:
    if {"?", "#"} & set(text):
        raise ValueError("expected an address without a query, such as https://registry:8081")
    return fields.http_address(text)


class SchemaRegistryConfig(Strict):
    """The Schema Registry of topics whose records are Avro."""

    url: Annotated[str, Field(strict=True), AfterValidator(_registry)] | None = None
    """Address, http or https, without a user name; required by a monitor with `format: avro`. Default: none."""
    username: Annotated[fields.Text | None, Used("password_file", required=True)] = None
    """User name. Default: none."""
    password_file: Annotated[fields.FirstLine | None, Used("username", required=True)] = None
    """File whose first line is the password. Default: none."""
    ca_file: fields.Authorities | None = None
    """PEM file of the registry's certificate authorities. Default: the system's."""

    @consistent
    def _problems(self) -> Found:
        yield from unused(self)


class WebConfig(Strict):
    """Metrics, health and status pages."""

    host: fields.Text = "127.0.0.1"
    """Address to listen on. Default 127.0.0.1."""
    port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(fields.integer)] = 6066
    """Port. Default 6066."""


class CommitConfig(Strict):
    """When batches without tops are committed; a batch with a top is committed at once."""

    interval: Annotated[fields.Duration, fields.within(10, 60_000)] = 2000
    """Longest time between commits while queries arrive; 10ms to 1m. Default 2s."""
    max_records: Annotated[int, Field(ge=1, le=10_000_000), BeforeValidator(fields.integer)] = 20_000
    """Largest number of records between commits. Default 20000."""
    cadence: Annotated[fields.Duration, fields.within(50, 60_000)] | None = None
    """Fixed time between transactions, 50ms to 1m. Alerts are published at ticks only, so their time does not depend
    on the time of their batch; the latency is up to two ticks. Default none: charged alerts are published at once."""


class ServiceDocument(Strict):
    """The sections that a worker reads from the file itself."""

    application: fields.Name
    """Name of the application; part of its consumer group, transactional ids and sealing context."""
    kafka: KafkaConfig = Field(default_factory=KafkaConfig)
    """Connection to the brokers."""
    topics: TopicsConfig = Field(default_factory=TopicsConfig)
    """The service's own topics."""
    sealing: SealingConfig = Field(default_factory=SealingConfig)
    """Encryption of the state topic."""
    control: ControlConfig = Field(default_factory=ControlConfig)
    """Signatures of commands."""
    schema_registry: SchemaRegistryConfig = Field(default_factory=SchemaRegistryConfig)
    """The Schema Registry of topics whose records are Avro."""
    web: WebConfig = Field(default_factory=WebConfig)
    """Metrics, health and status pages."""
    commit: CommitConfig = Field(default_factory=CommitConfig)
    """When batches are committed."""

    @field_validator(
        "kafka", "topics", "sealing", "control", "schema_registry", "web", "commit", mode="before"
    )
    @classmethod
    def _empty(cls, value: object) -> object:
        return {} if value is None else value

    @model_validator(mode="after")
    def _named_topics(self) -> Self:
        names = {key: getattr(self.topics, key) or f"{self.application}.{key}" for key in _OWN_TOPICS}
        return self.model_copy(update={"topics": self.topics.model_copy(update=names)})

    @consistent
    def _problems(self) -> Found:
        monitors: tuple[MonitorSpec, ...] = getattr(self, "monitors", ())  # of a ConfigDocument
        sources: tuple[SourceSpec, ...] = getattr(self, "sources", ())
        users = {log_topic(self.application): "the event log of sources"} if sources else {}
        users |= dict.fromkeys((source.topic for source in sources), "a source reads")
        users |= dict.fromkeys((monitor.topic for monitor in monitors), "a monitor reads")
        for key in (f"topics.{key}" for key in _OWN_TOPICS):
            name = getattr(self.topics, key.removeprefix("topics."))
            if (user := users.setdefault(name, key)) != key:
                yield key, f"topic {quote(name)} is already in use ({user}): choose another topic"


_SERVICE: dict[str, Any] = {name: field.annotation for name, field in ServiceDocument.model_fields.items()}
SERVICE_KEYS = tuple(name for name in _SERVICE if name != "application")
"""Keys that only the service reads; they are not part of the applied configuration."""
APPLIED_KEYS = ("sources", "datasets", "monitors", "maintenance", "carried_over")
"""Keys that a worker reads from the applied configuration."""
SECTIONS: dict[str, type[Strict]] = {name: _SERVICE[name] for name in SERVICE_KEYS if name != "control"}
"""Sections whose keys environment variables may replace."""


def _carried(file: fields.Named[Any]) -> fields.Named[Carried]:
    try:
        return replace(file, held=parse(file.held))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


class ConfigDocument(ServiceDocument):
    """The whole configuration file of stream-svt."""

    sources: tuple[SourceSpec, ...] = ()
    """The sources: raw topics whose events are counted. Default: none."""
    datasets: Annotated[tuple[DatasetDeclaration, ...], Field(min_length=1)]
    """The private datasets, each with a ledger. A dataset must belong to one application only: two applications
    keep two ledgers."""
    monitors: Annotated[tuple[MonitorSpec, ...], Field(min_length=1)]
    """The monitors."""
    maintenance: tuple[MaintenanceField, ...] = ()
    """Times in which no monitor tests anything, as `maintenance` of a monitor, which adds its own. Default: none."""
    carried_over: Annotated[fields.Named[Any], fields.Outside("lines"), AfterValidator(_carried)] | None = (
        None
    )
    """File written by 'stream-svt carry-over'. Keep it as long as the application exists."""

    @property
    def carried(self) -> Carried:
        """The balances and positions of a closed application; `NOTHING` without a file."""
        return NOTHING if self.carried_over is None else self.carried_over.held

    @property
    def files(self) -> dict[str, str]:
        """The files that names, thresholds and balances were read from, by their names in the document."""
        files: list[tuple[fields.Named[Any], Iterable[str]]]
        files = [(one.file, one.file.held) for one in self.datasets if one.file]
        names = (names for one in self.sources for names in (one.series, one.dataset) if names)
        files += [(one.file, one.file.held) for one in names if one.file]
        files += [(one.thresholds, one.thresholds.held) for one in self.monitors if one.thresholds]
        files += [(self.carried_over, self.carried.lines())] if self.carried_over else []
        return {str(one.name): "".join(f"{line}\n" for line in lines) for one, lines in files}

    @model_validator(mode="wrap")
    @classmethod
    def _with_sources(
        cls, value: object, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Add what follows from sources before monitors are checked, and once datasets are known."""
        if not isinstance(value, dict) or not isinstance(value.get("sources") or [], list):
            return handler(value)
        sources = counted.read_sources(value, info.context)
        monitors, problems = counted.derived(value, sources, info.context)
        data = (
            value | ({"sources": sources} if sources else {}) | ({"monitors": monitors} if monitors else {})
        )
        with together(problems):
            found = handler(data)
        datasets, problems = counted.filled(found.datasets, found.sources)
        resting = tuple(
            one.model_copy(update={"maintenance": tuple(dict.fromkeys(one.maintenance + found.maintenance))})
            for one in found.monitors
        )
        found = found.model_copy(update={"datasets": datasets, "monitors": resting})
        refuse([*problems, *counted.problems(found)])
        return found

    @consistent
    def _successor(self) -> Found:
        if self.carried_over is not None and self.carried.successor != self.application:
            other = f"is for application {quote(self.carried.successor)}: a second one would spend the balances twice"
            yield "carried_over", f"{self.carried_over} {other}"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the configuration file, for editors."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | ConfigDocument.model_json_schema(by_alias=True) | {"title": "stream-svt configuration"}


_NO_REGISTRY = "avro needs the address of a Schema Registry: set schema_registry.url"


def registry_problems(found: ConfigDocument) -> Found:
    """Yield monitors and sources whose records need a Schema Registry, where the file names none."""
    for number, monitor in enumerate(found.monitors):
        if monitor.record is not None and monitor.record.format == "avro" and not found.schema_registry.url:
            yield ("monitors", number, "record", "format"), _NO_REGISTRY
    for number, source in enumerate(found.sources):
        if source.format == "avro" and not found.schema_registry.url:
            yield ("sources", number, "format"), _NO_REGISTRY


def notes(found: ServiceDocument) -> Found:
    """Yield advice about unencrypted connections, options for a single start, and files."""
    token_url = urlsplit(found.kafka.oauth_token_url or "")
    if token_url.scheme == "http" and not fields.is_this_machine(token_url.hostname or ""):
        message = "the client secret and tokens cross the network in the clear: use https"
        yield "kafka.oauth_token_url", message
    hosts = [urlsplit(f"//{one}").hostname or "" for one in found.kafka.bootstrap_servers]
    if not found.kafka.encrypts and not all(map(fields.is_this_machine, hosts)):
        message = "private values cross the network in the clear: use SSL or SASL_SSL"
        yield "kafka.security_protocol", message
    if found.sealing.adopt_plain:
        message = "remove it once 'stream-svt status' shows the key's id for every shard"
        yield "sealing.adopt_plain", f"accepts an unsealed state: {message}"
    if found.sealing.key_lost:
        message = "parks shards that another worker could open: only for 'close-application --give-up-state'"
        yield "sealing.key_lost", message
    yield from fields.advice(found)
