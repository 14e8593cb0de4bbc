"""The AsyncAPI document of the service's topics: the words of messages.yaml and the types that are written and read."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from stream_svt.application.signatures import HEADER
from stream_svt.mechanisms.noise import MONITORED
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import CONTENT_TYPE, Account, Alert, EventType, NoiseLaw, Position
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.controls import COMMAND_LIMIT, Refusal
from stream_svt.queries.codec import ARROW_STREAM
from stream_svt.queries.columnar import MAX_PARTS, MAX_ROWS, MAX_TEXT_IN_ALL
from stream_svt.queries.json_lines import MAX_NESTING
from stream_svt.queries.reasons import MAX_BYTES, MAX_TEXT, Reason
from stream_svt.worker.ports import Reject

Schema = dict[str, Any]

QUERY_REASONS: Final = [*Reason, "outside-period"]
"""Why a query is refused; the last one by the engine, all others by the decoder."""

_FROM_CODE: Final[Mapping[str, object]] = {
    "ARROW_STREAM": ARROW_STREAM,
    "COMMAND_LIMIT": f"{COMMAND_LIMIT:,}",
    "HEADER": HEADER,
    "MAX_BYTES": f"{MAX_BYTES:,}",
    "MAX_PARTS": f"{MAX_PARTS:,}",
    "MAX_ROWS": f"{MAX_ROWS:,}",
    "MAX_TEXT": MAX_TEXT,
    "MAX_TEXT_IN_ALL": f"{MAX_TEXT_IN_ALL:,}",
    "MAX_NESTING": str(MAX_NESTING),
    "MEASURES": json.dumps([kind.measure for kind in Kind]),
    "NOISE": json.dumps([noise.value for noise in MONITORED]),
    "REASONS": json.dumps([str(reason) for reason in (*QUERY_REASONS, *Refusal)]),
}
WORDS: Final[Schema] = yaml.load(
    re.sub(
        r"\$([A-Z_]+)\b",
        lambda match: str(_FROM_CODE[match[1]]),
        Path(__file__).with_name("messages.yaml").read_text(encoding="utf-8"),
    ),
    yaml.CSafeLoader,
)
EVENTS: Final = {EventType(f"io.stream-svt.{name}.v1"): event for name, event in WORDS["events"].items()}
TYPES: Final = (Alert, Account, Position, NoiseLaw, Reject, Command)


def document() -> Schema:
    """Return the AsyncAPI document."""
    whole: Schema = copy.deepcopy(WORDS["document"])
    messages, schemas = whole["components"]["messages"], whole["components"]["schemas"]
    messages |= {message_name(kind): _event_message(kind, event) for kind, event in EVENTS.items()}
    whole["channels"]["alerts"]["messages"] = {
        message_name(kind): _reference("messages", message_name(kind)) for kind in EVENTS
    }
    for message in messages.values():
        message.setdefault("payload", _reference("schemas", message["title"]))
        key = {"type": "string", "description": message.pop("key")}
        message["bindings"] = {"kafka": {"key": key, "bindingVersion": "0.5.0"}}
    schemas |= {_title(kind): _event_schema(kind, event) for kind, event in EVENTS.items()}
    _, found = msgspec.json.schema_components(TYPES, ref_template="#/components/schemas/{name}")
    for kind in TYPES:
        schemas["Top" if kind is Alert else kind.__name__] = _described(kind, found[kind.__name__])
    schemas["Command"] |= WORDS["command"]
    # Versions of msgspec and Python differ in the indentation of docstrings.
    schemas["Action"] = found["Action"] | {"description": inspect.cleandoc(Action.__doc__ or "")}
    return whole


def document_text() -> str:
    """Return the document as YAML."""
    head = "# Made by docs/generate from docs/generator/messages.yaml and the types in stream_svt. Do not edit.\n"
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
    title = _title(kind)
    return title[0].lower() + title[1:]


def _title(kind: EventType) -> str:
    return "".join(word.capitalize() for word in re.split(r"[.-]", short_name(kind)))


def _reference(place: str, name: str) -> Schema:
    return {"$ref": f"#/components/{place}/{name}"}


def _event_message(kind: EventType, event: Schema) -> Schema:
    key = "The dataset; empty for an event about a shard." if "shard" in event["about"] else "The dataset."
    return {"title": _title(kind), "summary": event["meaning"], "key": key, "contentType": CONTENT_TYPE}


def _event_schema(kind: EventType, event: Schema) -> Schema:
    """Return the schema of a whole event, CloudEvents attributes included."""
    data = _reference("schemas", "Top") if kind is EventType.ALERT else _lifecycle(event)
    properties = {**WORDS["envelope"], "type": {"const": kind.value}, "data": data}
    if kind is EventType.APPLICATION_CLOSED:  # a state that was given up may have left nothing that names it
        properties["stateid"] = {**properties["stateid"], "pattern": "^([0-9a-f]{32})?$"}
    proof = {"proof": WORDS["proof"]} if event.get("is_proved") else {}
    return {
        "type": "object",
        "description": event["meaning"],
        "required": list(properties),
        "properties": properties | proof,
    }


def _lifecycle(event: Schema) -> Schema:
    account = _reference("schemas", "Account")
    if event["about"] == "shard":
        account = {"type": "null"}
    elif "shard" in event["about"]:
        account = {"oneOf": [account, {"type": "null"}]}
    detail = event.get("detail", {})
    properties: Schema = {
        **WORDS["lifecycle"],
        "reason": {"enum": event["reasons"]},
        "account": account,
        "detail": {
            "type": "object",
            "properties": detail | event.get("sometimes", {}),
            "required": list(detail),
        },
    }
    return {"type": "object", "required": list(properties), "properties": properties}


def _described(kind: type, schema: Schema) -> Schema:
    """Return a type's schema with words, and without what msgspec adds for itself.

    Raises:
        KeyError: A field has no description in messages.yaml.
    """
    words = WORDS["fields"][kind.__name__]
    if missing := schema["properties"].keys() - words.keys():
        raise KeyError(
            f"docs/generator/messages.yaml: fields.{kind.__name__} lacks {', '.join(sorted(missing))}"
        )
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
