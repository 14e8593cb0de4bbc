"""The tables of configuration.md, from the JSON Schema that `stream-svt schema` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from docs.generator.markdown import either, paragraphs, table
from stream_svt.settings.environment import ENVIRONMENT
from stream_svt.settings.fields import DURATION_SCHEMA, RATIO_SCHEMA
from stream_svt.settings.sections import SECTIONS, ConfigDocument, json_schema

Schema = Mapping[str, Any]

_DURATION: Final = DURATION_SCHEMA["pattern"]
_RATIO: Final = RATIO_SCHEMA["pattern"]
_DEFAULT: Final = re.compile(r"\s*Default:? (?P<default>.+?)\.?$")
_SPECIAL: Final = {"correction": "[a correction](#corrections)", "append": "[a form](#append)"}
_SECTIONS: Final = {
    "datasets": "DatasetDeclaration",
    "monitors": "MonitorSpec",
    "kafka": "KafkaConfig",
    "topics": "TopicsConfig",
    "sealing": "SealingConfig",
    "control": "ControlConfig",
    "web": "WebConfig",
    "commit": "CommitConfig",
}


def _definitions() -> Schema:
    definitions: Schema = json_schema()["$defs"]
    return definitions


_WITHOUT_SECTION: Final = {"application", "carried_over"}


def _top() -> str:
    required = json_schema()["required"]
    rows = [
        [
            f"`{name}`" if name in _WITHOUT_SECTION else f"[`{name}`](#{name})",
            "required" if name in required else "",
            " ".join((field.description or "").split()),
        ]
        for name, field in ConfigDocument.model_fields.items()
    ]
    return table(["key", "", "what it says"], rows)


def _section(definition: str) -> str:
    definitions = _definitions()
    return keys(definitions[definition], definitions, _SPECIAL)


def keys(schema: Schema, definitions: Schema, special: Mapping[str, str]) -> str:
    """Return the table of a section's keys; ``special`` has the words for values whose schema has none."""
    required = schema.get("required", [])
    rows = []
    for name, key in schema["properties"].items():
        description, default = _split(key["description"])
        rows.append(
            [
                f"`{name}`",
                special.get(name) or in_words(key, definitions),
                "required" if name in required else default,
                description,
            ]
        )
    return table(["key", "written as", "default", "meaning"], rows)


def _options(name: str) -> str:
    """Return the forms of a monitor's `correction` or `append` that take options."""
    rows = []
    for form in _definitions()["MonitorSpec"]["properties"][name]["anyOf"]:
        for word, options in form.get("properties", {}).items():
            for key, schema in options.get("properties", {}).items():
                description, default = _split(schema["description"])
                rows.append([f"`{word}`", f"`{key}`", in_words(schema, _definitions()), default, description])
    return table(["form", "option", "written as", "default", "meaning"], rows)


def _split(description: str) -> tuple[str, str]:
    """Return a description without the sentence that tells the default, and the default."""
    match = _DEFAULT.search(description)
    if match is None:
        return _as_code(description), ""
    return _as_code(description[: match.start()]), _as_code(match["default"])


def in_words(schema: Schema, definitions: Schema) -> str:
    """Return what a value looks like, where ``definitions`` holds what it refers to.

    Raises:
        ValueError: For a schema of a shape that has no words here yet.
    """
    words = list(dict.fromkeys(_each(schema, definitions)))
    return either(words)


def _each(schema: Schema, definitions: Schema) -> Iterator[str]:
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _each(one, definitions)
    elif "$ref" in schema:
        yield from _each(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "enum" in schema:
        yield from (
            f"`{json.dumps(word)}`" if not isinstance(word, str) else f"`{word}`" for word in schema["enum"]
        )
    elif "const" in schema:
        yield f"`{schema['const']}`"
    elif schema.get("type") == "null":
        return
    elif schema.get("type") == "boolean":
        yield from ("`true`", "`false`")
    elif schema.get("type") == "integer":
        yield f"whole number{_range(schema)}"
    elif schema.get("type") == "number" or schema.get("pattern") == _RATIO:
        yield "number"
    elif schema.get("pattern") == _DURATION:
        yield "duration"
    elif schema.get("format") == "date":
        yield "day"
    elif schema.get("type") == "array":
        yield _list(schema, definitions)
    elif schema.get("type") == "object":
        yield from (f"`{{{name}: ..}}`" for name in schema["properties"])
    elif schema.get("type") == "string":
        yield "name" if "pattern" in schema else "text"
    else:
        raise ValueError(f"no words for {schema}")


def _list(schema: Schema, definitions: Schema) -> str:
    if "prefixItems" in schema or "items" not in schema:
        return "`[low, high]`"
    return f"list of {_plural(in_words(schema['items'], definitions))}"


def _plural(words: str) -> str:
    return {"text": "texts", "name": "names", "number": "numbers", "list of texts": "lists of texts"}[words]


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    return "" if low is None else f", at least {low:,}"


def _as_code(description: str) -> str:
    """Set what stands in braces or angles as code, for Markdown has a use for them."""
    return re.sub(r"(?<!`)(\{[^}]*\}|<[a-z]+>[.a-z]*)(?!`)", r"`\1`", description)


def _from_environment() -> str:
    """Return the variables that replace a key: of which sections, the loader says."""
    names = [f"`{ENVIRONMENT}{section.upper()}_`" for section in SECTIONS]
    return paragraphs(f"Variables begin with {either(names)}.")


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "top": _top,
    "environment": _from_environment,
    "correction-options": partial(_options, "correction"),
    "append-options": partial(_options, "append"),
    **{name: partial(_section, definition) for name, definition in _SECTIONS.items()},
}
