"""A window of many pairs, rebuilt from its log as after a takeover, and counted at its close.

Different pairs of random cells and units come in sorted pieces, as the log of events has them. `bytes_per_pair` is by
how much the resident memory of the process grows at most meanwhile. `rebuild_seconds_per_10m` is the processor time of
all additions and the count, without reading the log. `longest_step_ms` is the longest of all additions and steps of the
count, processor time too, each the fastest of some repetitions: between two of them a counter serves its clients.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from stream_svt.sources.tally import Keys, Tally, pack
from stream_svt.sources.units import HASH_BITS

PROCESS = Path("/proc/self")


def pieces(pairs: int, piece: int, cells: int, seed: int) -> Iterator[Keys]:
    """Yield so many different pairs as sorted pieces, the same ones each time."""
    generator = np.random.default_rng(seed)
    for first in range(0, pairs, piece):
        count = min(piece, pairs - first)
        hashes = generator.integers(0, 2**HASH_BITS >> 24, count, np.uint64) << np.uint64(24)
        hashes |= np.arange(first, first + count, dtype=np.uint64)  # so no two are equal
        yield np.sort(pack(generator.integers(0, cells, count), mixed(hashes)))


def mixed(hashes: Keys) -> Keys:
    """Return 44-bit numbers whose low bits are spread as those of a hash, one to one."""
    mask, odd = np.uint64(2**HASH_BITS - 1), np.uint64(0x9E3779B97F5)
    return ((hashes ^ hashes >> np.uint64(23)) * odd) & mask


def steps(pairs: int, piece: int, cells: int, seed: int) -> list[float]:
    """Return the processor time of each step, in seconds: an addition of a piece, or a part of the count."""
    tally, taken = Tally(np.ones(cells, np.int64)), list[float]()

    def timed(work: Callable[[], object]) -> object:
        began = time.thread_time()
        result = work()
        taken.append(time.thread_time() - began)
        return result

    for keys in pieces(pairs, piece, cells, seed):
        timed(partial(tally.add, keys))
    count = tally.count_in_steps()
    while timed(partial(next, count, None)) is not None:
        pass
    assert tally.counts().sum() == pairs, "every pair counts once"
    return taken


def peak_growth(work: Callable[[], object]) -> int:
    """Return by how many bytes the resident memory of this process grows at most during some work (Linux)."""
    (PROCESS / "clear_refs").write_text("5")  # forgets the earlier peak
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    [kilobytes] = re.findall(rf"{name}:\s+(\d+) kB", (PROCESS / "status").read_text())
    return int(kilobytes) * 1024


def figures(
    pairs: int = 10_000_000, piece: int = 60_000, cells: int = 20_000, repetitions: int = 3, seed: int = 1
) -> dict[str, float]:
    """Return bytes a pair, the time of a rebuild, and the longest step."""
    turns: list[list[float]] = []

    def rebuild() -> None:
        turns.append(steps(pairs, piece, cells, seed))

    steps(10 * piece, piece, cells, seed)  # what is loaded or allocated once belongs to no pair
    grown = peak_growth(rebuild)
    for _ in range(1, repetitions):
        rebuild()
    fastest = np.min(turns, axis=0)
    return {
        "bytes_per_pair": grown / pairs,
        "rebuild_seconds_per_10m": 1e7 / pairs * float(np.median([sum(turn) for turn in turns])),
        "longest_step_ms": 1000 * float(fastest.max()),
    }
