"""Lines for people: all of them go through `say`, which escapes control and format characters.

Records, names, answers of brokers and pages, and files may contain codes that clear a screen, line feeds that begin
a forged line, or characters that reverse the following text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from stream_svt.plain_text import escaped


class Styled(NamedTuple):
    """A part of a line, with the arguments of `click.style`."""

    text: str
    style: dict[str, Any]


def styled(text: str, **style: Any) -> Styled:  # noqa: ANN401  as of click
    """Return a part of a line in a colour, or bold or dim."""
    return Styled(text, style)


def line(*parts: str | Styled) -> str:
    """Return parts as one line, with escaped invisible characters."""
    return "".join(
        click.style(escaped(part.text), **part.style) if isinstance(part, Styled) else escaped(part)
        for part in parts
    )


def say(*parts: str | Styled, err: bool = False) -> None:
    """Print one line for people, to standard output or standard error."""
    click.echo(line(*parts), err=err)


def say_progress(text: str) -> None:
    """Print a line for people to standard error over the one before it."""
    click.echo(f"\r{escaped(text)} ", err=True, nl=False)


def say_lines(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text of several lines, whose authors are this program or its user."""
    click.echo(escaped(text, keep="\n"), err=err, nl=nl)


def write(data: str | bytes) -> None:
    """Print a document for programs as it is, with a line feed after it."""
    click.echo(data)
