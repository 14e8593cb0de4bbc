"""Links between the pages of the repository lead to files and headings that exist, as GitHub shows them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pymdownx.slugs import slugify

from tests.documentation.pages import PAGES, ROOT

_PARSER = MarkdownIt("commonmark").enable("table")
_SLUG = slugify(case="lower")


def _tokens(text: str) -> Iterator[Token]:
    for token in _PARSER.parse(text):
        yield token
        yield from token.children or ()


@cache
def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings; a heading that comes again gets a number."""
    found: dict[str, int] = {}
    made = set()
    heading = False
    for token in _PARSER.parse(text):
        if token.type == "inline" and heading:
            plain = "".join(
                child.content for child in token.children or () if child.type in {"text", "code_inline"}
            )
            slug = _SLUG(plain, "-")
            made.add(slug if slug not in found else f"{slug}-{found[slug]}")
            found[slug] = found.get(slug, 0) + 1
        heading = token.type == "heading_open"
    return made


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page, given by its place in the repository, that lead nowhere."""
    found = []
    for token in _tokens(text):
        link = str(token.attrs.get("href") or token.attrs.get("src") or "")
        parts = urlsplit(link)
        if not link or parts.scheme:
            continue
        target = (ROOT / page).parent / unquote(parts.path) if parts.path else ROOT / page
        if not target.exists() or not target.resolve().is_relative_to(ROOT):
            found.append(link)
        elif parts.fragment and target.suffix == ".md":
            other = text if target == ROOT / page else target.read_text(encoding="utf-8")
            if parts.fragment not in anchors(other):
                found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_links_of_a_page_lead_somewhere(page):
    assert broken(page, (ROOT / page).read_text(encoding="utf-8")) == []


def test_links_that_lead_nowhere_are_found():
    text = (
        "# One thing\n\n[a](docs/gone.md) [b](docs/planning.md#the-model) [c](docs/planning.md#gone) [d](#one-thing) "
        "[e](#two) ![f](docs/gone.svg) [g](../../etc) [h](https://example.org/x)\n"
    )
    assert broken(Path("README.md"), text) == [
        "docs/gone.md",
        "docs/planning.md#gone",
        "#two",
        "docs/gone.svg",
        "../../etc",
    ]
