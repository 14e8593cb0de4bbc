"""Reads YAML text as plain data with line numbers, and validates it by models, with one message per problem.

Scalars follow YAML 1.2: ``off`` and ``2026-01-05`` are texts, ``1e6`` is a number. Numbers with a fraction
become exact decimals. A duplicate key is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, NamedTuple, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from stream_svt import plain_text
from stream_svt.errors import ConfigError, Problem

Model = TypeVar("Model", bound=BaseModel)

EXPLAINED, ABSENT = "explained", "absent"
"""Types of errors with a final message; for ABSENT, the last key of the path may be missing in the file."""

_MAPPING = "expected a mapping, found {found}"
_CHOICE = "expected {expected}, found {found}"
_MESSAGES = {
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
    "enum": _CHOICE,
    "literal_error": _CHOICE,
    "too_short": "expected at least {min_length} in the list, found {actual_length}",
    "too_long": "expected at most {max_length} in the list, found {actual_length}",
    "value_error": "{error}",
}
"""Messages by pydantic's type of error."""


def quote(value: object) -> str:
    """Return a value of the file as a message quotes it: on one line, see `plain_text.escaped`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    if isinstance(value, Fraction):  # a short exact decimal if there is one, else the ratio
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
        text = f"{decimal:f}" if Fraction(decimal) == value and abs(decimal.adjusted()) < 20 else text
    text = plain_text.escaped(text if len(text) <= 40 else f"{text[:37]}...")
    return f"'{text}'" if isinstance(value, str) else text


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, empty if no known word is similar."""
    text = str(word).lower()
    words = {one.lower(): one for one in known}
    near = get_close_matches(text, words, n=1, cutoff=0.6)
    near = near or [one for one in words if len(text) > 1 and one.startswith(text)]
    return f"; did you mean '{words[near[0]]}'?" if near else ""


class Strict(BaseModel):
    """A frozen part of the configuration without unknown keys; the docstring of a field is its description."""

    # A model is built when the first file is read: one schema for all parts, and none in a command that reads no file.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401
        """Replace pydantic's messages with this project's, which use the descriptions of the fields."""
        try:
            return handler(value)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        explained = [one for detail in errors for one in _explained(cls, detail)]
        raise ValidationError.from_exception_data(cls.__name__, explained, hide_input=True)


KeyPath = tuple[str | int, ...]
Found = Iterable[tuple[KeyPath | str, str]]
"""Problems or advice, each with the path of its key, or with the name of a field; "" stands for the whole model."""


def refuse(found: Found) -> None:
    """Raise ValidationError with these problems, if there are any."""
    with together(found):
        pass


@contextmanager
def together(found: Found) -> Iterator[None]:
    """Raise ValidationError with these problems and those of a ValidationError within, if there are any."""
    errors = [_error(ABSENT, path_of(at), text) for at, text in found]
    try:
        yield
    except ValidationError as error:
        errors += [_error(one["type"], one["loc"], one["msg"]) for one in error.errors(include_url=False)]
    if errors:
        raise ValidationError.from_exception_data("several", errors, hide_input=True)


def consistent(problems: Callable[[Any], Found]) -> Any:  # noqa: ANN401  as of pydantic
    """Turn a method that yields problems of the model into a validator."""

    def check(model: Model) -> Model:
        refuse(problems(model))
        return model

    return model_validator(mode="after")(check)


class Used(NamedTuple):
    """Annotation of a key that is used where another key is set, or has some values; it may be required there."""

    key: str
    values: tuple[str, ...] = ()
    required: bool = False


def unused(model: BaseModel) -> Found:
    """Yield keys that are set where they are not `Used`, and keys that are not set where they are required."""
    for name, info in type(model).model_fields.items():
        for rule in (one for one in info.metadata if isinstance(one, Used)):
            value, is_set = getattr(model, rule.key), bool(getattr(model, name))
            is_used = value in rule.values if rule.values else value is not None
            if is_set and not is_used:
                words = f"{rule.key} {' or '.join(rule.values)}".rstrip()
                yield info.alias or name, f"is used with {words} only: remove it, or set that"
            elif rule.required and is_used and not is_set:
                yield (
                    info.alias or name,
                    f"is required with {rule.key} {value if rule.values else ''}".rstrip(),
                )


def path_of(at: KeyPath | str) -> KeyPath:
    """Return the path of a problem; see `Found`."""
    return tuple(filter(None, at.split("."))) if isinstance(at, str) else at


def _error(kind: str, loc: tuple[str | int, ...], message: str) -> InitErrorDetails:
    text = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=text, loc=loc, input=None)


def required(key: FieldInfo) -> str:
    """Return the message about a key that is missing."""
    text = " ".join((key.description or "").split())
    return f"is required: {re.split(r'(?<=[a-z)])[.:;] ', text)[0]}".rstrip(".")


