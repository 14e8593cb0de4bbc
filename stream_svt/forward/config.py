"""The configuration of the forwarder: which events go where.

Like the service's file it is YAML, every problem is found before anything connects, secrets stand in files of
their own, and ``STREAM_SVT_KAFKA_<KEY>`` and ``STREAM_SVT_WEB_<KEY>`` replace keys of those two sections.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from stream_svt.errors import Problem
from stream_svt.monitor.released import EventType
from stream_svt.service.config import client_arguments, content
from stream_svt.service.kafka import Cluster
from stream_svt.service.secret_files import SecretFiles
from stream_svt.settings.document import Document, KeyPath, read
from stream_svt.settings.environment import apply_environment
from stream_svt.settings.fields import Duration, Name, Text, TopicName, whole
from stream_svt.settings.messages import did_you_mean, quote
from stream_svt.settings.sections import KafkaConfig
from stream_svt.settings.validation import Strict, check

TYPE_WORDS: Mapping[str, EventType] = {
    kind.value.removeprefix("io.stream-svt.").removesuffix(".v1"): kind for kind in EventType
}
"""How a file names the types of events: without what all of them share."""

LINK_FIELD = re.compile(r"\{(application|dataset|monitor|series)\}")
"""What a generator_url may have filled in, percent-encoded."""

_LABEL = re.compile(
    r"(?!(alertname|application|dataset|monitor|series|type|event_id)$)[a-zA-Z_][a-zA-Z0-9_]*"
)


def address(text: str) -> str:
    """Return an http or https address, or raise ValueError, which does not repeat it, for it may be a secret."""
    try:
        parts = urlsplit(text)
        usable = (
            parts.scheme in {"http", "https"}
            and parts.hostname
            and parts.port != 0
            and "@" not in parts.netloc
        )
    except ValueError:
        usable = False
    if not usable or re.search(r"\s", text):
        raise ValueError("expected an address such as https://host:port/path, without a user or password")
    return text


def _link(text: str) -> str:
    plain = LINK_FIELD.sub("x", text)
    if "{" in plain or "}" in plain:
        raise ValueError("may hold {application}, {dataset}, {monitor}, {series} only")
    address(plain)
    return text


def _label(name: str) -> str:
    if not _LABEL.fullmatch(name):
        raise ValueError(
            f"expected letters, digits and underscores, and no label set from the event, found {quote(name)}"
        )
    return name


def _types(value: object) -> tuple[EventType, ...]:
    words: list[Any] = list(TYPE_WORDS) if value == "all" else value if isinstance(value, list) else [value]
    for word in words or [value]:
        if not isinstance(word, str) or word not in TYPE_WORDS:
            near = did_you_mean(word, list(TYPE_WORDS))
            raise ValueError(f"expected all, or any of {', '.join(TYPE_WORDS)}; found {quote(word)}{near}")
    return tuple(dict.fromkeys(TYPE_WORDS[word] for word in words))


def _moment(value: object) -> datetime | None:
    if value == "earliest":
        return None
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        expected = "expected earliest, or a moment such as 2026-01-05T10:00:00Z"
        raise ValueError(f"{expected}, found {quote(value)}") from None
    return moment.replace(tzinfo=moment.tzinfo or UTC)


_WORD = {"enum": list(TYPE_WORDS)}
_TYPES_SCHEMA = {"anyOf": [{"const": "all"}, {"type": "array", "minItems": 1, "items": _WORD}, _WORD]}
_MOMENT_SCHEMA = {
    "anyOf": [{"const": "earliest"}, {"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"}]
}
Types = Annotated[tuple[EventType, ...], PlainValidator(_types), WithJsonSchema(_TYPES_SCHEMA)]
Moment = Annotated[datetime | None, PlainValidator(_moment), WithJsonSchema(_MOMENT_SCHEMA)]
_HTTP = Field(json_schema_extra={"pattern": "^https?://"})
Url = Annotated[str, AfterValidator(address), _HTTP]
Link = Annotated[str, AfterValidator(_link), _HTTP]
Patterns = Annotated[tuple[Text, ...], Field(min_length=1)]


class _Part(Strict):
    """A section whose fields are described by the text below each."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class TlsConfig(_Part):
    """How an https connection proves who is at either end."""

    ca_file: Text | None = None
    """PEM file of the authorities that may sign the receiver's certificate. Default: those of the system."""
    certificate_file: Text | None = None
    """PEM file of the forwarder's own certificate. Default: none."""
    key_file: Text | None = None
    """PEM file of that certificate's private key, without a password."""


