"""The forwarder's configuration: a YAML file like the service's, checked before anything connects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from stream_svt.application.config import Files, content
from stream_svt.errors import Problem
from stream_svt.kafka.clients import Cluster
from stream_svt.monitor.released import EventType
from stream_svt.settings.document import Found, Strict, consistent, did_you_mean, path_of, quote, read
from stream_svt.settings.fields import (
    Duration,
    FirstLine,
    KeyFile,
    Name,
    Text,
    TopicName,
    Url,
    advice,
    held_by,
    http_address,
    integer,
    is_this_machine,
)
from stream_svt.settings.sections import KafkaConfig

_LABEL = r"(?!(alertname|application|dataset|monitor|series|type)$)[a-zA-Z_][a-zA-Z0-9_]*"


def type_word(kind: str) -> str:
    """Return the name of an event type in the file: the type without the prefix and suffix that all share."""
    return kind.removeprefix("io.stream-svt.").removesuffix(".v1")


DEFAULT_TYPES = (
    "alert",
    "alert.ended",
    "alert.not-renewed",
    "alert.untested",
    "monitor.exhausted",
    "monitor.limited",
    "monitor.paused",
    "run.halted",
)
TYPE_WORDS = tuple(type_word(kind) for kind in EventType)


def _label(name: str) -> str:
    if not re.fullmatch(_LABEL, name):
        expected = "expected letters, digits and underscores, and no label that events set"
        raise ValueError(f"{expected}, found {quote(name)}")
    return name


def _type(pattern: str) -> str:
    if not any(fnmatchcase(word, pattern) for word in TYPE_WORDS):
        near = did_you_mean(pattern, list(TYPE_WORDS))
        raise ValueError(f"expected '*', or any of {', '.join(TYPE_WORDS)}; found {quote(pattern)}{near}")
    return pattern


Label = Annotated[str, AfterValidator(_label)]
Types = Annotated[tuple[Annotated[Text, AfterValidator(_type)], ...], Field(min_length=1)]
Patterns = Annotated[tuple[Text, ...], Field(min_length=1)]


class AlertmanagerConfig(Strict):
    """Alertmanagers of one cluster; each event goes to all of them and is delivered once one accepts it."""

    urls: Annotated[tuple[Url, ...], Field(min_length=1)]
    """Addresses without /api/v2/alerts, such as http://127.0.0.1:9093."""
    resolve_after: Duration = 3_600_000
    """Time from the delivery of an alert until it ends in Alertmanager. Default 1h."""
    renew: Annotated[Duration, Field(ge=1000)] = 60_000
    """Interval at which standing alerts are posted again; they expire after five intervals. Default 1m."""
    labels: dict[Label, Text] = Field({}, json_schema_extra={"propertyNames": {"pattern": f"^{_LABEL}$"}})
    """Labels for every alert, such as {team: privacy}; severity replaces the alert's own. Default: none."""


class WebhookConfig(Strict):
    """A receiver of CloudEvents in structured mode, signed according to Standard Webhooks."""

    url: Url | None = None
    """Address of the receiver. Either this or url_file."""
    url_file: FirstLine | None = None
    """File whose first line is the address, if the address is a secret."""
    key_files: Annotated[tuple[KeyFile, ...], Field(max_length=2)] = ()
    """Files with a shared key of 32 bytes as 64 hex digits or base64. With two, each request has both signatures,
    to replace a key. Default: not signed."""

    @consistent
    def _problems(self) -> Found:
        if (self.url is None) == (self.url_file is None):
            yield "url", "or url_file is required, and only one of them"
        if self.url_file is not None and self.url_file.held is not None:
            try:
                http_address(self.url_file.held)
            except ValueError as error:
                yield "url_file", f"file {self.url_file}: {error}"


class RetryConfig(Strict):
    """Waits between the attempts to post an event, while a receiver fails."""

    first: Duration = 500
    """Longest wait before the second attempt. Default 500ms."""
    most: Duration = 300_000
    """Longest wait between attempts; each wait is twice the one before. Default 5m."""
    give_up_after: Duration | None = None
    """Time after which an undelivered event counts as refused. Default: never."""

    @consistent
    def _problems(self) -> Found:
        if self.most < self.first:
            yield "most", "must not be shorter than first"


