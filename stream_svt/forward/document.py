"""What may stand in the forwarder's file: its sections, their defaults, and how each quantity is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from string import Formatter
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from stream_svt.monitor.quantities import Duration, Name, Text, TopicName, did_you_mean, found, one_of, whole
from stream_svt.monitor.released import EventType
from stream_svt.monitor.yaml_source import Strict, several
from stream_svt.service.config import KafkaConfig

TYPE_WORDS: Mapping[str, EventType] = {
    kind.value.removeprefix("io.stream-svt.").removesuffix(".v1"): kind for kind in EventType
}
"""How a file names the types of events: without what all of them share."""

GENERATOR_FIELDS = ("application", "dataset", "monitor", "series")
"""What a generator_url may have filled in, percent-encoded."""

OWN_LABELS = frozenset({"alertname", *GENERATOR_FIELDS, "type", "event_id"})

_DEFAULT_TYPES = (EventType.ALERT, EventType.EXHAUSTED, EventType.RUN_HALTED)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


def address(value: object) -> str:
    """Return an http or https address, or raise ValueError saying what was found."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in text):
        raise ValueError(f"expected an address such as https://host:port/path, found {found(value)}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password: put them into a file, see authorization_file")
    return text


def _generator(value: object) -> str:
    text = value if isinstance(value, str) else ""
    try:
        names = [name for _, name, form, conversion in Formatter().parse(text) if name is not None]
        plain = not any(form or conversion for _, name, form, conversion in Formatter().parse(text) if name)
    except ValueError:
        raise ValueError(f"has braces that do not match, found {found(value)}") from None
    unknown = [name for name in names if name not in GENERATOR_FIELDS]
    if unknown or not plain:
        raise ValueError(f"may hold {', '.join(f'{{{name}}}' for name in GENERATOR_FIELDS)} only")
    address(text.format_map(dict.fromkeys(GENERATOR_FIELDS, "x")))
    return text


def _types(value: object) -> tuple[EventType, ...]:
    if value == "all":
        return tuple(EventType)
    words = value if isinstance(value, list | tuple) else [value]
    kinds = []
    for word in words:
        if isinstance(word, EventType):
            kinds.append(word)
        elif isinstance(word, str) and word in TYPE_WORDS:
            kinds.append(TYPE_WORDS[word])
        else:
            near = did_you_mean(word, list(TYPE_WORDS))
            raise ValueError(f"expected all, or any of {', '.join(TYPE_WORDS)}; found {found(word)}{near}")
    if not kinds:
        raise ValueError("expected at least one type of events")
    return tuple(dict.fromkeys(kinds))


def _moment(value: object) -> datetime | None:
    if value == "earliest":
        return None
    if isinstance(value, datetime):
        return value
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(
            f"expected earliest, or a moment such as 2026-01-05T10:00:00Z, found {found(value)}"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping of names to texts, found {found(value)}")  # noqa: TRY004  pydantic's way
    for name, text in value.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            raise ValueError(f"expected a label of letters, digits and underscores, found {found(name)}")
        if name in OWN_LABELS:
            raise ValueError(f"{name} is set from the event: choose another name")
        if not isinstance(text, str) or not text:
            raise ValueError(f"{name}: expected a text, found {found(text)}: put it in quotes")
    return value


def _words(*words: str) -> BeforeValidator:
    return BeforeValidator(one_of(list(words)))


_AS_TEXT = PlainSerializer(str, return_type=str)
Url = Annotated[str, PlainValidator(address), WithJsonSchema({"type": "string", "pattern": "^https?://"})]
Generator = Annotated[
    str, PlainValidator(_generator), WithJsonSchema({"type": "string", "pattern": "^https?://"})
]
Types = Annotated[
    tuple[EventType, ...],
    PlainValidator(_types),
    PlainSerializer(lambda kinds: [_word(kind) for kind in kinds], return_type=list[str]),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "all"},
                {"type": "array", "minItems": 1, "items": {"enum": list(TYPE_WORDS)}},
                {"enum": list(TYPE_WORDS)},
            ]
        }
    ),
]
Moment = Annotated[
    datetime | None,
    PlainValidator(_moment),
    PlainSerializer(lambda moment: "earliest" if moment is None else moment.isoformat(), return_type=str),
    WithJsonSchema(
        {"anyOf": [{"const": "earliest"}, {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}"}]}
    ),
]
Labels = Annotated[
    dict[str, str],
    PlainValidator(_labels),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_LABEL.pattern}$", "not": {"enum": sorted(OWN_LABELS)}},
            "additionalProperties": {"type": "string", "minLength": 1},
        }
    ),
]