class AlertmanagerConfig(_Part):
    """Alertmanagers of one cluster; each event goes to all of them and is delivered once one has taken it."""

    urls: Annotated[tuple[Url, ...], Field(min_length=1)]
    """Addresses without /api/v2/alerts, such as http://127.0.0.1:9093."""
    resolve_after: Duration = 3_600_000
    """Time after its delivery until an alert ends by itself; a top has no end of its own. Default 1h."""
    labels: dict[Annotated[str, AfterValidator(_label)], Text] = Field(
        {}, json_schema_extra={"propertyNames": {"pattern": f"^{_LABEL.pattern}$"}}
    )
    """Labels for every alert, such as {team: privacy}; severity replaces the one given by type. Default: none."""
    one_per: Literal["series", "event"] = "series"
    """series: tops of one series are one alert, renewed by each. event: each is its own. Default series."""
    generator_url: Link | None = None
    """Link of each alert; may hold {application}, {dataset}, {monitor}, {series}. Default: none."""


class WebhookConfig(_Part):
    """A receiver of CloudEvents in structured mode, signed as Standard Webhooks says."""

    url: Url | None = None
    """Address that is posted to."""
    url_file: Text | None = None
    """Instead of url: file whose first line is the address, where the address is a secret."""
    key_files: Annotated[tuple[Text, ...], Field(max_length=2)] = Field(
        default=(),
        description="Files with a shared key of 32 bytes as 64 hex digits or base64. With two, each request "
        "carries both signatures: that is how a key is replaced. Default: not signed.",
    )


class RetryConfig(_Part):
    """When a receiver that does not answer, or cannot now, is asked again."""

    first: Duration = 500
    """Longest wait before the second attempt. Default 500ms."""
    most: Duration = 300_000
    """Longest wait between attempts; each doubles the last. Default 5m."""
    give_up_after: Duration | None = None
    """Time after which an event that was never taken counts as refused. Default: never."""


class DestinationConfig(_Part):
    """One receiver, and which events it gets. Destinations do not wait for one another."""

    name: Name
    """Names its consumer group, its metrics and its log lines."""
    alertmanager: AlertmanagerConfig | None = None
    """Post alerts to Alertmanager. Either this or webhook."""
    webhook: WebhookConfig | None = None
    """Post events to a webhook. Either this or alertmanager."""
    types: Types = Field(
        default=(EventType.ALERT, EventType.EXHAUSTED, EventType.RUN_HALTED),
        json_schema_extra={"default": ["alert", "monitor.exhausted", "run.halted"]},
        description=f"Types of events: all, or a list of {', '.join(TYPE_WORDS)}. Default alert, "
        "monitor.exhausted, run.halted.",
    )
    monitors: Patterns = ("*",)
    """Patterns of monitor names with * and ?. Default: all, ["*"]."""
    datasets: Patterns = ("*",)
    """Patterns of dataset names with * and ?. Default: all, ["*"]."""
    on_refused: Literal["stop", "park"] = "stop"
    """An event that is never taken: stop, so that somebody looks, or park it on park_topic and go on. Default stop."""
    timeout: Duration = 10_000
    """Longest time for one request. Default 10s."""
    retry: RetryConfig = RetryConfig()
    """When to ask again."""
    concurrency: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole)] = 4
    """Requests under way at once, of different datasets. Default 4."""
    window: Annotated[int, Field(ge=1, le=100_000), BeforeValidator(whole)] = 1000
    """Records read beyond the first that is not delivered: bounds memory, and copies after a crash. Default 1000."""
    authorization_file: Text | None = None
    """File whose first line is sent as the Authorization header, such as 'Bearer ...'. Default: none."""
    tls: TlsConfig | None = None
    """Certificates; with https addresses."""


class ForwardWebConfig(_Part):
    """Metrics and health pages of the forwarder."""

    host: Text = "127.0.0.1"
    """Address to listen on. Default 127.0.0.1."""
    port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(whole)] = 6067
    """Port. Default 6067."""


