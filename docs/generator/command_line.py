"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from docs.generator.markdown import fence, paragraphs, table
from stream_svt.cli import app

_PROGRAM: Final = "stream-svt"


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name, in the order of the help."""
    for name, command in app.commands.items():
        if isinstance(command, click.Group):
            yield f"{_PROGRAM} {name}", command
            for inner in command.list_commands(click.Context(command)):
                yield f"{_PROGRAM} {name} {inner}", command.commands[inner]
        else:
            yield f"{_PROGRAM} {name}", command


def _overview() -> str:
    rows = [[f"[`{name}`](#{_anchor(name)})", _first_paragraph(command)] for name, command in _commands()]
    return table(["command", "what it does"], rows)


def _reference() -> str:
    return "\n\n".join(_one(name, command) for name, command in _commands())


def _exit_codes() -> str:
    """Return the table at the end of the program's own help."""
    lines = (app.epilog or "").splitlines()
    found = [re.fullmatch(r"  (\d+) +(.+)", line) for line in lines]
    return table(["code", "meaning"], [[match[1], match[2]] for match in found if match is not None])


def _one(name: str, command: click.Command) -> str:
    parts = [f"## `{name}`", paragraphs(inspect.cleandoc(command.help or ""))]
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    parts.append(f"Usage: `{usage}`")
    records = [option.get_help_record(click.Context(command)) for option in command.params]
    if rows := [
        [f"`{record[0].replace('|', ' / ')}`", _as_code(record[1])]
        for record in records
        if record is not None
    ]:
        parts.append(table(["option", "meaning"], rows))
    examples = _examples(command)
    if examples:
        parts.append(examples)
    return "\n\n".join(parts)


def _examples(command: click.Command) -> str:
    """Return what stands in the epilog: a heading and indented lines, paragraph by paragraph."""
    parts = []
    for part in (command.epilog or "").replace("\b", "").strip().split("\n\n"):
        heading, *lines = part.strip().splitlines() or [""]
        if lines:
            # What a line says beside its command becomes a comment.
            code = "\n".join(
                re.sub(r"(?<=\S) {3,}(?=\S)", "   # ", line.removeprefix("  ")) for line in lines
            )
            parts += [heading, fence("yaml" if code.startswith("#") else "sh", code)]
    return "\n\n".join(parts)


def _first_paragraph(command: click.Command) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _as_code(text: str) -> str:
    return re.sub(r"(?<![`\w])(\$?[A-Z]+(?:_[A-Z]+)+|--[a-z][a-z-]*)", r"`\1`", " ".join(text.split()))


BLOCKS: Final = {"commands": _overview, "reference": _reference, "exit-codes": _exit_codes}
