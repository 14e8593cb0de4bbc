"""A worker on a real broker against named peers: ``benchmarks/run service [PART [OPTION...]]``.

One embedded broker, one query topic: 4 partitions, 64 datasets spread evenly, one query in 10,000 a top. A worker is
a process of its own, as a user starts it, with two monitors that test every query of every dataset (SVT with
exponential noise, Adaptive SVT), keyed noise, transactions and sealed state; but for that the configuration is the
default one. Each peer reads the same topic in a process of its own.

A worker's rate is taken from its own commits, as its status page shows them. Between a first look at which every shard
has committed queries and a last one at which none is near its end, each shard committed so many queries in the time
between the two commits shown; the rates of the shards add up to the worker's. So starting, joining the group and the
wait before a last, partial commit do not count, and no query does that is not committed.

Repetitions are interleaved; a figure is the median of their ratios. The parts, each with ``--help``:

    messages   JSON queries against an aiokafka loop, Quix Streams and a Faust agent
    columns    columnar records against fetching the same bytes and reading their values
    values     decimals against integers, and what one odd value costs its batch
    workers    two workers and four against one
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.command import show

PARTS = ("messages", "columns", "values", "workers")


def main() -> int:
    """Measure one part with options, or all of them, and print lines ``service.figure VALUE``."""
    part, *options = sys.argv[1:] or [""]
    if part in {"-h", "--help"}:
        print(__doc__)
        return 0
    if part and part not in PARTS:
        print(f"no part is called {part}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for name in [part] if part else PARTS:
        show(importlib.import_module(f"benchmarks.service.{name}").figures, options, name="service")
    return 0


if __name__ == "__main__":
    sys.exit(main())
