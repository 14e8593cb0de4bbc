"""Finds every block and span of code in the repository's Markdown pages, with a parser and not by patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_PLACES = (
    "*.md",
    "docs/**/*.md",
    "examples/**/*.md",
    "deploy/**/*.md",
    "benchmarks/**/*.md",
    "stream_svt/**/*.md",
)
PAGES = sorted({path.relative_to(ROOT) for place in _PLACES for path in ROOT.glob(place)})

_PARSER = MarkdownIt("commonmark").enable("table")
_NAMED = re.compile(r"^# ([\w./-]+\.(?:ya?ml|py))\b")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: ``form`` is "fence" or "indented", ``line`` that of its first text line, from 1.

    ``name`` is the file that a comment on the block's first line says it is; ``section`` the heading it stands under.
    """

    page: Path
    line: int
    form: str
    language: str
    name: str
    text: str
    section: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Span:
    """Code within a sentence or a table, ``line`` being that where its paragraph begins."""

    page: Path
    line: int
    text: str
    section: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: `{self.text}`"


def code_of(page: Path, text: str | None = None) -> tuple[Block | Span, ...]:
    """Return all code of a page, in its order; ``page`` is relative to the repository's top."""
    return _code_of(page, (ROOT / page).read_text() if text is None else text)


@cache
def _code_of(page: Path, text: str) -> tuple[Block | Span, ...]:
    return tuple(_parsed(page, text))


def _parsed(page: Path, text: str) -> Iterator[Block | Span]:
    section, line, heading = "", 0, False
    for token in _PARSER.parse(text):
        line = token.map[0] + 1 if token.map else line
        section = token.content if heading else section
        heading = token.type == "heading_open"
        if token.type == "fence":
            language = token.info.split(maxsplit=1)[0].strip("{}.") if token.info.strip() else ""
            yield _block(page, line + 1, "fence", language, token, section)
        elif token.type == "code_block":
            yield _block(page, line, "indented", "", token, section)
        elif token.type == "html_block" and re.search(r"<(?:pre|code)\b", token.content):
            yield Block(page, line, "html", "html", "", token.content, section)
        for child in token.children or ():
            if child.type == "code_inline":
                yield Span(page, line, " ".join(child.content.split()), section)


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    return [code for code in code_of(page) if isinstance(code, Block)]


def spans(page: Path, text: str | None = None) -> list[Span]:
    """Return what stands in the sentences and tables of a page; of a changelog, of what is not released yet.

    What was released may speak of names that are gone.
    """
    text = (ROOT / page).read_text() if text is None else text
    if page.name == "CHANGELOG.md":
        text = "\n## ".join(text.split("\n## ")[:2])
    return [code for code in code_of(page, text) if isinstance(code, Span)]


def _block(page: Path, line: int, form: str, language: str, token: Token, section: str) -> Block:
    found = _NAMED.match(token.content)
    return Block(page, line, form, language, found[1] if found else "", token.content, section)
