"""Pydantic models checked against a document: each validation error becomes a problem with its line."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from stream_svt.settings.document import Document, KeyPath
from stream_svt.settings.messages import did_you_mean, quote

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A part of the configuration: frozen, without unknown keys; the text below a field describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema, each description on one line."""
        schema = handler(core)
        for field in handler.resolve_ref_schema(schema).get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
        return schema


def several(problems: list[tuple[str, str]]) -> PydanticCustomError:
    """Return one error that carries (field, message) pairs found by a check across fields."""
    text = "; ".join(f"{name}: {message}" for name, message in problems)
    return PydanticCustomError("several", "{text}", {"text": text, "problems": problems})


def check(document: Document, model: type[Model], path: KeyPath, default: object = None) -> Model | None:
    """Return the part of a document at ``path`` as a model, None after reporting what is wrong."""
    raw: Any = document.data
    for step in path:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            raw = default
            break
    if not isinstance(raw, dict):
        document.report(path, f"expected a mapping of keys to values, found {quote(raw)}")
        return None
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            for place, message in _problems(document, model, path, detail):
                document.report(place, message)
        return None


def _problems(
    document: Document, model: type[BaseModel], prefix: KeyPath, detail: ErrorDetails
) -> list[tuple[KeyPath, str]]:
    """Return what one validation error reports: key and message."""
    place = _written(document, prefix, detail["loc"])
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "several":
        found = []
        for name, message in context["problems"]:
            steps = tuple(name.split(".")) if name else ()
            inner = _written(document, place, steps)
            # A key that the file leaves out is named all the same.
            found.append(((*place, *steps) if inner == place else inner, message))
        return found
    if kind == "extra_forbidden":
        known = _known_keys(model, detail["loc"][:-1])
        hint = did_you_mean(str(detail["loc"][-1]), known) or f"; expected one of {', '.join(known)}"
        return [(place, f"unknown key{hint}")]
    if kind == "too_short" and len(detail["input"]) >= context["min_length"]:
        return []  # the invalid items are reported one by one
    if kind == "missing":
        described = _description(model, detail["loc"])
        return [((*place, str(detail["loc"][-1])), f"is required{described and ': ' + described}")]
    return [(place, _message(kind, context, detail))]


def _written(document: Document, prefix: KeyPath, loc: tuple[str | int, ...]) -> KeyPath:
    """Return the part of a pydantic location that stands in the file, without the tags of unions."""
    place = prefix
    for step in loc:
        if (*place, step) in document.lines:
            place = (*place, step)
    return place


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Return the model whose keys a pydantic location speaks of."""
    candidates: list[type[BaseModel]] = [model]
    for step in loc:
        tagged = [one for one in candidates if _tag(one) == step]
        if len(candidates) > 1 and tagged:
            candidates = tagged
            continue
        inner = [
            found_model
            for one in candidates
            for name, info in one.model_fields.items()
            if step in {name, info.alias}
            for found_model in _models(info.annotation) + [m for meta in info.metadata for m in _models(meta)]
        ]
        candidates = inner or (candidates if isinstance(step, int) else [])
    return candidates[0] if len(candidates) == 1 else None


def _tag(model: type[BaseModel]) -> object:
    info = model.model_fields.get("kind")
    return info.default if info is not None else None


def _known_keys(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    inner = _model_at(model, loc)
    if inner is None:
        return []
    return [info.alias or name for name, info in inner.model_fields.items() if name != "kind"]


def _description(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    inner = _model_at(model, loc[:-1])
    if inner is None:
        return ""
    for name, info in inner.model_fields.items():
        if loc[-1] in {name, info.alias} and info.description:
            return re.split(r"(?<=[a-z)])[.:;] ", " ".join(info.description.split()))[0].rstrip(".")
    return ""


def _message(kind: str, context: dict[str, Any], detail: ErrorDetails) -> str:
    value = detail["input"]
    if kind == "value_error":
        return str(context["error"])
    if kind in {"greater_than_equal", "less_than_equal"}:
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"must be {bound}, found {quote(value)}"
    expected = {
        "bool_type": "true or false",
        "string_type": "a text",
        "list_type": "a list",
        "tuple_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
    }.get(kind)
    if expected is not None:
        quotes = ": put it in quotes" if kind == "string_type" and not isinstance(value, dict | list) else ""
        return f"expected {expected}, found {quote(value)}{quotes}"
    if kind in {"too_short", "too_long"}:
        bound = (
            f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        )
        return f"expected {bound} in the list, found {context['actual_length']}"
    return f"{detail['msg']}, found {quote(value)}"
