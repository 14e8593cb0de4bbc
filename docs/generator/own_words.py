"""What a page's own configuration buys, in the words of `stream-svt check`."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generator.markdown import fence
from stream_svt.monitor.spec import load_spec
from stream_svt.planning import explain

_DOCS = Path(__file__).parent.parent


def explained(page: str) -> str:
    """Return what the block `monitors.yaml` of a page buys.

    Raises
    ------
    ValueError
        The page shows no such block.
    """
    text = (_DOCS / page).read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(# monitors\.yaml\n.*?)```", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{page} shows no monitors.yaml")
    return fence("text", "\n".join(explain(load_spec(found[1]))))