def _word(kind: EventType) -> str:
    return next(word for word, known in TYPE_WORDS.items() if known is kind)


class TlsConfig(Strict):
    """How an https connection proves who is at either end."""

    ca_file: Text | None = Field(
        default=None,
        description="PEM file of the authorities that may sign the receiver's certificate. Default: those of "
        "the system.",
    )
    certificate_file: Text | None = Field(
        default=None, description="PEM file of the forwarder's own certificate. Default: none."
    )
    key_file: Text | None = Field(
        default=None, description="PEM file of that certificate's private key, without a password."
    )

    @model_validator(mode="after")
    def _consistent(self) -> TlsConfig:
        if (self.certificate_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "certificate_file"
            raise several([(missing, "is required: a certificate and its key belong together")])
        return self


class AlertmanagerConfig(Strict):
    """Alertmanagers of one cluster; each event goes to all of them and is delivered once one has taken it."""

    urls: Annotated[tuple[Url, ...], Field(min_length=1)] = Field(
        description="Addresses without /api/v2/alerts, such as http://127.0.0.1:9093."
    )
    resolve_after: Duration = Field(
        default=3_600_000,
        description="Time after its delivery until an alert ends by itself; a top has no end of its own. "
        "Default 1h.",
    )
    labels: Labels = Field(
        default_factory=dict,
        description="Labels for every alert, such as {team: privacy}; severity replaces the one given by type. "
        "Default: none.",
    )
    one_per: Annotated[Literal["series", "event"], _words("series", "event")] = Field(
        default="series",
        description="series: tops of one series are one alert, renewed by each. event: each is its own. Default "
        "series.",
    )
    generator_url: Generator | None = Field(
        default=None,
        description="Link of each alert; may hold {application}, {dataset}, {monitor}, {series}. Default: none.",
    )


class WebhookConfig(Strict):
    """A receiver of CloudEvents in structured mode, signed as Standard Webhooks says."""

    url: Url | None = Field(default=None, description="Address that is posted to.")
    url_file: Text | None = Field(
        default=None,
        description="Instead of url: file whose first line is the address, where the address is a secret.",
    )
    key_files: Annotated[tuple[Text, ...], Field(max_length=2)] = Field(
        default=(),
        description="Files with a shared key of 32 bytes as 64 hex digits or base64. With two, each request "
        "carries both signatures: that is how a key is replaced. Default: not signed.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> WebhookConfig:
        if (self.url is None) == (self.url_file is None):
            raise several([("url", "or url_file is required, and only one of them")])
        return self


class RetryConfig(Strict):
    """When a receiver that does not answer, or cannot now, is asked again."""

    first: Duration = Field(default=500, description="Longest wait before the second attempt. Default 500ms.")
    most: Duration = Field(
        default=300_000, description="Longest wait between attempts; each doubles the last. Default 5m."
    )
    give_up_after: Duration | None = Field(
        default=None,
        description="Time after which an event that was never taken counts as refused. Default: never.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> RetryConfig:
        if self.most < self.first:
            raise several([("most", "must not be shorter than first")])
        return self


class DestinationConfig(Strict):
    """One receiver, and which events it gets. Destinations do not wait for one another."""

    name: Name = Field(description="Names its consumer group, its metrics and its log lines.")
    alertmanager: AlertmanagerConfig | None = Field(
        default=None, description="Post alerts to Alertmanager. Either this or webhook."
    )
    webhook: WebhookConfig | None = Field(
        default=None, description="Post events to a webhook. Either this or alertmanager."
    )
    types: Types = Field(
        default=_DEFAULT_TYPES,
        description=f"Types of events: all, or a list of {', '.join(TYPE_WORDS)}. Default alert, "
        "monitor.exhausted, run.halted.",
    )
    monitors: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        default=("*",), description='Patterns of monitor names with * and ?. Default: all, ["*"].'
    )
    datasets: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        default=("*",), description='Patterns of dataset names with * and ?. Default: all, ["*"].'
    )
    on_refused: Annotated[Literal["stop", "park"], _words("stop", "park")] = Field(
        default="stop",
        description="An event that the receiver will never take: stop this destination, so that somebody "
        "looks, or park the event on park_topic and go on. Default stop.",
    )
    timeout: Duration = Field(default=10_000, description="Longest time for one request. Default 10s.")
    retry: RetryConfig = Field(default_factory=RetryConfig, description="When to ask again.")
    concurrency: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole)] = Field(
        default=4, description="Requests under way at once, of different datasets. Default 4."
    )
    window: Annotated[int, Field(ge=1, le=100_000), BeforeValidator(whole)] = Field(
        default=1000,
        description="Records read beyond the first that is not delivered yet: bounds memory, and what comes "
        "twice after a crash. Default 1000.",
    )
    authorization_file: Text | None = Field(
        default=None,
        description="File whose first line is sent as the Authorization header, such as 'Bearer ...'. Default: "
        "none.",
    )
    tls: TlsConfig | None = Field(default=None, description="Certificates; with https addresses.")

    @model_validator(mode="after")
    def _consistent(self) -> DestinationConfig:
        if (self.alertmanager is None) == (self.webhook is None):
            raise several([("webhook", "or alertmanager is required, and only one of them")])
        return self


