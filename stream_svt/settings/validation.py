"""Pydantic models checked against a document: each validation error becomes a problem with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError

from stream_svt.settings.document import Document, KeyPath
from stream_svt.settings.messages import did_you_mean, quote

Model = TypeVar("Model", bound=BaseModel)

_EXPLAINED, _ABSENT = "explained", "absent"
"""Types of errors whose message is final; of the second kind, the last key may not stand in the file."""

_MAPPING = "expected a mapping, found {found}"
_WORDS = "expected {expected}, found {found}"
_SAID = {
    "greater_than": "must be greater than {gt}, found {found}",
    "greater_than_equal": "must be at least {ge}, found {found}",
    "less_than": "must be less than {lt}, found {found}",
    "less_than_equal": "must be at most {le}, found {found}",
    "bool_type": "expected true or false, found {found}",
    "string_type": "expected a text, found {found}",
    "list_type": "expected a list, found {found}",
    "tuple_type": "expected a list, found {found}",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "enum": _WORDS,
    "literal_error": _WORDS,
    "too_short": "expected at least {min_length} in the list, found {actual_length}",
    "too_long": "expected at most {max_length} in the list, found {actual_length}",
    "value_error": "{error}",
}
"""Messages by pydantic's type of error."""


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

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401
        """Put this project's messages in the place of pydantic's; here the fields are known."""
        try:
            return handler(value)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        raise ValidationError.from_exception_data(
            cls.__name__, [one for detail in errors for one in _explained(cls, detail)], hide_input=True
        )


def consistent(problems: Callable[[Any], Iterable[tuple[str, str]]]) -> Any:  # noqa: ANN401  as of pydantic
    """Make a check across fields of a method that yields (field, message) pairs; "" stands for the whole model."""

    def check(model: Model) -> Model:
        if found := [*problems(model)]:
            raise several(found)
        return model

    return model_validator(mode="after")(check)


def several(problems: Iterable[tuple[str, str]]) -> ValidationError:
    """Return one error that carries (field, message) pairs found by a check across fields."""
    found = [_error(_ABSENT, tuple(filter(None, name.split("."))), message) for name, message in problems]
    return ValidationError.from_exception_data("several", found, hide_input=True)


def check(document: Document, model: type[Model]) -> Model:
    """Return a document as a model.

    Raises:
        ConfigError: With everything that is wrong with it, and was reported before.
    """
    try:
        found = model.model_validate(document.data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            document.report(_place(document, detail), detail["msg"])
    document.finish()
    return found


def _place(document: Document, detail: ErrorDetails) -> KeyPath:
    """Return the part of a pydantic location that stands in the file, without the tags of unions."""
    place: KeyPath = ()
    for step in detail["loc"]:
        if (*place, step) in document.lines:
            place = (*place, step)
    last = detail["loc"][-1:]
    return place + last if detail["type"] == _ABSENT and place[-1:] != last else place


def _error(kind: str, loc: KeyPath, message: str) -> InitErrorDetails:
    text = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=text, loc=loc, input=None)


def _explained(model: type[Strict], detail: ErrorDetails) -> Iterable[InitErrorDetails]:
    """Yield an error of a model with its final message."""
    kind, loc, context, value = detail["type"], detail["loc"], detail.get("ctx", {}), detail["input"]
    if kind in {_EXPLAINED, _ABSENT}:
        yield _error(kind, loc, detail["msg"])
        return
    if kind == "too_short" and len(value) >= context["min_length"]:
        return  # the invalid items are reported one by one
    fields = {info.alias or name: info for name, info in model.model_fields.items() if name != "kind"}
    if kind == "extra_forbidden":
        hint = did_you_mean(loc[-1], list(fields)) or f"; expected one of {', '.join(fields)}"
        yield _error(_EXPLAINED, loc, f"unknown key{hint}")
    elif kind == "missing":
        text = " ".join((fields[str(loc[-1])].description or "").split())
        yield _error(_ABSENT, loc, f"is required: {re.split(r'(?<=[a-z)])[.:;] ', text)[0]}".rstrip("."))
    else:
        words = re.findall("'([^']+)'", context.get("expected", ""))
        found = {**context, "found": quote(value), "expected": " or ".join(words)}
        message = _SAID[kind].format(**found) if kind in _SAID else f"{detail['msg']}, found {quote(value)}"
        if kind == "string_type" and not isinstance(value, dict | list):
            message += ": put it in quotes"
        yield _error(_EXPLAINED, loc, message + (did_you_mean(value, words) if words else ""))