def _explained(model: type[Strict], detail: ErrorDetails) -> Iterable[InitErrorDetails]:
    """Yield an error of a model with its final message."""
    kind, loc, context, value = detail["type"], detail["loc"], detail.get("ctx", {}), detail["input"]
    fields = {info.alias or name: info for name, info in model.model_fields.items() if name != "kind"}
    if kind in {EXPLAINED, ABSENT}:
        yield _error(kind, loc, _with_example(detail["msg"], loc, fields))
    elif kind == "too_short" and len(value) >= context["min_length"]:
        return  # each invalid item is reported by itself
    elif kind == "extra_forbidden":
        hint = did_you_mean(loc[-1], fields) or f"; expected one of {', '.join(fields)}"
        yield _error(EXPLAINED, loc, f"unknown key{hint}")
    elif kind == "missing":
        yield _error(ABSENT, loc, required(fields[str(loc[-1])]))
    else:
        words = re.findall("'([^']+)'", context.get("expected", ""))
        choice = " or ".join(", ".join(words).rsplit(", ", 1))
        found = {**context, "msg": detail["msg"], "found": quote(value), "expected": choice}
        message = _MESSAGES.get(kind, "{msg}, found {found}").format(**found)
        if kind == "string_type" and not isinstance(value, dict | list):
            message += ": put it in quotes"
        message += did_you_mean(value, words) if words else ""
        yield _error(EXPLAINED, loc, _with_example(message, loc, fields))


def _with_example(message: str, loc: KeyPath, fields: Mapping[str, FieldInfo]) -> str:
    """Return a message, with the example in the description of a key that must be a mapping."""
    described = fields[str(loc[0])].description if len(loc) == 1 and loc[0] in fields else None
    example = re.search(r"\{\w+: [^}]*\}", " ".join((described or "").split()))
    begin = _MAPPING.partition(",")[0]
    return message if example is None else message.replace(f"{begin},", f"{begin} such as {example[0]},", 1)


_INTEGER = re.compile(r"[-+]?[0-9]{1,60}", re.ASCII)
_DECIMAL = re.compile(
    r"[-+]?(?:[0-9]{1,60}\.[0-9]{0,60}|\.[0-9]{1,60}|[0-9]{1,60})(?:[eE][-+]?[0-9]{1,2})?", re.ASCII
)
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
ENVIRONMENT = "STREAM_SVT_"
"""Prefix of variables that replace a key of the file, such as ``STREAM_SVT_KAFKA_SESSION_TIMEOUT``."""
_NOT_FROM_ENVIRONMENT = tuple(
    f"{ENVIRONMENT}{name}" for name in ("CONTROL_", "SEALING_ADOPT_PLAIN", "SEALING_KEY_LOST")
)
_OTHER_LINE_END = re.compile("[\x85\u2028\u2029]|\r(?!\n)")
_MAX_NODES = 500_000
_MAX_DEPTH = 40
# libyaml: a file with 300,000 names takes 7.5 s; with ruamel.yaml, which keeps lines itself, it took 70 s.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(slots=True)
class Document:
    """A configuration file's content: dicts, lists, texts, ints, decimals, bools and None.

    ``source`` names the file. ``lines`` has the line of each key and item, 0 for those of ``origins``: values that are
    not in the file, by where they come from.
    """

    data: Any
    source: str
    text: str = ""
    problems: list[Problem] = field(default_factory=list)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def problem(self, at: KeyPath | str, message: str) -> Problem:
        """Return a problem with the line of its path, or of the nearest parent of it."""
        path = parent = path_of(at)
        if path in self.origins:
            message = f"{message} (from {self.origins[path]})"
        while parent not in self.lines and parent:
            parent = parent[:-1]
        return Problem(self.lines.get(parent, 1), path_text(path), message)

    def override(self, environ: Mapping[str, str], sections: Mapping[str, type[Strict]]) -> None:
        """Replace keys of some sections by environment variables, so that several environments share one file.

        Variables that name no key are problems. Keys of other sections can be set in the file only.
        """
        for variable, text in sorted(environ.items()):
            if not variable.startswith(ENVIRONMENT):
                continue
            section, _, key = variable.removeprefix(ENVIRONMENT).lower().partition("_")
            keys = sections[section].model_fields if section in sections else {}
            if variable.startswith(_NOT_FROM_ENVIRONMENT):
                message = "this key can be set in the file only: remove the variable"
                self.problems.append(Problem(0, variable, message))
            elif key in keys:
                given = self.data.get(section)
                self.data[section] = (given if isinstance(given, dict) else {}) | {key: _scalar(text.strip())}
                self.lines |= {(section,): self.lines.get((section,), 0), (section, key): 0}
                self.origins[section, key] = f"environment variable {variable}"
            elif keys:
                message = f"environment variable names no key of {section}{did_you_mean(key, keys)}"
                self.problems.append(Problem(0, variable, message))

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Raise ConfigError with the problems of reading and those of a ValidationError within, if there are any."""
        problems = self.problems
        try:
            yield
        except ValidationError as error:
            problems = [*problems, *map(self._located, error.errors(include_url=False))]
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)), self.source)

    def _located(self, detail: ErrorDetails) -> Problem:
        path: KeyPath = ()  # the steps that are in the file: pydantic adds tags of unions
        for step in detail["loc"]:
            path = (*path, step) if (*path, step) in self.lines else path
        last = detail["loc"][-1:]
        if detail["type"] == ABSENT and path[-1:] != last:
            path += last
        return self.problem(path, detail["msg"])

    def load(self, node: Any, path: KeyPath = ()) -> Any:  # noqa: ANN401
        """Return a YAML node as data, and record its lines; ConfigError if it is too large."""
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if len(self.lines) > _MAX_NODES or len(path) > _MAX_DEPTH:
            problem = Problem(line, "", "too large or too deeply nested: check its aliases")
            raise ConfigError([problem], self.source)
        if not node.tag.startswith("tag:yaml.org,2002:"):
            wrong = f"YAML tags such as {quote(node.tag)} are not supported: remove it"
            self.problems.append(self.problem(path, wrong))
        if isinstance(node, yaml.SequenceNode):
            return [self.load(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else _scalar(node.value)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line, key_path = key_node.start_mark.line + 1, path
            if not isinstance(key_node, yaml.ScalarNode):
                wrong = "a key must be a word, not a list or mapping"
            elif key_node.value == "<<":
                wrong = "merge keys are not supported: write the keys out"
            elif (key_path := (*path, key_node.value)) in self.lines:
                wrong = f"is a duplicate; the key already stands at line {self.lines[key_path]}"
            else:
                self.lines[key_path] = line
                result[key_node.value] = self.load(value_node, key_path)
                continue
            self.problems.append(Problem(line, path_text(key_path), wrong))
        return result


def path_text(path: KeyPath) -> str:
    """Return a path as text, such as monitors[0].bounds."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def read(content: str | bytes, source: str) -> Document:
    """Return the document in a YAML file; ConfigError if it is not YAML in UTF-8 with a mapping at its top."""
    expected = "expected a mapping with the keys application, datasets and monitors"
    first, *others = read_all(content, source, expected)
    if others:
        raise ConfigError([Problem(others[0].lines[()], "", "expected a single document")], source)
    return first