class ForwardWebConfig(Strict):
    """Metrics and health pages of the forwarder."""

    host: Text = Field(default="127.0.0.1", description="Address to listen on. Default 127.0.0.1.")
    port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(whole)] = Field(
        default=6067, description="Port. Default 6067."
    )


class ForwardDocument(Strict):
    """The configuration file of `stream-svt forward`."""

    kafka: KafkaConfig = Field(default_factory=KafkaConfig, description="How to reach the brokers.")
    topic: TopicName = Field(description="The alert topic, topics.alerts of the service's configuration.")
    group: Annotated[Text, Field(max_length=180)] = Field(
        default="",
        json_schema_extra={"default": "<topic>.forward"},
        description="The destination NAME reads in consumer group <group>.NAME. Default <topic>.forward.",
    )
    start_at: Moment = Field(
        default=None,
        description="Where a destination without a position begins: earliest, or with the events from a moment "
        "on, such as 2026-01-05T10:00:00Z. Default earliest.",
    )
    park_topic: TopicName = Field(
        default="",
        json_schema_extra={"default": "<topic>.parked"},
        description="Topic of the events that a destination refused. Default <topic>.parked.",
    )
    destinations: Annotated[tuple[DestinationConfig, ...], Field(min_length=1)] = Field(
        description="Who gets which events."
    )
    web: ForwardWebConfig = Field(default_factory=ForwardWebConfig, description="Metrics and health pages.")

    @model_validator(mode="after")
    def _consistent(self) -> ForwardDocument:
        names = [destination.name for destination in self.destinations]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise several([("destinations", f"two have the name {found(twice[0])}: use one of its own")])
        return self


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file, for editors."""
    schema = ForwardDocument.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stream-svt forward configuration",
        **{key: value for key, value in schema.items() if key != "title"},
    }
