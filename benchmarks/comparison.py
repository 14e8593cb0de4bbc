"""Benchmarks of two revisions in turns: which figures moved by more than their noise.

``benchmarks/compare REV [NAME...]`` checks REV out into a temporary directory, and runs each benchmark there and in the
working tree, committed or not, with the packages of this environment. A NAME may bring options, in quotes:
``benchmarks/compare main engine "service messages --repetitions 1"``.

Each turn measures both revisions, the second one first in every other turn. A figure moved if its differences between
the revisions, turn by turn, are on one side more than chance makes them: Wilcoxon's signed-rank test at 1 %, which asks
for ranks only, so that one disturbed turn decides nothing. Of a hundred figures that did not move, one is said to have.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import say

QUICK = (
    "engine --datasets 10000 --repetitions 5 --held 2000",
    "sampler --repetitions 3",
    "mechanisms --repetitions 3",
)
TURNS = 10
LEVEL = 0.01
FEWEST = 8
"""Turns that the test needs: fewer differences than that are never on one side at this level."""
_FIGURE = re.compile(r"^(\S+\.\S+) (\S+)$", re.MULTILINE)
_IMPORTED = "import pathlib, stream_svt; print(pathlib.Path(stream_svt.__file__).resolve().parents[1])"


class Failed(Exception):
    """A comparison cannot be made; the argument says why."""


@dataclass(frozen=True)
class Moved:
    """A figure in both revisions, turn by turn."""

    before: Sequence[float]
    after: Sequence[float]

    @property
    def change(self) -> float:
        """The median of the differences, relative to the median before."""
        middle = abs(statistics.median(self.before))
        return _median_difference(self) / middle if middle else float("inf")

    @property
    def chance(self) -> float:
        """How often chance alone makes differences that are as far on one side."""
        differences = [after - before for before, after in zip(self.before, self.after, strict=True)]
        if not any(differences):
            return 1.0
        from scipy.stats import wilcoxon  # slow to import

        with warnings.catch_warnings():  # equal differences: the probability is approximate
            warnings.simplefilter("ignore")
            return float(wilcoxon(differences).pvalue)

    def __str__(self) -> str:
        if self.chance > LEVEL:
            return "not beyond its noise"
        return f"moved by {100 * self.change:+.1f} %"


def _median_difference(moved: Moved) -> float:
    return statistics.median(after - before for before, after in zip(moved.before, moved.after, strict=True))


def spread(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles of values."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


@contextmanager
def checked_out(root: Path, revision: str) -> Iterator[Path]:
    """Yield a temporary directory with a revision of a repository; its worktree is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="stream-svt-compare-") as directory:
        place = Path(directory) / "tree"
        git = ["git", "-C", str(root), "worktree"]
        added = subprocess.run(
            [*git, "add", "--quiet", "--detach", str(place), revision],
            capture_output=True,
            text=True,
            check=False,
        )
        if added.returncode:
            raise Failed(f"{revision!r} cannot be checked out: {added.stderr.strip()}")
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def _importing(tree: Path) -> dict[str, str]:
    """Return an environment in which a benchmark, and whatever it starts, imports the package of a tree."""
    return os.environ | {"PYTHONPATH": str(tree)}


def measure(tree: Path, name: str) -> dict[str, float]:
    """Return the figures of a benchmark in a tree; ``name`` may bring options."""
    program, *options = shlex.split(name)
    command = [sys.executable, "-m", f"benchmarks.{program}", *options]
    with subprocess.Popen(
        command, cwd=tree, env=_importing(tree), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as benchmark:
        try:
            printed, said = benchmark.communicate()
        except KeyboardInterrupt:
            benchmark.send_signal(signal.SIGINT)  # not SIGKILL: it ends what it started
            benchmark.communicate()
            raise
    if benchmark.returncode:
        raise Failed(f"benchmark {name!r} failed in {tree}:\n{said.strip()[-2000:]}")
    return {figure: float(value) for figure, value in _FIGURE.findall(printed)}


def compare(root: Path, revision: str, names: Sequence[str], turns: int) -> dict[str, Moved]:
    """Return the figures that a revision and the working tree have both."""
    with checked_out(root, revision) as before:
        for tree in (before, root):
            imported = subprocess.run(
                [sys.executable, "-P", "-c", _IMPORTED],
                env=_importing(tree),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            if Path(imported.stdout.strip()) != tree.resolve():
                raise Failed(f"in {tree} Python imports the package from {imported.stdout.strip()}")
        taken: dict[Path, dict[str, list[float]]] = {before: {}, root: {}}
        for turn in range(turns):
            say(f"turn {turn + 1} of {turns}")
            for name in names:
                for tree in (before, root) if turn % 2 == 0 else (root, before):
                    for figure, value in measure(tree, name).items():
                        taken[tree].setdefault(figure, []).append(value)
    both = [figure for figure in taken[root] if figure in taken[before]]
    for figure in sorted(taken[root].keys() ^ taken[before].keys()):
        say(f"{figure} is of one revision only")
    return {figure: Moved(taken[before][figure], taken[root][figure]) for figure in both}


def report(moved: Mapping[str, Moved]) -> Iterator[str]:
    """Yield a line for each figure: medians and spreads of both sides, and whether it moved."""
    for figure, found in moved.items():
        sides = " -> ".join(
            f"{statistics.median(side):.4g} ± {spread(side):.2g}" for side in (found.before, found.after)
        )
        yield f"{figure}  {sides}  {found} (p = {found.chance:.3f})"


def main() -> int:
    """Compare as the command line says; return 2 where that cannot be done."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/compare",
        description=inspect.getdoc(sys.modules[__name__]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("revision", metavar="REV", help="what the working tree is compared with")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", default=QUICK, help=f"by default {', '.join(QUICK)}"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help=f"at least {FEWEST}, by default {TURNS}")
    options = parser.parse_args()
    if options.turns < FEWEST:
        parser.error(f"--turns must be at least {FEWEST}: fewer turns cannot show that a figure moved")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        moved = compare(Path(__file__).parents[1], options.revision, options.names, options.turns)
    except Failed as failure:
        say(f"benchmarks/compare: {failure}")
        return 2
    except KeyboardInterrupt:
        say("benchmarks/compare: interrupted; nothing was compared")
        return 130
    for line in report(moved):
        print(line)
    return 0