class DestinationConfig(Strict):
    """One receiver and the events that it gets. Destinations do not wait for one another."""

    name: Name
    """Name of the destination in its consumer group, metrics and log lines."""
    alertmanager: AlertmanagerConfig | None = None
    """Post alerts to Alertmanager. Either this or webhook."""
    webhook: WebhookConfig | None = None
    """Post events to a webhook. Either this or alertmanager."""
    types: Types = Field(
        default=DEFAULT_TYPES,
        description=f"Patterns of event types (docs/messages.md) with * and ?. Default {', '.join(DEFAULT_TYPES)}.",
    )
    start_at: Literal["latest", "earliest"] = "latest"
    """Where a destination without committed positions begins: latest (with events from now on) or earliest.
    Standing alerts are posted in either case. Default latest."""
    monitors: Patterns = ("*",)
    """Patterns of monitor names with * and ?. Default: all, ["*"]."""
    datasets: Patterns = ("*",)
    """Patterns of dataset names with * and ?. Default: all, ["*"]."""
    on_refused: Literal["stop", "park"] = "stop"
    """After a refused event: stop the destination, or park the event on park_topic and continue. Default stop."""
    timeout: Duration = 10_000
    """Longest time for one request. Default 10s."""
    retry: RetryConfig = RetryConfig()
    """Waits between attempts."""
    concurrency: Annotated[int, Field(ge=1, le=100), BeforeValidator(integer)] = 4
    """Largest number of requests at a time, for different datasets. Default 4."""
    authorization_file: FirstLine | None = None
    """File whose first line is sent as the Authorization header, such as 'Bearer ...'. Default: none."""

    @consistent
    def _problems(self) -> Found:
        if (self.alertmanager is None) == (self.webhook is None):
            yield "webhook", "or alertmanager is required, and only one of them"
        if (header := self.authorization) and not (header.isascii() and header.isprintable()):
            yield "authorization_file", "has characters that a header must not have"

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses to which events are posted; the address of a webhook may be a secret."""
        if self.alertmanager is not None:
            return tuple(base.rstrip("/") + "/api/v2/alerts" for base in self.alertmanager.urls)
        named = self.webhook and (self.webhook.url_file.held if self.webhook.url_file else self.webhook.url)
        return (named,) if named else ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The shared keys that sign requests."""
        files = self.webhook.key_files if self.webhook else ()
        return tuple(one.held for one in files)

    @property
    def authorization(self) -> str | None:
        """The Authorization header."""
        return held_by(self.authorization_file)[0]

    def notes(self) -> Found:
        """Yield advice about requests that others can read or forge."""
        if self.webhook is not None and not self.webhook.key_files:
            unsigned = "requests are not signed: anybody who can reach the receiver can forge an alert"
            yield "webhook.key_files", unsigned
        # Judged by the host's name: an address on this machine is not read by others.
        remote = [one for one in map(urlsplit, self.urls) if not is_this_machine(one.hostname or "")]
        if (self.authorization_file or self.webhook) and any(one.scheme == "http" for one in remote):
            yield "", "uses http: anybody on the network path can read, change and repeat requests"


class ForwardWebConfig(Strict):
    """Metrics and health pages of the forwarder."""

    host: Text = "127.0.0.1"
    """Address to listen on. Default 127.0.0.1."""
    port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(integer)] = 6067
    """Port. Default 6067."""


class ForwardDocument(Strict):
    """The configuration file of `stream-svt forward`."""

    kafka: KafkaConfig = KafkaConfig()
    """How to reach the brokers."""
    topic: TopicName
    """The alert topic, topics.alerts of the service's configuration."""
    group: Annotated[Text, Field(max_length=180)] = Field(
        "", json_schema_extra={"default": "<topic>.forward"}
    )
    """Prefix of consumer groups: the destination NAME reads in <group>.NAME. Default <topic>.forward."""
    park_topic: TopicName = Field("", json_schema_extra={"default": "<topic>.parked"})
    """Topic of the events that a destination refused. Default <topic>.parked."""
    destinations: Annotated[tuple[DestinationConfig, ...], Field(min_length=1)]
    """The receivers, and the events that each gets."""
    web: ForwardWebConfig = ForwardWebConfig()
    """Metrics and health pages."""

    @consistent
    def _problems(self) -> Found:
        names = [one.name for one in self.destinations]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            yield "destinations", f"two have the name {quote(repeated[0])}: give each its own name"
        if self.park_topic == self.topic:
            yield "park_topic", "must differ from topic: parked events would be read and posted again"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file, for editors."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | ForwardDocument.model_json_schema() | {"title": "stream-svt forward configuration"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardConfig:
    """The checked configuration; ``group`` begins the names of groups, ``source`` names the file."""

    cluster: Cluster
    topic: str
    group: str
    park_topic: str
    destinations: tuple[DestinationConfig, ...]
    web: ForwardWebConfig
    notes: tuple[Problem, ...]
    source: str

    @property
    def parks(self) -> bool:
        """Whether any destination may park events."""
        return any(destination.on_refused == "park" for destination in self.destinations)

    def group_of(self, destination: DestinationConfig) -> str:
        """Return the consumer group of a destination."""
        return f"{self.group}.{destination.name}"


def load_forward_config(path: Path, environ: Mapping[str, str] | None = None) -> ForwardConfig:
    """Return the configuration in a file; file names in it are relative to its directory.

    Raises ConfigError with every problem of the file, of the environment, and of the files of secrets that it names.
    """
    document = read(content(path), str(path))
    document.override(environ or {}, {"kafka": KafkaConfig, "web": ForwardWebConfig})
    files = Files(path.parent)
    with document.checking():
        file = ForwardDocument.model_validate(document.data, context=files)
    notes = [*advice(file)]
    for index, one in enumerate(file.destinations):
        notes += [(("destinations", index, *path_of(at)), note) for at, note in one.notes()]
    return ForwardConfig(
        cluster=Cluster.of(file.kafka),
        topic=file.topic,
        group=file.group or f"{file.topic}.forward",
        park_topic=file.park_topic or f"{file.topic}.parked",
        destinations=file.destinations,
        web=file.web,
        notes=tuple(sorted(document.problem(*note) for note in notes)),
        source=str(path),
    )
