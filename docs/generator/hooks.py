"""What MkDocs does beyond its own when it builds the site.

The generated pictures become part of their page, so that they follow its colours; a diagram that GitHub draws with a
program from elsewhere becomes a picture of ours, for the site fetches nothing. On GitHub the same pages show images.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

_PICTURES: Final = Path(__file__).parent.parent / "pictures"
_IMAGE: Final = re.compile(
    r'<p>\s*<img alt="[^"]*" src="(?:\.\./)*pictures/(?P<name>[a-z0-9-]+)\.svg"\s*/?>\s*</p>'
)
_DIAGRAM: Final = re.compile(r"^```mermaid\n(?P<kind>[A-Za-z]+)\S*\n.*?^```$", re.MULTILINE | re.DOTALL)
_DRAWN: Final = {"stateDiagram": "![Life of a monitor on one dataset](pictures/life-of-a-monitor.svg)"}
"""Images that stand for diagrams, by the diagram's kind; there is one of each."""


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - page, config and files, which have no say here
    """Put our picture in the place of a diagram.

    Raises
    ------
    KeyError
        There is no picture of the diagram.
    """
    return _DIAGRAM.sub(lambda match: _DRAWN[match["kind"]], markdown)


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - likewise
    """Replace images of the folder `pictures` by the pictures themselves."""
    return _IMAGE.sub(lambda match: f'<div class="picture">{_picture(match["name"])}</div>', html)


def _picture(name: str) -> str:
    return (_PICTURES / f"{name}.svg").read_text(encoding="utf-8")