class ForwardDocument(_Part):
    """The configuration file of `stream-svt forward`."""

    kafka: KafkaConfig = KafkaConfig()
    """How to reach the brokers."""
    topic: TopicName
    """The alert topic, topics.alerts of the service's configuration."""
    group: Annotated[Text, Field(max_length=180)] = Field(
        "", json_schema_extra={"default": "<topic>.forward"}
    )
    """The destination NAME reads in consumer group <group>.NAME. Default <topic>.forward."""
    start_at: Moment = Field(None, json_schema_extra={"default": "earliest"})
    """Where one without a position begins: earliest, or a moment such as 2026-01-05T10:00:00Z. Default earliest."""
    park_topic: TopicName = Field("", json_schema_extra={"default": "<topic>.parked"})
    """Topic of the events that a destination refused. Default <topic>.parked."""
    destinations: Annotated[tuple[DestinationConfig, ...], Field(min_length=1)]
    """Who gets which events."""
    web: ForwardWebConfig = ForwardWebConfig()
    """Metrics and health pages."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file, for editors."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | ForwardDocument.model_json_schema() | {"title": "stream-svt forward configuration"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A destination with what stands in files.

    Attributes:
        urls: Addresses that are posted to; kept out of ``repr``, for an address may be a secret.
        keys: Keys that sign, none for Alertmanager.
        authorization: Content of the Authorization header, or None.
        tls: What verifies the receiver, or None for http.
    """

    name: str
    config: DestinationConfig
    group: str
    urls: tuple[str, ...] = field(repr=False)
    keys: tuple[bytes, ...] = field(repr=False)
    authorization: str | None = field(repr=False)
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardConfig:
    """Everything the forwarder was told, checked.

    Attributes:
        start_at: Where a group without a position begins; None for the oldest event.
        notes: Advice: what works but may not be meant.
        source: Name of the file.
    """

    cluster: Cluster
    topic: str
    park_topic: str
    start_at: datetime | None
    destinations: tuple[Destination, ...]
    web: ForwardWebConfig
    notes: tuple[Problem, ...]
    source: str

    @property
    def parks(self) -> bool:
        """Whether any destination may park events."""
        return any(destination.config.on_refused == "park" for destination in self.destinations)


def load_forward_config(path: Path | str, environ: Mapping[str, str] | None = None) -> ForwardConfig:
    """Return the configuration in a file.

    Raises:
        ConfigError: With every problem found in the file, the environment, and the files of secrets it names.
    """
    path = Path(path)
    return parse_forward_config(content(path), source=str(path), directory=path.parent, environ=environ)


def parse_forward_config(
    text: str | bytes,
    *,
    source: str = "configuration",
    directory: Path = Path(),
    environ: Mapping[str, str] | None = None,
) -> ForwardConfig:
    """Return the configuration in a YAML text; file names in it are relative to ``directory``.

    Raises:
        ConfigError: As `load_forward_config`.
    """
    document = read(text, source)
    apply_environment(document, environ or {}, {"kafka": KafkaConfig, "web": ForwardWebConfig})
    file = check(document, ForwardDocument)
    files = SecretFiles(document, directory)
    password, ca_file = files.password(file.kafka), files.authorities(file.kafka)
    group = file.group or f"{file.topic}.forward"
    completed = _Completed(document, files, directory)
    destinations = tuple(
        completed.destination(config, group, ("destinations", index))
        for index, config in enumerate(file.destinations)
    )
    names = [config.name for config in file.destinations]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        document.report(("destinations",), f"two have the name {quote(twice[0])}: use one of its own")
    park_topic = file.park_topic or f"{file.topic}.parked"
    if park_topic == file.topic:
        document.report(("park_topic",), "is the topic that is read: parked events would come round again")
    document.finish()
    return ForwardConfig(
        cluster=Cluster(
            client_arguments(file.kafka, password, ca_file),
            session_timeout=file.kafka.session_timeout / 1000,
            heartbeat_interval=file.kafka.heartbeat_interval / 1000,
            group_instance_id=file.kafka.group_instance_id,
        ),
        topic=file.topic,
        park_topic=park_topic,
        start_at=file.start_at,
        destinations=destinations,
        web=file.web,
        notes=tuple(sorted(files.notes)),
        source=source,
    )


