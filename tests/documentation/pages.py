"""Finds every block and span of code in the repository's Markdown pages, with a parser and not by patterns."""

from __future__ import annotations

import re
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
_NAMED = re.compile(r"# ([\w./-]+\.(?:ya?ml|py))\n")


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code, or code within a sentence.

    Attributes:
        line: That of its first text line, or where its paragraph begins; from 1.
        kind: "span", or the language of a block; a block without one is for the shell ("sh").
    """

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def name(self) -> str:
        """The file that a comment on the first line says it is, or nothing."""
        found = _NAMED.match(self.text)
        return found[1] if found else ""


def tokens(text: str) -> list[Token]:
    return _PARSER.parse(text)


@cache
def code_of(page: Path, text: str | None = None) -> tuple[Code, ...]:
    """Return all code of a page of the repository; of a changelog, of what is not released yet."""
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    if page.name == "CHANGELOG.md":  # what was released may speak of names that are gone
        text = "\n## ".join(text.split("\n## ")[:2])
    found, line = [], 0
    for token in tokens(text):
        line = token.map[0] + 1 if token.map else line
        if token.type in {"fence", "code_block"}:
            place = line + (token.type == "fence")
            found.append(Code(page, place, token.info.strip() or "sh", token.content))
        elif token.type == "html_block" and re.search(r"<(?:pre|code)\b", token.content):
            found.append(Code(page, line, "html", token.content))
        inline = [child.content for child in token.children or () if child.type == "code_inline"]
        found += [Code(page, line, "span", " ".join(content.split())) for content in inline]
    return tuple(found)


def blocks(page: Path) -> list[Code]:
    return [code for code in code_of(page) if code.kind != "span"]
