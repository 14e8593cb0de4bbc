"""YAML text as plain data that remembers its lines.

Scalars follow YAML 1.2: ``off`` and ``2026-01-05`` are texts, ``1e6`` is a number. Numbers with a fraction
become exact decimals of their text. A key written twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import yaml

from stream_svt.errors import ConfigError, Problem
from stream_svt.settings.messages import quote

KeyPath = tuple[str | int, ...]


_INTEGER = re.compile(r"[-+]?[0-9]{1,60}", re.ASCII)
_DECIMAL = re.compile(
    r"[-+]?(?:[0-9]{1,60}\.[0-9]{0,60}|\.[0-9]{1,60}|[0-9]{1,60})(?:[eE][-+]?[0-9]{1,2})?", re.ASCII
)


_MAX_NODES = 500_000
_MAX_DEPTH = 40
_WIDTH = 1_000_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(slots=True)
class Document:
    """A configuration file's content.

    Attributes:
        data: Nested dicts, lists, texts, ints, decimals, bools and None.
        source: Name of the file, for messages.
        problems: Everything found wrong so far; `finish` raises them together.
        lines: Line of each key and item, from 1; 0 for what does not stand in the file.
        origins: Where a value that does not stand in the file came from.
    """

    data: Any
    source: str
    problems: list[Problem] = field(default_factory=list)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int:
        """Return the line of what stands at ``path``, or of the nearest thing around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)

    def report(self, path: KeyPath, message: str) -> None:
        """Add a problem."""
        if path in self.origins:
            message = f"{message} (from {self.origins[path]})"
        self.problems.append(Problem(self.line(path), path_text(path), message))

    def put(self, path: KeyPath, text: str, origin: str) -> None:
        """Set the value at ``path`` to a scalar written outside of the file, as YAML would read it."""
        *parents, key = path
        place: Any = self.data
        for step in parents:
            inner = place.get(step)
            place[step] = inner if isinstance(inner, dict) else {}
            place = place[step]
            self.lines.setdefault(path[: path.index(step) + 1], 0)
        place[key] = _scalar(text.strip(), plain=True)
        self.lines[path] = 0
        self.origins[path] = origin

    def finish(self) -> None:
        """Raise everything reported so far.

        Raises:
            ConfigError: There was a problem.
        """
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)), self.source)


def path_text(path: KeyPath) -> str:
    """Return a path as people write it: monitors[0].bounds."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def read(text: str | bytes, source: str) -> Document:
    """Return the document in a YAML text.

    Raises:
        ConfigError: The text is not YAML, not UTF-8, or not a mapping at its top.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        root = yaml.compose(decoded, Loader=_LOADER)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(line, "", "the file is not UTF-8 text")], source) from None
    except yaml.MarkedYAMLError as error:
        line, message = _syntax(error)
        raise ConfigError([Problem(line, "", f"not valid YAML: {message}")], source) from None
    except (yaml.YAMLError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else "a character is not allowed"
        raise ConfigError([Problem(0, "", f"not valid YAML: {detail}")], source) from None
    if not isinstance(root, yaml.MappingNode):
        message = "expected a mapping with the keys application, datasets and monitors"
        raise ConfigError([Problem(1, "", message)], source)
    document = Document(None, source)
    document.data = _Reader(document).value(root, ())
    return document


def without(text: str, keys: Collection[str]) -> str:
    """Return a YAML mapping's text without some of its top-level keys; comments and layout go, too."""
    root = yaml.compose(text, Loader=_LOADER)
    if isinstance(root, yaml.MappingNode):
        root.value = [(key, value) for key, value in root.value if key.value not in keys]
    return yaml.serialize(root, Dumper=_DUMPER, allow_unicode=True, width=_WIDTH)


_INDENTATION = (
    "the indentation is wrong, or a value that holds quotes or text behind them is not quoted as a whole"
)
_HINTS = {
    "mapping values": "a value that holds ': ' needs quotes; else the indentation is wrong",
    "cannot start": "a value that begins with this character needs quotes; indent with spaces, not tabs",
    "end of stream": "a quote is opened here and never closed",
    "simple key": "a key is followed by ':' and a value",
    "','": "a bracket is opened here, and a comma or the closing bracket is missing",
    "block end": _INDENTATION,
    "expected key": _INDENTATION,
    "'-' indicator": _INDENTATION,
}
"""What to do, by a part of what PyYAML says."""


def _syntax(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Return the line where a mistake begins, and what is wrong there; nothing of the file is repeated."""
    context, problem = error.context or "", error.problem or "syntax error"
    begins_earlier = "flow" in context or "quoted" in context or "simple key" in context
    mark = error.context_mark if begins_earlier else error.problem_mark or error.context_mark
    line = 0 if mark is None else mark.line + 1
    said = f"{context}, {problem}"
    return line, next((hint for part, hint in _HINTS.items() if part in said), problem)


class _Reader:
    """Turns nodes into data, noting lines."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def value(self, node: Any, path: KeyPath) -> Any:  # noqa: ANN401
        document, line = self._document, node.start_mark.line + 1
        self._nodes += 1
        if self._nodes > _MAX_NODES or len(path) > _MAX_DEPTH:
            problem = Problem(line, "", "too large or too deeply nested: check its aliases")
            raise ConfigError([problem], document.source)
        document.lines.setdefault(path, line)
        if not node.tag.startswith("tag:yaml.org,2002:"):
            document.report(path, f"YAML tags such as {quote(node.tag)} are not supported: remove it")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return _scalar(node.value, plain=not node.style)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line, place = key_node.start_mark.line + 1, path
            if not isinstance(key_node, yaml.ScalarNode):
                wrong = "a key must be a plain word"
            elif key_node.value == "<<":
                wrong = "merge keys are not supported"
            elif (place := (*path, key_node.value)) in self._document.lines:
                wrong = f"is written twice; it already stands at line {self._document.lines[place]}"
            else:
                self._document.lines[place] = line
                result[key_node.value] = self.value(value_node, place)
                continue
            self._document.problems.append(Problem(line, path_text(place), wrong))
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
