"""What MkDocs does beyond its own when it builds the site.

The generated pictures become part of their page, so that they follow its colours; a diagram that GitHub draws with a
program from elsewhere becomes a picture of ours, for the site fetches nothing. On GitHub the same pages show images.
Tables are told apart, and their cells named, so that the stylesheet can lay them out for a narrow screen.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any, Final

_PICTURES: Final = Path(__file__).parent.parent / "pictures"
_IMAGE: Final = re.compile(
    r'<p>\s*<img alt="[^"]*" src="(?:\.\./)*pictures/(?P<name>[a-z0-9-]+)\.svg"\s*/?>\s*</p>'
)
_DIAGRAM: Final = re.compile(r"^```mermaid\n(?P<kind>[A-Za-z]+)\S*\n.*?^```$", re.MULTILINE | re.DOTALL)
_DRAWN: Final = {"stateDiagram": "![Life of a monitor on one dataset](pictures/life-of-a-monitor.svg)"}
"""Images that stand for diagrams, by the diagram's kind; there is one of each."""

_TABLE: Final = re.compile(r"<table>(.*?)</table>", re.DOTALL)
_ROW: Final = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL: Final = re.compile(r"<(t[hd]\b[^>]*)>(.*?)</t[hd]>", re.DOTALL)
_BODY_CELL: Final = re.compile(r"<(td\b[^>]*)>(.*?)</td>", re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_ALIGNED_RIGHT: Final = "text-align: right"
_FITS: Final = 40
"""Characters of a row of numbers that a phone shows side by side."""

_ROOMY: Final = 4
"""Columns that need no help to share the width of a page."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put our picture in the place of a diagram.

    Raises:
        KeyError: There is no picture of the diagram.
    """
    return _DIAGRAM.sub(lambda match: _DRAWN[match["kind"]], markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Replace images of the folder `pictures` by the pictures themselves, and prepare tables."""
    html = _IMAGE.sub(lambda match: f'<div class="picture">{_picture(match["name"])}</div>', html)
    return _TABLE.sub(lambda match: _told_apart(match[1]), html)


def _told_apart(content: str) -> str:
    """Return a table that says whether it holds text or numbers; a cell of text has the title of its column."""
    titles = [_words(cell[2]) for cell in _CELL.finditer(content) if cell[1].startswith("th")]
    rows = [[_words(cell[2]) for cell in _CELL.finditer(row)] for row in content.split("</tr>")[1:]]
    if _ALIGNED_RIGHT in content:
        wide = max(len(" ".join(row)) for row in [titles, *rows]) > _FITS
        return f'<table data-holds="{"many-numbers" if wide else "numbers"}">{content}</table>'
    lengths = [sum(map(len, column)) for column in zip(*filter(None, rows), strict=False)]
    longest = lengths.index(max(lengths)) if len(titles) > _ROOMY and lengths else None

    def cell(match: re.Match[str], column: int) -> str:
        title = titles[column] if len(titles) > 2 and 0 < column < len(titles) else ""
        named = f' data-title="{title}"' if title else ""
        return f"<{match[1]}{named}{' data-longest' * (column == longest)}>{match[2]}</td>"

    def row(match: re.Match[str]) -> str:
        columns = count()
        return _BODY_CELL.sub(lambda found: cell(found, next(columns)), match[0])

    return f'<table data-holds="text">{_ROW.sub(row, content)}</table>'


def _words(html: str) -> str:
    return _TAG.sub("", html).strip().replace('"', "&quot;")


def _picture(name: str) -> str:
    return (_PICTURES / f"{name}.svg").read_text(encoding="utf-8")
