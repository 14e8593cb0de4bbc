"""The lists and examples of messages.md, from what the AsyncAPI document is made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
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
            rows.append((name, _kind(inner or field), field.get("description", "What to do.")))
    return listed(rows)


def _event_types() -> str:
    """Return the events by what they are about, each with its reasons and what its detail holds."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for kind, event in EVENTS.items():
        detail = [f"`{name}`" for name in event.get("detail", ())]
        detail += [f"[`{name}`]" for name in event.get("sometimes", ())]
        reasons = either([f"`{reason}`" for reason in event.get("reasons", ())] or [""])
        row = (short_name(kind), "; ".join(filter(None, [reasons, ", ".join(detail)])), event["meaning"])
        found.setdefault(event["about"], []).append(row)
    return "\n\n".join(f"About a {about}:\n\n{listed(rows)}" for about, rows in found.items())


def _reasons(kind: str) -> str:
    return listed((reason, "", meaning) for reason, meaning in WORDS["reasons"][kind].items())


def _kind(schema: Schema) -> str:
    """Return what is not plain of a field's type: several types, or certain words."""
    forms = schema.get("anyOf", [schema] if "enum" in schema else [])
    if forms:
        kinds = ([f"`{word}`" for word in one["enum"]] if "enum" in one else [one["type"]] for one in forms)
        return either([*chain.from_iterable(kinds)])
    types = schema.get("type", "anything")
    return either(types) if isinstance(types, list) else ""


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
