"""Small pieces of Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Final


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars inside cells are escaped."""
    first, *others = ("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])


def listed(rows: Iterable[Sequence[str]]) -> str:
    """Return a list whose items are a name in code, what it is in brackets (perhaps nothing), and what it means."""
    return "\n".join(
        f"- `{name}`{f' ({kind})' if kind else ''}: {' '.join(meaning.split())}"
        for name, kind, meaning in rows
    )


def paragraphs(text: str) -> str:
    """Return a text with its paragraphs set anew, as wide as the hand-written pages."""
    parts = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    return "\n\n".join(
        textwrap.fill(part, 118, break_long_words=False, break_on_hyphens=False) for part in parts
    )


_BLOCK: Final = re.compile(
    r"(?P<begin><!-- made by [a-z/]+: (?P<name>[a-z0-9_-]+) -->\n).*?(?P<end><!-- end: (?P=name) -->)",
    re.DOTALL,
)


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page with its generated blocks as they are now.

    Raises:
        ValueError: The page lacks a block, or has one that nothing makes.
    """
    found = [match["name"] for match in _BLOCK.finditer(page)]
    if sorted(found) != sorted(blocks):
        raise ValueError(f"the page has the blocks {sorted(found)}, the generator makes {sorted(blocks)}")
    # Blank lines around the block keep Markdown from running it together with the comments.
    return _BLOCK.sub(
        lambda match: f"{match['begin']}\n{blocks[match['name']].strip()}\n\n{match['end']}", page
    )


def fence(language: str, text: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def either(words: Sequence[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def number(value: float) -> str:
    """Return a number with three digits that count, and all digits before the point."""
    return f"{round(value):,}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):.10g}"


def day_of(day: date | str) -> str:
    """Return a day, or its ISO form, as the pages write it."""
    found = date.fromisoformat(day) if isinstance(day, str) else day
    return f"{found.day} {found:%B %Y}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
