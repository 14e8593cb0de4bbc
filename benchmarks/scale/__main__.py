"""Figures at a user's size: ``benchmarks/run scale [FIGURE...]``, with the names of this package's modules."""

from __future__ import annotations

import importlib
import sys

FIGURES = ("opening", "loop_lag", "isolation", "retry", "restore", "idle")


def main() -> int:
    """Measure what is named, or everything, and print lines ``scale.figure VALUE``."""
    names = sys.argv[1:] or FIGURES
    if unknown := [name for name in names if name not in FIGURES]:
        print(f"no figure is called {', '.join(unknown)}; there are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    for name in names:
        for figure, value in importlib.import_module(f"benchmarks.scale.{name}").measure().items():
            print(f"scale.{figure} {value:.6g}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
