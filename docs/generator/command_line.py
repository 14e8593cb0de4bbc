"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from docs.generator.markdown import listed, paragraphs
from stream_svt.cli import app

_MANY: Final = 2
"""Commands that have an option before it is described once for all of them."""


def commands(name: str = "stream-svt", group: click.Group = app) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name, in the order of the help."""
    for word, command in group.commands.items():
        yield f"{name} {word}", command
        if isinstance(command, click.Group):
            yield from commands(f"{name} {word}", command)


def _options(command: click.Command) -> list[tuple[str, str]]:
    """Return names and words of a command's options, as its help shows them."""
    records = (one.get_help_record(click.Context(command)) for one in command.params)
    return [
        (record[0].replace("|", " / ").replace(" RANGE", ""), _as_code(record[1]))
        for record in records
        if record
    ]


def _without_extra(words: str) -> str:
    return re.sub("(; |(?<=\\[))required(?=\\])", "", words).removesuffix(" []")


def _shared() -> list[tuple[str, str]]:
    """Return the options that several commands have with the same words."""
    found = Counter(
        (name, _without_extra(words)) for _, one in commands() for name, words in dict(_options(one)).items()
    )
    return [option for option, count in found.items() if count >= _MANY]


def _common() -> str:
    return listed((name, "", words) for name, words in _shared())


def _reference() -> str:
    shared = _shared()
    return "\n\n".join(_one(name, command, shared) for name, command in commands())


def _one(name: str, command: click.Command, shared: list[tuple[str, str]]) -> str:
    """Return what a command does, in its help's first paragraph, with the names of its own options."""
    summary, _, _ = inspect.cleandoc(command.help or "").partition("\n\n")
    parts = [f"## `{name}`", paragraphs(summary)]
    pieces = command.collect_usage_pieces(click.Context(command))
    if arguments := [piece for piece in pieces if piece not in {"[OPTIONS]", "COMMAND [ARGS]..."}]:
        parts.append(f"Arguments: `{' '.join(arguments)}`")
    options = [option for option in _options(command) if (option[0], _without_extra(option[1])) not in shared]
    if options:
        parts.append(f"Options: {', '.join(f'`{option}`' for option, _ in options)}")
    return "\n\n".join(parts)


def _exit_codes() -> str:
    """Return the list at the end of the program's own help."""
    found = re.findall(r"^  (\d+) +(.+)$", app.epilog or "", re.MULTILINE)
    return listed((code, "", meaning) for code, meaning in found)


def _as_code(text: str) -> str:
    plain = re.sub(
        r" \[[\d.]*<?=?x[<>]=?[\d.]+\]|; [\d.]*<?=?x[<>]=?[\d.]+|[\d.]*<?=?x[<>]=?[\d.]+; ", "", text
    )
    return re.sub(r"(?<![`\w])(\$?[A-Z]+(?:_[A-Z]+)+|--[a-z][a-z-]*)", r"`\1`", " ".join(plain.split()))


BLOCKS: Final = {"common-options": _common, "exit-codes": _exit_codes, "reference": _reference}
