"""Links of the pages outside of docs/ lead to files and headings that exist; the site's build checks the others."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pymdownx.slugs import slugify

from tests.documentation.pages import PAGES, ROOT, tokens

_SLUG = slugify(case="lower")
OUTSIDE = [page for page in PAGES if page.parts[0] != "docs"]


def anchors(text: str) -> set[str]:
    found = tokens(text)
    return {
        _SLUG("".join(child.content for child in heading.children or ()), "-")
        for opening, heading in pairwise(found)
        if opening.type == "heading_open"
    }


def broken(page: Path, text: str) -> list[str]:
    found = []
    for token in (child for parent in tokens(text) for child in parent.children or ()):
        link = str(token.attrs.get("href") or token.attrs.get("src") or "")
        parts = urlsplit(link)
        if not link or parts.scheme:
            continue
        target = (ROOT / page).parent / unquote(parts.path) if parts.path else ROOT / page
        if not target.exists() or not target.resolve().is_relative_to(ROOT):
            found.append(link)
        elif parts.fragment and target.suffix == ".md":
            other = text if not parts.path else target.read_text(encoding="utf-8")
            found += [link] * (parts.fragment not in anchors(other))
    return found


@pytest.mark.parametrize("page", OUTSIDE, ids=str)
def test_the_links_of_a_page_lead_somewhere(page):
    assert broken(page, (ROOT / page).read_text(encoding="utf-8")) == []


def test_links_that_lead_nowhere_are_found():
    wrong = ["docs/gone.md", "docs/planning.md#gone", "#two", "docs/gone.svg", "../../etc"]
    right = ["docs/planning.md#the-model", "#one-thing", "https://example.org/x"]
    text = "# One thing\n\n" + " ".join(f"[a]({link})" for link in [*wrong, *right])
    assert broken(Path("README.md"), text) == wrong


def test_the_runbook_has_each_section_that_a_message_names() -> None:
    sources = [path.read_text() for path in (ROOT / "stream_svt").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"the runbook [\w ]+\((\w+)\)", text)}
    assert named
    assert named <= set(re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE))
