"""The lists and examples of messages.md, from what the AsyncAPI document is made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from docs.generator import example
from docs.generator.asyncapi import EVENTS, WORDS, Schema, document, short_name
from docs.generator.markdown import either, fence, listed
from stream_svt.monitor.released import EventType


def _topics() -> str:
    whole = document()
    directions = {
        operation["channel"]["$ref"].rpartition("/")[2]: operation["action"]
        for operation in whole["operations"].values()
    }
    return listed(
        (channel["address"], "read" if directions[name] == "receive" else "written", channel["description"])
        for name, channel in whole["channels"].items()
    )


def _fields(schema: str) -> str:
    """Return the fields of a type, those of its parts written with a dot."""
    schemas = document()["components"]["schemas"]
    rows = []
    for name, field in schemas[schema]["properties"].items():
        inner = schemas[field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
        if "properties" in inner:
            rows += [
                (f"{name}.{key}", _kind(one), one["description"]) for key, one in inner["properties"].items()
            ]
        else:
            needed = ", required" if schema == "Query" and name in schemas[schema]["required"] else ""
            rows.append((name, _kind(inner or field) + needed, field.get("description", "What to do.")))
    return listed(rows)


def _event_types() -> str:
    rows = []
    for kind, event in EVENTS.items():
        about = [f"about a {event['about']}"]
        if reasons := event.get("reasons", ()):
            about.append(f"reason {either([f'`{reason}`' for reason in reasons])}")
        always, sometimes = event.get("detail", ()), event.get("sometimes", ())
        if detail := [*(f"`{name}`" for name in always), *(f"[`{name}`]" for name in sometimes)]:
            about.append(f"detail {', '.join(detail)}")
        rows.append((short_name(kind), "; ".join(about), event["meaning"]))
    return listed(rows)


def _reasons(kind: str) -> str:
    return listed((reason, "", meaning) for reason, meaning in WORDS["reasons"][kind].items())


def _kind(schema: Schema) -> str:
    """Return the JSON types that a field may have."""
    if "enum" in schema:
        return either([f"`{word}`" for word in schema["enum"]])
    if "anyOf" in schema:
        return either([_kind(one) for one in schema["anyOf"]])
    kinds = schema.get("type", "anything")
    return either(kinds if isinstance(kinds, list) else [kinds])


def _shown(kind: EventType) -> str:
    return fence("json", json.dumps(example.events()[kind], indent=2))


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "topics": _topics,
    "query-fields": partial(_fields, "Query"),
    "query-reasons": partial(_reasons, "queries"),
    "event-types": _event_types,
    "example-alert": partial(_shown, EventType.ALERT),
    "alert-fields": partial(_fields, "Top"),
    "command-fields": partial(_fields, "Command"),
    "command-reasons": partial(_reasons, "commands"),
}
