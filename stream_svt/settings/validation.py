"""Models of the configuration, whose errors say in this project's words what was found and expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
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

Model = TypeVar("Model", bound=BaseModel)

EXPLAINED, ABSENT = "explained", "absent"
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


def quote(value: object) -> str:
    """Return how a message quotes what stands in the file."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    if isinstance(value, Fraction):  # a decimal where a short one is exact, else the ratio
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
        text = f"{decimal:f}" if Fraction(decimal) == value and abs(decimal.adjusted()) < 20 else text
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"'{text}'" if isinstance(value, str) else text


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, empty where nothing is near."""
    text = str(word).lower()
    words = {one.lower(): one for one in known}
    near = get_close_matches(text, words, n=1, cutoff=0.6)
    near = near or [one for one in words if len(text) > 1 and one.startswith(text)]
    return f"; did you mean '{words[near[0]]}'?" if near else ""


class Strict(BaseModel):
    """A part of the configuration: frozen, without unknown keys; the text below a field describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)  # each description on one line
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
        explained = [one for detail in errors for one in _explained(cls, detail)]
        raise ValidationError.from_exception_data(cls.__name__, explained, hide_input=True)


def consistent(problems: Callable[[Any], Iterable[tuple[str, str]]]) -> Any:  # noqa: ANN401  as of pydantic
    """Make a check across fields of a method that yields (field, message) pairs; "" stands for the whole model."""

    def check(model: Model) -> Model:
        if found := [
            _error(ABSENT, tuple(filter(None, name.split("."))), text) for name, text in problems(model)
        ]:
            raise ValidationError.from_exception_data("several", found, hide_input=True)
        return model

    return model_validator(mode="after")(check)


def _error(kind: str, loc: tuple[str | int, ...], message: str) -> InitErrorDetails:
    text = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=text, loc=loc, input=None)


def _explained(model: type[Strict], detail: ErrorDetails) -> Iterable[InitErrorDetails]:
    """Yield an error of a model with its final message."""
    kind, loc, context, value = detail["type"], detail["loc"], detail.get("ctx", {}), detail["input"]
    fields = {info.alias or name: info for name, info in model.model_fields.items() if name != "kind"}
    if kind in {EXPLAINED, ABSENT}:
        yield _error(kind, loc, detail["msg"])
    elif kind == "too_short" and len(value) >= context["min_length"]:
        return  # the invalid items are reported one by one
    elif kind == "extra_forbidden":
        hint = did_you_mean(loc[-1], fields) or f"; expected one of {', '.join(fields)}"
        yield _error(EXPLAINED, loc, f"unknown key{hint}")
    elif kind == "missing":
        text = " ".join((fields[str(loc[-1])].description or "").split())
        yield _error(ABSENT, loc, f"is required: {re.split(r'(?<=[a-z)])[.:;] ', text)[0]}".rstrip("."))
    else:
        words = re.findall("'([^']+)'", context.get("expected", ""))
        found = {**context, "found": quote(value), "expected": " or ".join(words)}
        message = _SAID[kind].format(**found) if kind in _SAID else f"{detail['msg']}, found {quote(value)}"
        if kind == "string_type" and not isinstance(value, dict | list):
            message += ": put it in quotes"
        yield _error(EXPLAINED, loc, message + (did_you_mean(value, words) if words else ""))
