"""The harness of all benchmarks: sizes as options, sides in turns, and lines ``NAME.figure VALUE``."""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def show(
    figures: Callable[..., Mapping[str, float]],
    arguments: Sequence[str] | None = None,
    *,
    digits: int = 3,
    name: str = "",
) -> None:
    """Measure and print; the arguments of ``figures`` are options, each with its default, but for the seed.

    A default of False makes a flag. ``name`` is that of the benchmark, by default its module's, of which it may be but
    one part. Other sizes than the defaults are told in a first line: their figures are none for `docs/data`.
    """
    part = Path(inspect.getfile(figures)).stem
    name = name or part
    parser = argparse.ArgumentParser(
        prog=f"benchmarks/run {name}" if name == part else f"benchmarks/run {name} {part}",
        description=inspect.getdoc(inspect.getmodule(figures)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for size in inspect.signature(figures).parameters.values():
        if size.name != "seed":
            option, usual = f"--{size.name.replace('_', '-')}", size.default
            if usual is False:
                parser.add_argument(option, action="store_true")
            else:
                parser.add_argument(option, type=type(usual), default=usual, help=f"by default {usual:,}")
    sizes = vars(parser.parse_args(arguments))
    if other := [f"{size}={value}" for size, value in sizes.items() if value != parser.get_default(size)]:
        print(f"{name}: other sizes: {' '.join(other)}")
    for figure, value in figures(**sizes).items():
        print(f"{name}.{figure} {value:.{digits}f}")


def say(text: str) -> None:
    """Print on standard error what is no figure."""
    print(text, file=sys.stderr, flush=True)


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_ratio(name: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of turns, ours over theirs; print all of them."""
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    say(f"{name}: " + " ".join(f"{ratio:.3f}" for ratio in ratios))
    return statistics.median(ratios)
