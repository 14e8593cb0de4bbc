"""The keys of configuration.md and forwarding.md, from the JSON Schemas that the commands print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from docs.generator.markdown import either, listed, paragraphs
from stream_svt.forward.config import json_schema as forward_schema
from stream_svt.settings.document import ENVIRONMENT
from stream_svt.settings.fields import DURATION_SCHEMA, RATIO_SCHEMA
from stream_svt.settings.sections import SECTIONS, json_schema

Schema = Mapping[str, Any]

_SPECIAL: Final = {
    "correction": "[a correction](#corrections)",
    "append": "[a form](#append)",
    "maintenance": "list of intervals and times of the week",
    "record": "[a layout](#topics-that-exist-already)",
}
_SOURCE_PARTS: Final = {
    "answers": ("mapping", "AnswersSpec"),
    "answers.dataset": ("text or mapping", "DatasetOfAnswer"),
    "dataset": ("text or mapping", "DatasetOfEvent"),
    "measures": ("list of mappings", "MeasureSpec"),
    "series": ("mapping", "SeriesSpec"),
    "time": ("mapping", "TimeOfEvent"),
}
"""Keys of a source that hold further keys: the words for them, and the model."""
_QUESTION_PARTS: Final = {
    "excess": ("mapping", "ExcessOptions"),
    "excess.visits": ("mapping", "VisitOptions"),
    "for": ("number or mapping", "ForOptions"),
    "share": ("mapping", "ShareOptions"),
    "detect": ("mapping", "DetectOptions"),
    "end": ("mapping", "EndOptions"),
    "usual": ("mapping", "UsualOptions"),
}
"""The same of a monitor."""
_FORWARD_SPECIAL: Final = {
    "alertmanager": "[section](#alertmanager)",
    "destinations": "list of [destinations](#destinations)",
    "kafka": "[as for the service](configuration.md#kafka)",
    "labels": "mapping of names to texts",
    "retry": "[section](#when-a-receiver-fails)",
    "url": "address",
    "urls": "list of addresses",
    "web": "`{host: .., port: ..}`",
    "webhook": "[section](#webhook)",
}
_SECTIONS: Final = {
    "datasets": "DatasetDeclaration",
    "monitors": "MonitorSpec",
    "record": "RecordLayout",
    "kafka": "KafkaConfig",
    "topics": "TopicsConfig",
    "sealing": "SealingConfig",
    "control": "ControlConfig",
    "schema_registry": "SchemaRegistryConfig",
    "web": "WebConfig",
    "commit": "CommitConfig",
}
_FORWARD_SECTIONS: Final = {
    "forward-destinations": "DestinationConfig",
    "forward-alertmanager": "AlertmanagerConfig",
    "forward-webhook": "WebhookConfig",
    "forward-retry": "RetryConfig",
}


def _top() -> str:
    """Return the keys that have no section of their own."""
    whole = json_schema()
    own = {name: key for name, key in whole["properties"].items() if name not in {*_SECTIONS, "sources"}}
    return keys({**whole, "properties": own}, whole["$defs"], _SPECIAL)


def _section(definition: str) -> str:
    parts = {"SourceSpec": _SOURCE_PARTS, "MonitorSpec": _QUESTION_PARTS}.get(definition, {})
    return "\n".join(_nested(definition, "", json_schema()["$defs"], parts))


def _nested(
    part: str, place: str, definitions: Mapping[str, Schema], parts: Mapping[str, tuple[str, str]]
) -> Iterator[str]:
    """Yield the keys of a part, which is found at ``place``, such as "series.", each followed by the keys inside it."""
    kinds = {name[len(place) :]: kind for name, (kind, _) in parts.items() if name.startswith(place)}
    for line in keys(definitions[part], definitions, _SPECIAL | kinds).splitlines():
        name = place + line.split("`")[1]
        yield f"- `{place}{line.removeprefix('- `')}"
        if name in parts:
            yield from _nested(parts[name][1], f"{name}.", definitions, parts)


def _forward(definition: str = "") -> str:
    whole = forward_schema()
    schema = whole["$defs"][definition] if definition else whole
    return keys(schema, whole["$defs"], _FORWARD_SPECIAL)


def keys(schema: Schema, definitions: Schema, special: Mapping[str, str] | None = None) -> str:
    """Return the list of a section's keys; ``special`` has the words for values whose schema has none."""
    rows = []
    for name, key in schema["properties"].items():
        kind = (special or {}).get(name) or in_words(key, definitions)
        needed = ", required" if name in schema.get("required", ()) else ""
        rows.append((name, kind + needed, _as_code(key["description"])))
    return listed(rows)