@dataclass(frozen=True, slots=True)
class _Completed:
    """Completes destinations with what stands in files, and reports what is wrong with either."""

    document: Document
    files: SecretFiles
    directory: Path

    def destination(self, config: DestinationConfig, group: str, place: KeyPath) -> Destination:
        """Return a destination with its secrets; what cannot be read is reported."""
        report, files = self.document.report, self.files
        if (config.alertmanager is None) == (config.webhook is None):
            report((*place, "webhook"), "or alertmanager is required, and only one of them")
        if config.retry.most < config.retry.first:
            report((*place, "retry", "most"), "must not be shorter than first")
        urls, keys = self._receiver(config, place)
        authorization = None
        if config.authorization_file is not None:
            where = (*place, "authorization_file")
            authorization = files.first_line(config.authorization_file, where, "header")
            if authorization is not None and not (authorization.isascii() and authorization.isprintable()):
                report(where, "holds what no header may hold")
        if (config.authorization_file or config.webhook) and any(map(_is_open, urls)):
            self._note(place, "is posted to over http: who sits between can read, change and repeat it")
        encrypted = [urlsplit(url).scheme == "https" for url in urls]
        if config.tls is not None and not all(encrypted):
            report((*place, "tls"), "has no use with http: write https")
        return Destination(
            name=config.name,
            config=config,
            group=f"{group}.{config.name}",
            urls=urls,
            keys=keys,
            authorization=authorization,
            tls=self._tls(config.tls or TlsConfig(), (*place, "tls")) if any(encrypted) else None,
        )

    def _receiver(
        self, config: DestinationConfig, place: KeyPath
    ) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
        """Return addresses and keys."""
        if config.alertmanager is not None:
            bases, place = config.alertmanager.urls, (*place, "alertmanager", "urls")
            if any(urlsplit(base).query or urlsplit(base).fragment for base in bases):
                self.document.report(place, "must be plain addresses: the path /api/v2/alerts is added")
            return tuple(base.rstrip("/") + "/api/v2/alerts" for base in bases), ()
        if (webhook := config.webhook) is None:
            return (), ()
        place = (*place, "webhook")
        if (webhook.url is None) == (webhook.url_file is None):
            self.document.report((*place, "url"), "or url_file is required, and only one of them")
        if not webhook.key_files:
            where = (*place, "key_files")
            self._note(where, "requests are not signed: whoever can reach the receiver can forge an alert")
        keys = tuple(self.files.shared_keys(webhook.key_files, (*place, "key_files")))
        url = webhook.url
        if webhook.url_file is not None:
            where = (*place, "url_file")
            url = self.files.first_line(webhook.url_file, where, "address")
            try:
                url = url and address(url.strip())
            except ValueError:
                self.document.report(
                    where, f"file {quote(webhook.url_file)} holds no address such as https://host/path"
                )
        return ((url,) if url else ()), keys

    def _tls(self, config: TlsConfig, place: KeyPath) -> ssl.SSLContext | None:
        ca_file = self.files.certificates(config.ca_file, (*place, "ca_file")) if config.ca_file else None
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except (ssl.SSLError, OSError):
            return None  # reported with the file
        if (config.certificate_file is None) != (config.key_file is None):
            self.document.report(place, "certificate_file and key_file belong together: one is missing")
        where = (*place, "key_file")
        if (
            config.certificate_file
            and config.key_file
            and self.files.secret(config.key_file, where) is not None
        ):
            certificate, key = self.directory / config.certificate_file, self.directory / config.key_file
            try:
                # Without a password OpenSSL would ask for one on the terminal, and wait.
                context.load_cert_chain(certificate, key, password=str)
            except (ssl.SSLError, OSError):
                self.document.report(where, "and certificate_file hold no certificate with its open key")
        return context

    def _note(self, place: KeyPath, message: str) -> None:
        name = ".".join(str(step) for step in place)
        self.files.notes.append(Problem(self.document.line(place), name, message))


def _is_open(url: str) -> bool:
    """Tell whether an address is http on another machine, by its name alone; 127.example.org is one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host.rstrip(".").lower() == "localhost"
    return parts.scheme == "http" and not here
