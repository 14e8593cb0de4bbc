"""What is wrong with the code on a page, found without running it: commands, documents, names of things."""

from __future__ import annotations

import json
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache

import click
import jsonschema
from pydantic import BaseModel

from stream_svt.cli import app
from stream_svt.counting.metrics import METRICS as COUNTER_METRICS
from stream_svt.forward.config import json_schema as forward_schema
from stream_svt.forward.metrics import METRICS as FORWARD_METRICS
from stream_svt.monitor import released
from stream_svt.queries.json_records import FIELDS
from stream_svt.settings.document import read
from stream_svt.settings.sections import ConfigDocument, json_schema
from stream_svt.worker.metrics import METRICS
from tests.documentation.pages import ROOT, Code, blocks

_PROGRAMS = re.compile(
    r"[.]|amtool|base64|cat|cd|chmod|cp|curl|date|docker(-compose)?|echo|export|gh|git|grep|head|helm|install|javac?|jq|"
    r"kafka-delete-records|kcat|kill|kubectl|mkdir|mkdocs|openssl|pip|promtool|python|sed|sha256sum|source|ssh-keygen|"
    r"systemctl|useradd"
)
_ENDS = re.compile(r"[;&|()]+")


# Commands


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command; what is redirected or assigned is left out.

    Raises:
        ValueError: A quotation is not closed.
    """
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        skip = False
        for token in [*lexer, ";"]:
            if _ENDS.fullmatch(token):
                if words:
                    yield words
                words = []
            elif skip or set(token) <= {"<", ">"}:
                skip = not skip
            elif words or not re.match(r"\w+=", token):
                words.append(token)


def problem_of_command(words: list[str], page: Code) -> str | None:
    """Return what is wrong with a command, perhaps shortened; None if nothing is."""
    program = words[0].removeprefix(".venv/bin/").replace("python3", "python")
    if unknown := next((word for word in words if _is_missing(word)), None):
        return f"there is no {unknown}"
    if program == "stream-svt":
        return _problem_of_ours(words[1:])
    if program == "pip":
        return next(filter(None, map(_problem_of_package, words[2:])), None)
    if program == "python" and words[1] == "-m":
        return (
            None if words[2] in {"build", "pip", "venv"} or _imported(words[2]) else f"no module {words[2]}"
        )
    if program == "python":
        known = any(block.name == words[1] for block in blocks(page.page)) or any(
            (folder / words[1]).exists() for folder in (ROOT, (ROOT / page.page).parent)
        )
        return None if known else f"the page shows no file {words[1]}"
    if "/" in program:
        return _problem_of_script(words)
    return None if _PROGRAMS.fullmatch(program) else f"no rule knows the program {program}"


def _is_missing(word: str) -> bool:
    """Whether a word looks like a file of the repository, and there is none."""
    place = word.partition("=")[2] if word.startswith("-") else word
    looks = re.fullmatch(r"(?:deploy|docs|examples|tests|benchmarks|stream_svt)/[\w./*-]*", place)
    return bool(looks) and "secrets/" not in place and not list(ROOT.glob(place))  # make-secrets writes those


def _problem_of_package(word: str) -> str | None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ours = re.fullmatch(r"(?:\.|stream-svt)(?:\[([\w,-]+)\])?", word)
    is_known = ours and {*(ours[1] or "dev").split(",")} <= known.keys()
    is_known = is_known or word in {re.split("[<>=]", one)[0] for listed in known.values() for one in listed}
    return None if is_known or word.startswith("-") else f"no package of this project: {word}"


def _problem_of_script(words: list[str]) -> str | None:
    if not (ROOT / words[0]).exists():
        return f"there is no {words[0]}"
    names = [word for word in words[1:] if re.fullmatch("[a-z_]+", word)]
    if names and words[0] == "benchmarks/run" and not list(ROOT.glob(f"benchmarks/{names[0]}*")):
        return f"no benchmark {names[0]}"
    [soak] = re.findall(r"soak NAME: (.*)\"", (ROOT / "tests/run").read_text())
    wrong = names[:1] == ["soak"] and {*names[1:2]} - {*re.findall(r"\w+", soak)}
    return f"no soak {names[1]}" if wrong else None


def _problem_of_ours(words: list[str], command: click.Command = app) -> str | None:
    """Return the error of click's own parser, of a command with placeholders for some of its words."""
    parser = command.make_parser(click.Context(command))
    ends_with_option = words and words[-1] in parser._long_opt.keys() | parser._short_opt.keys()
    try:
        given, rest, _ = parser.parse_args([*words, *["X"] * bool(ends_with_option)])
        for option in command.params:
            value = given.get(option.name or "")
            if isinstance(value, str) and not _is_placeholder(value):
                option.type.convert(value, option, None)
    except click.UsageError as error:
        return error.format_message()
    if not isinstance(command, click.Group) or not rest or _is_placeholder(rest[0]):
        return None
    inner = command.commands.get(rest[0])
    return _problem_of_ours(rest[1:], inner) if inner else f"stream-svt has no command {rest[0]}"


def _is_placeholder(word: str) -> bool:
    return word.isupper() or word[:1] in set(".…<[{")


# Documents


def problem_of_yaml(text: str) -> str | None:
    """Return what is wrong with a configuration, whole or some of its sections."""
    document = json.loads(json.dumps(read(text, "page").data, default=float))
    keys = set(document)
    if {"topic", "destinations"} <= keys:
        schema = forward_schema()
    elif keys <= set(ConfigDocument.model_fields):
        schema = json_schema()
        if not {"application", "monitors"} <= keys:  # a part of one
            schema["required"] = []
    elif keys <= set(_values_schema()["properties"]):
        schema = _values_schema()
    else:
        return f"no rule knows {sorted(keys)}"
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(document))
    return None if error is None else f"{error.json_path}: {error.message}"