def _options(name: str) -> str:
    """Return the options of a monitor's `correction` or `append`."""
    definitions = json_schema()["$defs"]
    forms = definitions["MonitorSpec"]["properties"][name]["anyOf"]
    return "\n".join(
        listed(
            (f"{word}.{key}", in_words(one, definitions), _as_code(one["description"])) for key, one in found
        )
        for form in forms
        for word, options in form.get("properties", {}).items()
        if (found := options.get("properties", {}).items())
    )


def in_words(schema: Schema, definitions: Schema) -> str:
    """Return what a value looks like, where ``definitions`` holds what it refers to.

    Raises:
        ValueError: For a schema of a shape that has no words here yet.
    """
    return either(list(dict.fromkeys(_each(schema, definitions))))


def _each(schema: Schema, definitions: Schema) -> Iterator[str]:
    pattern = schema.get("pattern")
    match schema:
        case {"anyOf": parts} | {"oneOf": parts}:
            for part in parts:
                yield from _each(part, definitions)
        case {"$ref": place}:
            yield from _each(definitions[place.rpartition("/")[2]], definitions)
        case {"enum": words}:
            yield from (f"`{word if isinstance(word, str) else json.dumps(word)}`" for word in words)
        case {"const": word}:
            yield f"`{word}`"
        case {"type": "null"}:
            return
        case {"type": "boolean" | "object" as kind} if "properties" not in schema:
            yield "mapping" if kind == "object" else kind
        case {"type": "integer"}:
            yield _range(schema)
        case _ if schema.get("type") == "number" or pattern == RATIO_SCHEMA["pattern"]:
            yield "number"
        case _ if pattern == DURATION_SCHEMA["pattern"]:
            yield "duration"
        case {"format": "date"}:
            yield "day"
        case {"type": "array"}:
            yield _list(schema, definitions)
        case {"type": "object", "properties": properties}:
            yield f"`{{{', '.join(f'{name}: ..' for name in properties)}}}`"
        case {"type": "string" | ["string", *_]}:
            such = "".join(f" such as `{example}`" for example in schema.get("examples", ()))
            yield f"text{such}" if such or not pattern else "name"
        case _:
            raise ValueError(f"no words for {schema}")


def _list(schema: Schema, definitions: Schema) -> str:
    if "prefixItems" in schema or "items" not in schema:
        return "`[low, high]`"
    each = (one.partition(" ") for one in in_words(schema["items"], definitions).split(" or "))
    return "list of " + " or ".join(f"{first}s{space}{rest}" for first, space, rest in each)


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{low:,} to {high:,}" if high is not None else f"at least {low:,}"


def _as_code(description: str) -> str:
    """Set what stands in braces or angles as code; that there is no default goes without saying."""
    line = re.sub(r" Default:? none\.$", "", " ".join(description.split()))
    return re.sub(r"(?<!`)(\{(?:[^{}]|\{[^}]*\})*\}|<[a-z]+>(?:\.[a-zA-Z]+)*)(?!`)", r"`\1`", line)


def _from_environment() -> str:
    """Return the variables that replace a key: of which sections, the loader says."""
    names = [f"`{ENVIRONMENT}{section.upper()}_`" for section in SECTIONS]
    return paragraphs(f"Variables begin with {either(names)}.")


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "top": _top,
    "sources": partial(_section, "SourceSpec"),
    "environment": _from_environment,
    "correction-options": partial(_options, "correction"),
    "append-options": partial(_options, "append"),
    **{name: partial(_section, definition) for name, definition in _SECTIONS.items()},
}
FORWARD_BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "forward-top": _forward,
    **{name: partial(_forward, definition) for name, definition in _FORWARD_SECTIONS.items()},
}
