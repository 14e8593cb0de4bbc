"""Small pieces of JSON Schema."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def optional(schema: Schema) -> Schema:
    """Return a schema that takes null, too."""
    return {**schema, "type": [schema["type"], "null"]}


def text(description: str) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", "description": description}


def words(description: str, **constraints: float) -> Schema:
    """Return what is said of a field beyond its type."""
    return {"description": description, **constraints}


def count(description: str, least: int = 0) -> Schema:
    """Return the schema of a whole number."""
    return {"type": "integer", "minimum": least, "description": description}
