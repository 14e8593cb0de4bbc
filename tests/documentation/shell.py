"""Takes the text of a shell block apart, with the shell's own idea of where a command ends."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_OPERATOR = frozenset("();<>|&\n")
_ENDS = {"&&", "||", ";", "|", "(", ")", "&", "|&", "\n"}
_WORDS_OF_BASH = {
    "if",
    "then",
    "else",
    "fi",
    "for",
    "while",
    "until",
    "do",
    "done",
    "in",
    "!",
    "{",
    "}",
    "case",
    "esac",
}
_ASSIGNMENT = re.compile(r"\w+=")
_PYTHONS = {".venv/bin/python": "python", "python3": "python", "./.venv/bin/python": "python"}


@dataclass(frozen=True, slots=True)
class Step:
    """One command line of a page, with its continuations; ``line`` counts from that of the block."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words without what is redirected and what is assigned before it."""

    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The first word."""
        return self.words[0]

    def starts(self, prefix: tuple[str, ...]) -> bool:
        """Whether these are its first words."""
        return self.words[: len(prefix)] == prefix


def steps(text: str) -> list[Step]:
    """Return the command lines of a block.

    Raises:
        ValueError: Bash cannot read it.
    """
    found, waiting, began = [], "", 0
    for number, line in enumerate(text.splitlines()):
        began = began if waiting else number
        waiting += line + "\n"
        if not waiting.strip() or (waiting.lstrip().startswith("#") and "\n" not in waiting.strip()):
            waiting = ""
            continue
        if line.rstrip().endswith("\\") or not _complete(waiting):
            continue
        found.append(Step(began, waiting.strip()))
        waiting = ""
    if waiting.strip():
        raise ValueError(f"bash cannot read: {waiting.strip()}")
    return found


@cache
def _complete(text: str) -> bool:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return done.returncode == 0 and "here-document" not in done.stderr


def commands(text: str) -> list[Command]:
    """Return the simple commands of a line, those of its substitutions included; a here-document is none.

    Raises:
        ValueError: A quotation is not closed.
    """
    without_document = text.split("<<", maxsplit=1)[0]
    return [
        Command((_PYTHONS.get(words[0], words[0]), *words[1:])) for words in _split(without_document) if words
    ]


def _split(text: str) -> Iterator[list[str]]:
    words: list[str] = []
    skip = heading = False
    for token in _tokens(text):
        if skip or heading:
            skip, heading = False, heading and token not in {";", "\n"}
        elif not words and token == "for":  # its list holds no commands
            heading = True
        elif set(token) <= _OPERATOR:
            if token in _ENDS or token.startswith(("(", ")", ";")):
                yield words
                words = []
            else:  # a redirection: what follows is a file
                if words and words[-1].isdigit():
                    words.pop()
                skip = True
        elif not words and (_ASSIGNMENT.match(token) or token in _WORDS_OF_BASH):
            continue
        else:
            words.append(token)
    yield words


def _tokens(text: str) -> Iterator[str]:
    lexer = shlex.shlex(_without_comments(text), posix=True, punctuation_chars="();<>|&\n")
    lexer.commenters, lexer.whitespace_split = "", True
    lexer.whitespace = " \t\r"
    for token in lexer:
        yield "\n" if set(token) == {"\n"} else token


def _without_comments(text: str) -> str:
    """Return a text without its comments, whose apostrophes are no quotation, and with its lines continued."""
    kept, quote, comment = "", "", False
    signs = iter(text.replace("\\\n", " "))
    for sign in signs:
        if comment:
            comment = sign != "\n"
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "\\":
            sign += next(signs, "")  # noqa: PLW2901 - the two are one
        elif sign == "#" and (not kept or kept[-1].isspace() or kept[-1] in _OPERATOR):
            comment = True
        kept += "" if comment else sign
    return kept


def parts(text: str) -> list[str]:
    """Return a line cut at ``&&`` and ``;`` outside of quotes, substitutions and parentheses."""
    found, start, depth, quote = [], 0, 0, ""
    place = 0
    while place < len(text):
        sign = text[place]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (place == 0 or text[place - 1].isspace()):
            break
        elif sign == "\\":
            place += 1
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif not depth and (text.startswith("&&", place) or sign == ";"):
            found.append(text[start:place].strip())
            place += 1 if sign == "&" else 0
            start = place + 1
        place += 1
    return [*found, text[start:place].strip()]
