"""Counts of raw events, by parts: ``benchmarks/run sources [PART [OPTION...]]``.

    tally   pairs of cells and units of one window: bytes, processor time and the longest step; needs no broker
    events  a counter on a real broker against an aiokafka loop
    outage  a counter that catches up
    close   from the end of a window to its alerts

Each part has ``--help``.
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.command import show

PARTS = ("tally", "events", "outage", "close")


def main() -> int:
    """Measure one part with options, or all of them, and print lines ``sources.figure VALUE``."""
    part, *options = sys.argv[1:] or [""]
    if part in {"-h", "--help"}:
        print(__doc__)
        return 0
    if part and part not in PARTS:
        print(f"no part is called {part}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for name in [part] if part else PARTS:
        show(importlib.import_module(f"benchmarks.sources.{name}").figures, options, name="sources")
    return 0


if __name__ == "__main__":
    sys.exit(main())
