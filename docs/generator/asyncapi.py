"""The AsyncAPI document of the service's topics, from the types that are written and read."""

from __future__ import annotations

import inspect
import re
from typing import Final

import msgspec
import yaml

from docs.generator.events import EVENTS, Event
from docs.generator.fields import FIELDS, QUERY, TEXT
from docs.generator.schema import Schema, count, optional, text
from stream_svt.monitor.released import CONTENT_TYPE, Alert, EventType
from stream_svt.protocol.controls import COMMAND_LIMIT
from stream_svt.service.codec import ARROW_STREAM, MAX_BYTES
from stream_svt.service.signatures import HEADER

_SCHEMAS: Final = "#/components/schemas/{name}"
_MESSAGES: Final = "#/components/messages/{name}"
_ABOUT: Final = (
    "The topics of one application. APPLICATION stands for its name in the configuration. All topics have the same "
    "number of partitions; partition p of each belongs to shard p. Alerts, rejects and replies are released: anybody "
    "may read them, for ever. Query topics are trusted: they hold true answers. The state topic is internal to the "
    "service and not described here."
)


def document() -> Schema:
    """Return the AsyncAPI document."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "stream_svt",
            "version": "1",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": _channels(),
        "operations": _operations(),
        "components": {"messages": _messages(), "schemas": _schemas()},
    }


def document_text() -> str:
    """Return the document as YAML."""
    head = "# Made by docs/generate from the types in stream_svt. Do not edit.\n"
    return head + yaml.dump(document(), Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Write everything out: a reader should not have to look up anchors."""
        del data
        return True


def short_name(kind: EventType) -> str:
    """Return a type of event without what all of them have in common: "run.started"."""
    return kind.value.removeprefix("io.stream-svt.").removesuffix(".v1")


def message_name(kind: EventType) -> str:
    """Return how the document calls a type of event: "runStarted"."""
    first, *rest = re.split(r"[.-]", short_name(kind))
    return first + "".join(word.capitalize() for word in rest)


def _channels() -> Schema:
    def channel(address: str, description: str, names: list[str], **more: object) -> Schema:
        return {
            "address": address,
            "description": description,
            "messages": {name: {"$ref": _MESSAGES.format(name=name)} for name in names},
            **more,
        }

    queries = "Query topics, as many as the configuration names. Records are keyed by dataset."
    return {
        "queries": channel(
            "{topic}",
            queries,
            ["query", "setMarker", "columnarQueries"],
            parameters={"topic": {"description": "`topic` of a monitor in the configuration."}},
        ),
        "alerts": channel(
            "{application}.alerts",
            "Alerts and lifecycle events, each in the transaction after the one that charged it. Read "
            "committed, every event comes once; read uncommitted, at least once with the same id and "
            "content.",
            [message_name(kind) for kind in EVENTS],
            parameters=_APPLICATION,
        ),
        "rejects": channel(
            "{application}.rejects",
            "Where refused records stand, and why; never what they hold.",
            ["reject"],
            parameters=_APPLICATION,
        ),
        "control": channel(
            "{application}.control",
            "Operators' commands. The answer comes on the alert topic.",
            ["command"],
            parameters=_APPLICATION,
        ),
    }


_APPLICATION: Final = {
    "application": {
        "description": "Name of the application; `topics` in the configuration may name the topic otherwise."
    }
}


def _operations() -> Schema:
    def operation(action: str, channel: str, summary: str) -> Schema:
        return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}

    return {
        "readQueries": operation("receive", "queries", "Test queries against the noisy threshold."),
        "publishEvents": operation("send", "alerts", "Release what is charged."),
        "reportRejects": operation("send", "rejects", "Say which records were refused."),
        "readCommands": operation("receive", "control", "Carry out the command that names the next number."),
    }


def _messages() -> Schema:
    def message(
        title: str, summary: str, schema: Schema | None = None, key: str = "The dataset.", **more: object
    ) -> Schema:
        return {
            "title": title,
            "summary": summary,
            "payload": schema or {"$ref": _SCHEMAS.format(name=title)},
            "bindings": {"kafka": {"key": {"type": "string", "description": key}, "bindingVersion": "0.5.0"}},
            **more,
        }

    events = {
        message_name(kind): message(
            _schema_name(kind),
            event.meaning,
            key="The dataset; empty for an event about a shard."
            if "shard" in event.about
            else "The dataset.",
            contentType=CONTENT_TYPE,
        )
        for kind, event in EVENTS.items()
    }
    return {
        "query": message("Query", f"One true answer; at most {MAX_BYTES:,} bytes."),
        "setMarker": message("SetMarker", "Closes a set: its bottoms are tested pass after pass."),
        "columnarQueries": message(
            "ColumnarQueries",
            "Many queries of one dataset in a record: an Arrow IPC stream whose columns are the fields of "
            "a query.",
            {"type": "string", "format": "binary", "description": "An Arrow IPC stream."},
            contentType=ARROW_STREAM,
        ),
        **events,
        "reject": message(
            "Reject", "The place of a refused record.", key="TOPIC/OFFSET of the refused record."
        ),
        "command": message(
            "Command",
            f"What an operator asks for; at most {COMMAND_LIMIT:,} bytes.",
            key="The dataset; empty for a command to a shard.",
            headers={
                "type": "object",
                "properties": {
                    HEADER: text(
                        "Who signed, and the signature. Required where the configuration names keys."
                    )
                },
            },
        ),
    }


