"""The tables and examples of messages.md, from what the AsyncAPI document is made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from docs.generator import example
from docs.generator.asyncapi import document, short_name
from docs.generator.events import EVENTS
from docs.generator.fields import FIELDS, QUERY
from docs.generator.markdown import either, fence, table
from docs.generator.reasons import COMMANDS, QUERIES
from docs.generator.schema import Schema
from stream_svt.monitor.commands import Command
from stream_svt.monitor.released import Account, Alert, EventType, NoiseLaw, Position

_REQUIRED: Final = {"id"}


def _topics() -> str:
    whole = document()
    directions = {
        operation["channel"]["$ref"].rpartition("/")[2]: operation["action"]
        for operation in whole["operations"].values()
    }
    rows = [
        [
            f"`{channel['address']}`",
            "reads" if directions[name] == "receive" else "writes",
            channel["description"],
        ]
        for name, channel in whole["channels"].items()
    ]
    return table(["topic", "the service", "what stands there"], rows)


def _query_fields() -> str:
    rows = [
        [f"`{name}`", _kind(schema), "required" if name in _REQUIRED else "", schema["description"]]
        for name, schema in QUERY.items()
    ]
    return table(["field", "type", "", "meaning"], rows)


def _alert_fields() -> str:
    """Return the fields of an alert, those of its parts written with a dot."""
    schemas = document()["components"]["schemas"]
    parts = {"position": Position, "account": Account, "threshold_noise": NoiseLaw, "query_noise": NoiseLaw}
    rows = []
    for name in FIELDS[Alert]:
        if name in parts:
            inner = schemas[parts[name].__name__]["properties"]
            rows += [
                [f"`{name}.{field}`", _kind(schema), schema["description"]] for field, schema in inner.items()
            ]
        else:
            schema = schemas["Top"]["properties"][name]
            rows.append([f"`{name}`", _kind(schema), schema["description"]])
    return table(["field of `data`", "type", "meaning"], rows)


def _command_fields() -> str:
    properties = document()["components"]["schemas"]["Command"]["properties"]
    action = document()["components"]["schemas"]["Action"]
    known = {**properties, "action": {**action, "description": "What to do."}}
    rows = [[f"`{name}`", _kind(known[name]), known[name]["description"]] for name in FIELDS[Command]]
    return table(["field", "type", "meaning"], rows)


def _event_types() -> str:
    rows = []
    for kind, event in EVENTS.items():
        reasons = ", ".join(f"`{reason}`" for reason in event.reasons)
        detail = ", ".join(
            [*(f"`{name}`" for name in event.detail), *(f"[`{name}`]" for name in event.sometimes)]
        )
        rows.append([f"`{short_name(kind)}`", event.about, reasons, detail, event.meaning])
    return table(["NAME", "about a", "`reason`", "`detail`", "what happened"], rows)


def _reasons(words: Mapping[str, str]) -> str:
    return table(["reason", "meaning"], [[f"`{reason}`", meaning] for reason, meaning in words.items()])


def _kind(schema: Schema) -> str:
    """Return the JSON types that a field may have."""
    if "enum" in schema:
        return either([f"`{word}`" for word in schema["enum"]])
    if "anyOf" in schema:
        return either([_kind(one) for one in schema["anyOf"]])
    kinds = schema.get("type", "anything")
    return either(kinds if isinstance(kinds, list) else [kinds])


def _shown(documents: Iterable[object]) -> str:
    return "\n\n".join(fence("json", json.dumps(one, indent=2)) for one in documents)


BLOCKS: Final = {
    "topics": _topics,
    "query-fields": _query_fields,
    "query-reasons": lambda: _reasons(QUERIES),
    "example-query": lambda: _shown([example.QUERY]),
    "event-types": _event_types,
    "example-alert": lambda: _shown([example.events()[EventType.ALERT]]),
    "alert-fields": _alert_fields,
    "example-event": lambda: _shown([example.events()[EventType.RUN_STARTED]]),
    "command-fields": _command_fields,
    "command-reasons": lambda: _reasons(COMMANDS),
}
