"""The tables and examples of messages.md, from what the AsyncAPI document is made of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from docs.generator import example
from docs.generator.asyncapi import EVENTS, WORDS, Schema, document, short_name
from docs.generator.markdown import either, fence, table
from stream_svt.monitor.released import EventType


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
    query = document()["components"]["schemas"]["Query"]
    rows = [
        [f"`{name}`", _kind(schema), "required" if name in query["required"] else "", schema["description"]]
        for name, schema in query["properties"].items()
    ]
    return table(["field", "type", "", "meaning"], rows)


def _alert_fields() -> str:
    """Return the fields of an alert, those of its parts written with a dot."""
    schemas = document()["components"]["schemas"]
    rows = []
    for name, schema in schemas["Top"]["properties"].items():
        if "$ref" in schema:
            inner = schemas[schema["$ref"].rpartition("/")[2]]["properties"]
            rows += [[f"`{name}.{field}`", _kind(one), one["description"]] for field, one in inner.items()]
        else:
            rows.append([f"`{name}`", _kind(schema), schema["description"]])
    return table(["field of `data`", "type", "meaning"], rows)


def _command_fields() -> str:
    schemas = document()["components"]["schemas"]
    action = {**schemas["Action"], "description": "What to do."}
    known = schemas["Command"]["properties"] | {"action": action}
    rows = [[f"`{name}`", _kind(schema), schema["description"]] for name, schema in known.items()]
    return table(["field", "type", "meaning"], rows)


def _event_types() -> str:
    rows = []
    for kind, event in EVENTS.items():
        reasons = ", ".join(f"`{reason}`" for reason in event.get("reasons", ()))
        always, sometimes = event.get("detail", ()), event.get("sometimes", ())
        detail = ", ".join([*(f"`{name}`" for name in always), *(f"[`{name}`]" for name in sometimes)])
        rows.append([f"`{short_name(kind)}`", event["about"], reasons, detail, event["meaning"]])
    return table(["NAME", "about a", "`reason`", "`detail`", "what happened"], rows)


def _reasons(kind: str) -> str:
    words = WORDS["reasons"][kind]
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
    "query-reasons": lambda: _reasons("queries"),
    "example-query": lambda: _shown([example.QUERY]),
    "event-types": _event_types,
    "example-alert": lambda: _shown([example.events()[EventType.ALERT]]),
    "alert-fields": _alert_fields,
    "example-event": lambda: _shown([example.events()[EventType.RUN_STARTED]]),
    "command-fields": _command_fields,
    "command-reasons": lambda: _reasons("commands"),
}
