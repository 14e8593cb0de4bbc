"""What pages say in code within their sentences and tables: commands, options, files, names, metrics, keys."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from stream_svt.settings.sections import ConfigDocument
from tests.documentation.commands import rule_of
from tests.documentation.documents import check_message, is_metric
from tests.documentation.inline_commands import all_options, problem_of
from tests.documentation.not_executed import NotRun
from tests.documentation.pages import ROOT, Span, blocks
from tests.documentation.shell import commands
from tests.documentation.stage import NoRule, StepFailed

_OURS = re.compile(
    r"^(?:stream-svt|tests/run|benchmarks/run|deploy/\w+|(?:\.venv/bin/)?python3? -m|pip install|docs/generate)(?: |$)"
)
_FILE = re.compile(r"^(?:\.?[\w-]+/)+[\w.-]*$|^[\w-]+\.(?:md|toml)$")
_OPTION = re.compile(r"^(--[a-z][a-z-]+)(?:[= ].*)?$")
_METRIC = re.compile(r"^stream_svt[_:][a-z_:]+$")
_NAME = re.compile(r"^stream_svt(?:\.\w+)+")
_KEY = re.compile(r"^([a-z_]+)\.([a-z_]+)(?:: .*)?$")
_ROUTE = re.compile(r"^/(?:api|health|metrics)\b[\w/]*$")
_OTHERS = re.compile(r"^(?:docker|docker-compose|kubectl|promtool|amtool) [a-z]")
_WORD = re.compile(r"^([A-Za-z][\w.-]*)(?:\(.*\))?$")
_TOPS = {path.name for path in ROOT.iterdir()} | {path.name for path in (ROOT / "stream_svt").iterdir()}


def problem(span: Span) -> str | None:
    """Return what is wrong with the code in a sentence, None if nothing is or nothing is known of its kind."""
    text = span.text
    if unknown := unknown_setting(text):
        return unknown
    if _OURS.match(text):
        return _first(problem_of(list(command.words)) for command in commands(text))
    if option := _OPTION.match(text):
        return None if option[1] in _options() else f"no command has the option {option[1]}"
    if _METRIC.match(text) and not (ROOT / text).exists():
        return None if is_metric(text) else f"there is no metric {text}"
    if name := _NAME.match(text):
        return _importable(name[0])
    if text.startswith("{") and text.endswith("}") and '"' in text:
        return _message(text)
    if key := _KEY.match(text):
        return _key(key[1], key[2])
    if _FILE.match(text) and text.split("/")[0] in _TOPS:
        return None if repository_file(text) else f"there is no file {text}"
    if _OTHERS.match(text):
        return _other_program(text)
    if _ROUTE.match(text):
        return None if text in _code() else f"no page is served at {text}"
    word = None if text.isupper() else _WORD.match(text)  # capitals stand for what the reader fills in
    return _unknown_word(word[1], span.page) if word else None


def unknown_setting(text: str) -> str | None:
    """Return what is wrong with the variables of the environment that a text sets."""
    for section, key in re.findall(r"\bSTREAM_SVT_(KAFKA|TOPICS|SEALING|WEB|COMMIT)_([A-Z_]+)=", text):
        if problem := _key(section.lower(), key.lower()):
            return problem
    return None


def _first(problems: Iterator[str | None]) -> str | None:
    return next((one for one in problems if one), None)


@cache
def _options() -> set[str]:
    """Return the options of our commands, and those that our scripts speak of."""
    scripts = [
        ROOT / "tests/run",
        ROOT / "benchmarks/run",
        *ROOT.glob("deploy/*"),
        *ROOT.glob("tests/soak/*.py"),
    ]
    scripts += [*ROOT.glob("tests/*/soak.py"), *ROOT.glob("benchmarks/*.py")]
    texts = (path.read_text() for path in scripts if path.is_file())
    return all_options() | {found for text in texts for found in re.findall(r"--[a-z][a-z-]+", text)}


def _importable(name: str) -> str | None:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[count:]:
            if not hasattr(found, attribute):
                return f"there is no {name}"
            found = getattr(found, attribute)
        return None
    return f"there is no {name}"


def _message(text: str) -> str | None:
    try:
        check_message(json.loads(text))
    except (ValueError, StepFailed) as error:
        return str(error)
    except NoRule:
        return None  # a part of one, or something of another program
    return None


def _other_program(text: str) -> str | None:
    for command in commands(text):
        rule = rule_of(command)
        for word in command.words:
            if word.split("/")[0] in _TOPS and not list(ROOT.glob(word)):
                return f"there is no {word}"
        try:
            if isinstance(rule, NotRun):
                rule.check(command)
        except StepFailed as error:
            return str(error)
    return None


def _unknown_word(word: str, page: Path) -> str | None:
    """A name stands somewhere in the code, part by part, or in a block of the same page."""
    for part in word.split("."):
        name = re.sub(r"^[A-Z]+-|-[A-Z]+$", "", part)  # APPLICATION-, published-A
        if name not in _code() and name not in _shown(page):
            return f"{name} stands nowhere in the code"
    return None


@cache
def _shown(page: Path) -> str:
    return "".join(block.text for block in blocks(page))


@cache
def _code() -> str:
    """Return all code of the repository as one text, without these tests: they would find themselves."""
    places = ("stream_svt", "tests", "benchmarks", "deploy", "examples")
    files = [
        path for place in places for path in (ROOT / place).rglob("*") if "documentation" not in path.parts
    ]
    kinds = {"", ".py", ".yaml", ".yml", ".json", ".js", ".html", ".java", ".csv"}
    texts = [path.read_text(errors="ignore") for path in files if path.is_file() and path.suffix in kinds]
    names = [path.name for path in files]
    tops = [
        path.read_text(errors="ignore") for path in ROOT.iterdir() if path.is_file() and path.suffix != ".md"
    ]
    return "\n".join([*texts, *names, *tops])


def _key(section: str, key: str) -> str | None:
    """A key of the configuration, written as SECTION.KEY."""
    field = ConfigDocument.model_fields.get(section)
    model = field.annotation if field else None
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or key in {"py", "md", "yaml", "json"}:
        return None
    return None if key in model.model_fields else f"the section {section} has no key {key}"


def repository_file(name: str) -> bool:
    """Whether there is a file or folder whose path ends so."""
    return any(path.endswith(f"/{name.rstrip('/')}") for path in _paths()) or bool(list(ROOT.glob(name)))


@cache
def _paths() -> list[str]:
    tops = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    return [f"/{path.relative_to(ROOT)}" for top in tops for path in (top, *top.rglob("*"))]
