"""What all benchmarks print, and how large they are: numbers as options, and lines ``NAME.figure VALUE``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence


def show(
    name: str,
    described: str | None,
    figures: Callable[..., Mapping[str, float]],
    sizes: Mapping[str, int],
    arguments: Sequence[str] | None,
    *,
    digits: int = 3,
) -> None:
    """Measure and print, with other numbers where options say so.

    Parameters
    ----------
    described
        The module's docstring.
    sizes
        What ``figures`` takes, with the usual numbers.
    """
    parser = argparse.ArgumentParser(
        prog=f"benchmarks/run {name}",
        description=described,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for size, usual in sizes.items():
        parser.add_argument(
            f"--{size.replace('_', '-')}", type=int, default=usual, help=f"by default {usual:,}"
        )
    for figure, value in figures(**vars(parser.parse_args(arguments))).items():
        print(f"{name}.{figure} {value:.{digits}f}")
