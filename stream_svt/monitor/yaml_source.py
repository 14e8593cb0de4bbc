"""YAML text to plain data that remembers its lines, and validation errors to problems that name them.

Scalars follow YAML 1.2: ``off`` and ``2026-01-05`` are texts, ``1e6`` is a number. Numbers with a fraction
become exact decimals of their text. A key written twice is an error, for one of the two values would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from stream_svt.errors import ConfigError, Problem
from stream_svt.monitor.quantities import did_you_mean, found

Path = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_INTEGER = re.compile(r"[-+]?[0-9]{1,60}", re.ASCII)
_DECIMAL = re.compile(
    r"[-+]?(?:[0-9]{1,60}\.[0-9]{0,60}|\.[0-9]{1,60}|[0-9]{1,60})(?:[eE][-+]?[0-9]{1,2})?", re.ASCII
)
_MAX_NODES = 500_000
_MAX_DEPTH = 40


class Strict(BaseModel):
    """A part of the configuration: frozen, without unknown keys, its defaults written as in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(slots=True)
class Document:
    """A configuration file's content.

    Attributes
    ----------
    data
        Nested dicts, lists, texts, ints, decimals, bools and None.
    source
        Name of the file, for messages.
    problems
        Everything found wrong so far; `finish` raises them together.
    lines
        Line of each key and item, from 1; 0 for what does not stand in the file.
    origins
        Where a value that does not stand in the file came from.
    """

    data: Any
    source: str
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """Return the line of what stands at ``path``, or of the nearest thing around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)

    def report(self, path: Path, message: str) -> None:
        """Add a problem."""
        if path in self.origins:
            message = f"{message} (from {self.origins[path]})"
        self.problems.append(Problem(self.line(path), path_text(path), message))

    def put(self, path: Path, text: str, origin: str) -> None:
        """Set the value at ``path`` to a scalar written outside of the file, as YAML would read it."""
        *parents, key = path
        place: Any = self.data
        for step in parents:
            inner = place.get(step)
            place[step] = inner if isinstance(inner, dict) else {}
            place = place[step]
        place[key] = _scalar(text.strip(), plain=True)
        self.lines[path] = 0
        self.origins[path] = origin

    def finish(self) -> None:
        """Raise everything reported so far.

        Raises
        ------
        ConfigError
            There was a problem.
        """
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)), self.source)

    def check(self, model: type[Model], path: Path, default: object = None) -> Model | None:
        """Return the part of the document at ``path`` as a model; report what is wrong and return None."""
        raw: Any = self.data
        for step in path:
            try:
                raw = raw[step]
            except (KeyError, IndexError, TypeError):
                raw = default
                break
        if not isinstance(raw, dict):
            self.report(path, f"expected a mapping of keys to values, found {found(raw)}")
            return None
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                self._report_detail(model, path, detail)
            return None

    def _report_detail(self, model: type[BaseModel], prefix: Path, detail: ErrorDetails) -> None:
        place = self._written(prefix, detail["loc"])
        kind, context = detail["type"], detail.get("ctx", {})
        if kind == "several":
            for name, message in context["problems"]:
                steps = tuple(name.split(".")) if name else ()
                inner = self._written(place, steps)
                # The name of a key that is not written is still worth showing.
                self.report((*place, *steps) if inner == place else inner, message)
        elif kind == "extra_forbidden":
            known = _known_keys(model, detail["loc"][:-1])
            key = str(detail["loc"][-1])
            hint = did_you_mean(key, known) or f"; expected one of {', '.join(known)}"
            self.report(place, f"unknown key{hint}")
        elif kind == "too_short" and len(detail["input"]) >= context["min_length"]:
            pass  # there are enough, and what is wrong with them is reported by itself
        elif kind == "missing":
            described = _description(model, detail["loc"])
            self.report((*place, str(detail["loc"][-1])), f"is required{described and ': ' + described}")
        else:
            self.report(place, _message(kind, context, detail))

    def _written(self, prefix: Path, loc: tuple[str | int, ...]) -> Path:
        """Return the part of a pydantic location that stands in the file, without the tags of unions."""
        place = prefix
        for step in loc:
            if (*place, step) in self.lines:
                place = (*place, step)
        return place


def several(problems: list[tuple[str, str]]) -> PydanticCustomError:
    """Return one error that carries (field, message) pairs found by a check across fields."""
    text = "; ".join(f"{name}: {message}" for name, message in problems)
    return PydanticCustomError("several", "{text}", {"text": text, "problems": problems})


def path_text(path: Path) -> str:
    """Return a path as people write it: monitors[0].bounds."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def read(text: str | bytes, source: str) -> Document:
    """Return the document in a YAML text.

    Raises
    ------
    ConfigError
        The text is not YAML, not UTF-8, or not a mapping at its top.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        root = yaml.compose(decoded, Loader=loader)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(line, "", "the file is not UTF-8 text")], source) from None
    except yaml.MarkedYAMLError as error:
        line, message = _syntax(decoded, error, loader)
        raise ConfigError([Problem(line, "", f"not valid YAML: {message}")], source) from None
    except (yaml.YAMLError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else "a character is not allowed"
        raise ConfigError([Problem(0, "", f"not valid YAML: {detail}")], source) from None
    document = Document(None, source)
    if not isinstance(root, yaml.MappingNode):
        message = "expected a mapping with the keys application, datasets and monitors"
        raise ConfigError([Problem(1, "", message)], source)
    reader = _Reader(document)
    document.lines[()] = root.start_mark.line + 1
    document.data = reader.value(root, ())
    return document


def without(text: str, keys: Collection[str]) -> str:
    """Return a YAML mapping's text without some of its top-level keys, each with the comments right above it.

    Returns the whole text where a part of it does not say the same by itself: in flow style, or with an alias of what
    stands in a key that goes.
    """
    rows = text.splitlines(keepends=True)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    starts = [(key.start_mark.line, key.value) for key, _ in pairs]
    kept: list[str] = []
    for (start, key), (end, _) in zip(starts, [*starts[1:], (len(rows), "")], strict=True):
        if key not in keys:
            kept += rows[_above(rows, start) : _above(rows, end)]
    found = "".join([*rows[: _above(rows, starts[0][0])], *kept]) if starts else text
    try:
        left = read(found, "")
    except ConfigError:
        return text
    whole = read(text, "").data
    return found if left.data == {key: whole[key] for key in whole if key not in keys} else text


def _above(rows: list[str], start: int) -> int:
    """Return the row at which the comments right above a row begin."""
    while start and start < len(rows) and rows[start - 1].startswith("#"):
        start -= 1
    return start


def _syntax(text: str, error: yaml.MarkedYAMLError, loader: Any) -> tuple[int, str]:  # noqa: ANN401
    """Return the line to look at and what is wrong there: where a mistake begins, not where reading failed."""
    context, problem = error.context or "", error.problem or "syntax error"
    mark, begun = error.problem_mark or error.context_mark, error.context_mark
    if mark is None:
        return 0, problem
    line = mark.line + 1
    rows = text.split("\n")
    row = rows[mark.line] if mark.line < len(rows) else ""
    before, here = row[: mark.column], row[mark.column : mark.column + 1]
    if begun is not None and "quoted scalar" in context and "end of stream" in problem:
        return begun.line + 1, "a quote is opened here and never closed"
    if begun is not None and "flow" in context:
        there = f"line {line}" if line > begun.line + 1 else "what follows"
        opened, closed = ("{", "}") if "mapping" in context else ("[", "]")
        return begun.line + 1, f"{opened!r} is opened here; ',' or {closed!r} is missing before {there}"
    if begun is not None and "simple key" in context:
        return begun.line + 1, "a key is followed by ':' and a value"
    if here == "\t" or "tab character" in problem:
        return line, "indented with a tab: use spaces"
    if "cannot start" in problem:
        return line, f"a value cannot begin with {here!r}: put it in quotes"
    colon = problem.startswith("mapping values")
    if not before.strip() or (colon and ":" not in before):
        belongs = _around(rows[: mark.line], _indent(row))
        if belongs:
            return line, f"is not indented like the rest of the entry at line {belongs}, to which it belongs"
    elif "block" in context:
        opened_at = _long_quote(text, mark.index, loader)
        if opened_at:
            return opened_at, f"a quote is opened here and closed only at line {line}"
        # What follows is not repeated: an address in the file may be a secret.
        return line, "more follows behind the end of a value: put all of it in quotes"
    elif colon:
        return line, "a value holds ': ': put it in quotes"
    return line, ", ".join(part for part in (context, problem) if part)


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _around(rows: list[str], indent: int) -> int:
    """Return the line, from 1, of the last row that is indented less than ``indent``; 0 where there is none."""
    for number in range(len(rows), 0, -1):
        words = rows[number - 1].strip()
        if words and not words.startswith("#") and _indent(rows[number - 1]) < indent:
            return number
    return 0


def _long_quote(text: str, end: int, loader: Any) -> int:  # noqa: ANN401
    """Return the line, from 1, at which a quote was opened that goes over lines and ends last before ``end``."""
    opened = 0
    try:
        for token in yaml.scan(text, Loader=loader):
            if token.start_mark.index >= end:
                break
            if isinstance(token, yaml.ScalarToken):
                over_lines = token.style in {"'", '"'} and token.start_mark.line < token.end_mark.line
                opened = token.start_mark.line + 1 if over_lines else 0
    except yaml.YAMLError:
        pass  # it is being explained
    return opened


class _Reader:
    """Turns nodes into data, noting lines."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def value(self, node: Any, path: Path) -> Any:  # noqa: ANN401
        self._nodes += 1
        if self._nodes > _MAX_NODES or len(path) > _MAX_DEPTH:
            problem = Problem(
                node.start_mark.line + 1, "", "too large or too deeply nested: check its aliases"
            )
            raise ConfigError([problem], self._document.source)
        if not node.tag.startswith("tag:yaml.org,2002:"):
            self._document.report(path, f"YAML tags such as {found(node.tag)} are not supported: remove it")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                place = (*path, index)
                self._document.lines[place] = item.start_mark.line + 1
                items.append(self.value(item, place))
            return items
        return _scalar(node.value, plain=not node.style)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._document.problems.append(Problem(line, path_text(path), "a key must be a plain word"))
                continue
            key = key_node.value
            if key == "<<":
                self._document.problems.append(Problem(line, path_text(path), "merge keys are not supported"))
                continue
            place = (*path, key)
            if key in result:
                first = self._document.lines[place]
                self._document.problems.append(
                    Problem(line, path_text(place), f"is written twice; it already stands at line {first}")
                )
                continue
            self._document.lines[place] = line
            result[key] = self.value(value_node, place)
        return result


def _scalar(text: str, *, plain: bool) -> str | int | Decimal | bool | None:
    if not plain:
        return text
    if text in {"", "~", "null", "Null", "NULL"}:
        return None
    if text in {"true", "True", "TRUE"}:
        return True
    if text in {"false", "False", "FALSE"}:
        return False
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Decimal(text)
    return text


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
            return re.split(r"(?<=[a-z)])[.:;] ", info.description)[0].rstrip(".")
    return ""


def _message(kind: str, context: dict[str, Any], detail: ErrorDetails) -> str:
    value = detail["input"]
    if kind == "value_error":
        return str(context["error"])
    if kind in {"greater_than_equal", "less_than_equal"}:
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"must be {bound}, found {found(value)}"
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
        return f"expected {expected}, found {found(value)}{quotes}"
    if kind in {"too_short", "too_long"}:
        bound = (
            f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        )
        return f"expected {bound} in the list, found {context['actual_length']}"
    return f"{detail['msg']}, found {found(value)}"