def _schemas() -> Schema:
    types = list(FIELDS)
    _, found = msgspec.json.schema_components(types, ref_template=_SCHEMAS)
    schemas: Schema = {}
    schemas["Query"] = {
        "type": "object",
        "required": ["id"],
        "properties": {**QUERY, "closed": {**QUERY["closed"], "const": False}},
    }
    # Of a marker only what names the set is read; what else it holds must be of its kind.
    known = {name: QUERY[name] for name in ("series", "monitor", "time")}
    schemas["SetMarker"] = {
        "type": "object",
        "required": ["set", "closed"],
        "properties": {
            "set": {**TEXT, "description": "The set."},
            "closed": {"const": True},
            "id": optional(QUERY["id"]),
            **known,
        },
    }
    schemas |= {_schema_name(kind): _event_schema(kind, event) for kind, event in EVENTS.items()}
    for kind in FIELDS:
        name = "Top" if kind is Alert else kind.__name__
        schemas[name] = _described(kind, found[kind.__name__])
    schemas["Command"]["additionalProperties"] = False
    # Only the command that gives a state up needs neither a state nor a number: its shard can prove none.
    schemas["Command"]["anyOf"] = [
        {
            "required": ["state", "number"],
            "properties": {"state": {"minLength": 1}, "number": {"minimum": 1}},
            "additionalProperties": True,
        },
        {
            "required": ["cluster"],
            "properties": {"action": {"const": "close-application"}, "cluster": {"minLength": 1}},
            "additionalProperties": True,
        },
    ]
    schemas["Action"] = found["Action"]
    return schemas


def _schema_name(kind: EventType) -> str:
    name = message_name(kind)
    return name[0].upper() + name[1:]


def _event_schema(kind: EventType, event: Event) -> Schema:
    """Return the schema of a whole event, CloudEvents attributes included."""
    data = {"$ref": _SCHEMAS.format(name="Top")} if kind is EventType.ALERT else _lifecycle(event)
    properties: Schema = {
        "specversion": {"const": "1.0"},
        "id": text(
            "Function of application, dataset, monitor, run and number: the same event has the same id."
        ),
        "source": {"type": "string", "pattern": "^/stream-svt/", "description": "/stream-svt/APPLICATION"},
        "type": {"const": kind.value},
        "subject": text("DATASET or DATASET/SERIES; of an event about a shard, shard-NUMBER."),
        "time": {
            "type": "string",
            "format": "date-time",
            "description": "When the event was charged, by the service's clock.",
        },
        "datacontenttype": {"const": "application/json"},
        "shard": count("The shard that released it."),
        "sequence": count("Number of the event in its shard, without gaps.", 1),
        "origin": {
            "type": "string",
            "pattern": "^[0-9]+-[0-9a-f]{16}$",
            "description": "The transaction that charged the event: its sequence, and 64 random bits of it.",
        },
        "stateid": {
            "type": "string",
            "pattern": "^[0-9a-f]{32}$" if event.reasons != _ENDS else "^([0-9a-f]{32})?$",
            "description": "Id of the shard's state: what a command has to name.",
        },
        "command": count("Number of the last command that the shard had used up when the event was charged."),
        "data": data,
    }
    required = list(properties)
    if event.is_proved:
        properties["proof"] = {
            "type": "string",
            "pattern": "^[0-9a-f]+-[0-9a-f]{64}$",
            "description": "HMAC-SHA-256 of the event, made with the sealing key: the key's id and the code. "
            "Missing without a sealing key.",
        }
    return {
        "type": "object",
        "description": event.meaning,
        "required": required,
        "properties": properties,
    }


_ENDS: Final = EVENTS[EventType.APPLICATION_CLOSED].reasons
"""A state that was given up may have left no event behind that names it."""


def _lifecycle(event: Event) -> Schema:
    account: Schema = {"$ref": _SCHEMAS.format(name="Account")}
    if event.about == "shard":
        account = {"type": "null"}
    elif "shard" in event.about:
        account = {"oneOf": [account, {"type": "null"}]}
    properties: Schema = {
        "dataset": text("The dataset; empty where the event is about a shard."),
        "monitor": text("The monitor; empty where the event is about none."),
        "run": count("Number of the run; 0 where the event is about none."),
        "reason": {"enum": list(event.reasons)},
        "account": account,
        "detail": {
            "type": "object",
            "properties": {**event.detail, **event.sometimes},
            "required": list(event.detail),
        },
    }
    return {"type": "object", "required": list(properties), "properties": properties}


def _described(kind: type, schema: Schema) -> Schema:
    """Return a type's schema with the words above, and without what msgspec adds for itself.

    Raises
    ------
    KeyError
        A field has no words.
    """
    words = FIELDS[kind]
    fields = {}
    for name, field in schema["properties"].items():
        known = {key: value for key, value in field.items() if key != "default"}
        # Beside a reference other keys are ignored: what is referred to has words of its own.
        fields[name] = known if "$ref" in known else {**known, **words[name]}
    summary = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
    return {
        "type": "object",
        "description": summary,
        "required": schema.get("required", []),
        "properties": fields,
    }