def _values_schema() -> dict:
    """Return the schema of some of the chart's values."""
    text = (ROOT / "deploy/helm/stream-svt/values.schema.json").read_text()
    return json.loads(text, object_hook=lambda node: {key: node[key] for key in node if key != "required"})


def problem_of_message(text: str) -> str | None:
    """Return what is wrong with a message of a topic: a query or a released event."""
    try:
        message = json.loads(text)
        if "specversion" in message:
            released.decode(text.encode())
            return None
    except Exception as error:  # noqa: BLE001 - whatever it is, the page shows no event
        return f"no message: {error}"
    unknown = set(message) - set(FIELDS)
    return f"no query has {sorted(unknown)}" if unknown and {"value", "id", "closed"} & set(message) else None


# Blocks and spans


def problem(code: Code) -> str | None:
    """Return what is wrong with code on a page, None if nothing is."""
    if unknown := _unknown_variable(code.text):
        return unknown
    match code.kind:
        case "sh":
            try:
                return next(
                    filter(None, (problem_of_command(one, code) for one in commands(code.text))), None
                )
            except ValueError as error:
                return str(error)
        case "yaml":
            return problem_of_yaml(code.text)
        case "json":
            return problem_of_message(code.text)
        case "span":
            return _problem_of_span(code)
        case "python" | "text" | "mermaid":  # these run, or are compared
            return None
    return f"no rule covers a block of {code.kind}"


_OURS = re.compile(
    r"(?:stream-svt|tests/run|benchmarks/run|deploy/\w+|python3? -m|pip install|docs/generate)(?: |$)"
)
_OTHERS = re.compile(r"(?:docker|docker-compose|kubectl|promtool|amtool) [a-z]")


def _problem_of_span(code: Code) -> str | None:
    text = code.text
    if _OURS.match(text) or _OTHERS.match(text):
        return next(filter(None, (problem_of_command(one, code) for one in commands(text))), None)
    if option := re.match(r"(--[a-z][a-z-]+)(?:[= ].*)?$", text):
        return None if option[1] in _names() else f"no command has the option {option[1]}"
    if re.fullmatch(r"stream_svt[_:][a-z_:]+", text):
        names = {text, f"{text}_total", re.sub(r"_(?:bucket|sum|count)$", "", text)}
        return None if names & _names() else f"there is no metric {text}"
    if name := re.match(r"stream_svt(?:\.\w+)+", text):
        return None if _imported(name[0]) else f"there is no {name[0]}"
    if text.startswith("{") and text.endswith("}") and '"' in text:
        return problem_of_message(text)
    if key := re.match(r"([a-z_]+)\.([a-z_]+)(?:: .*)?$", text):
        return _unknown_key(key[1], key[2])
    if re.fullmatch(r"(?:\.?[\w-]+/)+[\w.*-]*|[\w-]+\.(?:md|toml)", text) and text.split("/")[0] in _TOPS:
        place = text.rstrip("/")
        found = [*ROOT.glob(place), *ROOT.glob(f"stream_svt/{place}"), *ROOT.glob(f"tests/**/{place}")]
        return None if found else f"there is no file {text}"
    word = re.match(r"[A-Za-z][\w.-]*(?=\(.*\)$|$)", text)
    if word and word[0] not in _code() and not text.isupper():  # capitals stand for what the reader fills in
        for part in word[0].split("."):
            name_of_part = re.sub(r"^[A-Z]+-|-[A-Z]+$", "", part)
            if name_of_part not in _code() and not any(name_of_part in one.text for one in blocks(code.page)):
                return f"{name_of_part} stands nowhere in the code"
    return None


_TOPS = {path.name for path in ROOT.iterdir()} | {path.name for path in (ROOT / "stream_svt").iterdir()}


def _unknown_variable(text: str) -> str | None:
    found = re.findall(r"\bSTREAM_SVT_(KAFKA|TOPICS|SEALING|WEB|COMMIT)_([A-Z_]+)=", text)
    problems = (_unknown_key(section.lower(), key.lower()) for section, key in found)
    return next(filter(None, problems), None)


def _unknown_key(section: str, key: str) -> str | None:
    field = ConfigDocument.model_fields.get(section)
    model = field.annotation if field else None
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or key in {"py", "md", "yaml"}:
        return None
    return None if key in model.model_fields else f"the section {section} has no key {key}"


def _imported(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return False
    return True


@cache
def _names() -> frozenset[str]:
    """Return every word of the code, and every metric."""
    metrics = (metric.name for metric in (*METRICS, *COUNTER_METRICS, *FORWARD_METRICS))
    return frozenset([*re.findall(r"[\w:-]+", _code()), *metrics])


@cache
def _code() -> str:
    """Return all code of the repository as one text, without these tests: they would find themselves."""
    places = ("stream_svt", "tests", "benchmarks", "deploy", "examples")
    kinds = {"", ".py", ".yaml", ".yml", ".json", ".js", ".html", ".java", ".csv", ".toml"}
    files = [
        path for place in places for path in (ROOT / place).rglob("*") if "documentation" not in path.parts
    ]
    files = [path for path in (*files, *ROOT.iterdir()) if path.is_file()]
    texts = (path.read_text(errors="ignore") for path in files if path.suffix in kinds)
    return "\n".join([*texts, *(path.name for path in files)])
