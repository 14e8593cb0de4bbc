"""What is made from the code, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from docs.generator import (
    asyncapi,
    capacity,
    command_line,
    configuration,
    costs,
    epsilon_figures,
    messages,
    metrics,
    performance,
    status_page,
)
from docs.generator.markdown import fence, filled
from docs.generator.pictures import PICTURES
from stream_svt.planning import explain
from stream_svt.planning.sources import explain_sources
from stream_svt.settings.application import load_spec

DOCS: Final = Path(__file__).parent.parent
TOP: Final = DOCS.parent

Make = Callable[[], str]


def _tutorial_words() -> str:
    """Return some lines of what `stream-svt check` prints about the tutorial's configuration."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    [found] = re.findall(r"```yaml\n(# monitors\.yaml\n.*?)```", text, re.DOTALL)
    spec = load_spec(found)
    lines = [*explain_sources(spec), "", *explain(spec)]
    hidden = ("  Counts", "  Assumes", "  Writes", "  Takes", "  Mutes", "  Begins")
    return fence("text", "\n".join(one for one in lines if not one.startswith(hidden)))


BLOCKS: Final[Mapping[str, Mapping[str, Make]]] = {
    "capacity.md": capacity.BLOCKS,
    "command-line.md": command_line.BLOCKS,
    "configuration.md": configuration.BLOCKS,
    "forwarding.md": {**configuration.FORWARD_BLOCKS, **metrics.FORWARD_BLOCKS},
    "messages.md": messages.BLOCKS,
    "metrics.md": metrics.METRICS_BLOCKS,
    "performance.md": {**performance.BLOCKS, **costs.BLOCKS},
    "runbook.md": metrics.RUNBOOK_BLOCKS,
    "status-page.md": status_page.BLOCKS,
    "tutorial.md": {"words": _tutorial_words},
    "what-epsilon-buys.md": epsilon_figures.BLOCKS,
}


def made() -> dict[Path, str]:
    """Return every generated file and every page with generated blocks, as they should be."""
    files = {DOCS / "asyncapi.yaml": asyncapi.document_text()}
    with TemporaryDirectory() as directory:
        for name, draw in PICTURES.items():
            path = Path(directory, f"{name}.svg")
            draw(path)
            files[DOCS / "pictures" / path.name] = path.read_text(encoding="utf-8")
    for name, blocks in BLOCKS.items():
        page = (DOCS / name).read_text(encoding="utf-8")
        files[DOCS / name] = filled(page, {block: make() for block, make in blocks.items()})
    return files


def outdated() -> dict[Path, str]:
    """Return the files that are not what they should be, with what they should be."""
    return {
        path: content
        for path, content in made().items()
        if not path.exists() or path.read_text(encoding="utf-8") != content
    }