def read_all(
    content: str | bytes, source: str, expected: str = "expected a document that is a mapping"
) -> list[Document]:
    """Return the documents in a YAML file, at least one; ConfigError with what is ``expected`` for another one."""
    try:
        text = content if isinstance(content, str) else plain_text.decoded(content)
    except ValueError as error:
        cause = error.__cause__
        line = cause.object[: cause.start].count(b"\n") + 1 if isinstance(cause, UnicodeDecodeError) else 0
        raise ConfigError([Problem(line, "", f"the file cannot be read: {error}")], source) from None
    if (found := _OTHER_LINE_END.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        wrong = (
            f"has {plain_text.invisible(found[0])}, which ends a line in YAML and not in an editor: remove it"
        )
        raise ConfigError([Problem(line, "", wrong)], source)
    try:
        roots: list[Any] = [*yaml.compose_all(text, Loader=_LOADER)] or [None]
    except (yaml.YAMLError, RecursionError) as error:
        line, hint = _syntax(error)
        raise ConfigError([Problem(line, "", f"not valid YAML: {hint}")], source) from None
    documents: list[Document] = []
    for root in roots:
        if not isinstance(root, yaml.MappingNode):
            line = root.start_mark.line + 1 if root is not None and documents else 1
            raise ConfigError([Problem(line, "", expected)], source)
        documents.append(Document(None, source, text))
        documents[-1].data = documents[-1].load(root)
    return documents


def without(text: str, keys: Collection[str]) -> str:
    """Return a YAML mapping's text without some top-level keys, and without comments and layout."""
    root = yaml.compose(text, Loader=_LOADER)
    if isinstance(root, yaml.MappingNode):
        root.value = [(key, value) for key, value in root.value if key.value not in keys]
    return yaml.serialize(root, Dumper=_DUMPER, allow_unicode=True, width=1_000_000)


_INDENTATION = "the indentation is wrong, or a value continues after its closing quote: quote the whole value"
_HINTS = {
    "mapping values": "a value that contains ': ' needs quotes; otherwise the indentation is wrong",
    "cannot start": "a value that begins with this character needs quotes; indent with spaces, not tabs",
    "end of stream": "a quote opens here and is never closed",
    "simple key": "a key is followed by ':' and a value",
    "','": "a bracket opens here, and a comma or the closing bracket is missing",
    "block end": _INDENTATION,
    "expected key": _INDENTATION,
    "'-' indicator": _INDENTATION,
}
"""Explanations by a part of PyYAML's message."""


def _syntax(error: Exception) -> tuple[int, str]:
    """Return the line where a mistake begins, and an explanation that quotes nothing of the file."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return 0, "nested too deeply" if isinstance(error, RecursionError) else "a character is not allowed"
    context, problem = error.context or "", error.problem or "syntax error"
    begins_earlier = "flow" in context or "quoted" in context or "simple key" in context
    mark = error.context_mark if begins_earlier else error.problem_mark or error.context_mark
    hints = (hint for part, hint in _HINTS.items() if part in f"{context}, {problem}")
    return 0 if mark is None else mark.line + 1, next(hints, problem)


def _scalar(text: str) -> str | int | Decimal | bool | None:
    """Return the value of a plain scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return Decimal(text) if _DECIMAL.fullmatch(text) else text
