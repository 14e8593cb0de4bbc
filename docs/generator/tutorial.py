"""What the tutorial's own configuration buys, for the tutorial."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.generator.markdown import fence
from stream_svt.monitor.spec import load_spec
from stream_svt.planning import explain

PAGE: Final = Path(__file__).parent.parent / "tutorial.md"


def _words() -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(# monitors\.yaml\n.*?)```", text, re.DOTALL)
    if found is None:
        raise ValueError("the tutorial shows no monitors.yaml")
    return fence("text", "\n".join(explain(load_spec(found[1]))))


BLOCKS: Final = {"words": _words}
