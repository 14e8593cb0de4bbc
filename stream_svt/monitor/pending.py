"""Queries that wait for another test: open sets (swept when they close) and retry queues.

What waits is secret: it holds true values. It is stored exactly, so that after a takeover it is what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.mutes import Mutes
from stream_svt.monitor.queue_journal import NUMBER_BYTES, Queue, sweep_up_to
from stream_svt.monitor.snapshot import Block, OpenSet, Waiting, size_of

_BLOCK_BYTES = 60_000
"""A block whose line is longer is stored in halves: it is written again as a whole."""


@dataclass(slots=True, repr=False)
class Waits:
    """Queries that wait, as columns; ``numbers`` has rows for offset, row, value and threshold, in grid steps."""

    numbers: NDArray[np.int64]
    series: list[str | None]
    query_id: list[str]

    @staticmethod
    def of(blocks: list[Block]) -> Waits:
        """Return the queries in blocks."""
        columns = [np.frombuffer(block.numbers, dtype="<i8").reshape(4, -1) for block in blocks]
        return Waits(
            np.concatenate(columns, axis=1).astype(np.int64),
            [series for block in blocks for series in block.series],
            [query_id for block in blocks for query_id in block.query_id],
        )

    def part(self, rows: slice) -> Waits:
        """Return some of the queries."""
        return Waits(self.numbers[:, rows], self.series[rows], self.query_id[rows])


@dataclass(slots=True, repr=False, eq=False)
class OpenSets(Queue[OpenSet | Block]):
    """The open sets of a monitor on a dataset. ``blocks`` has the queries that wait, by set: the bottoms of a batch."""

    kind: ClassVar[int] = 0
    holds: ClassVar[tuple[type, ...]] = (OpenSet, Block)

    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of open sets."""
        return len(self.blocks)

    @property
    def waiting(self) -> int:
        """Return the number of queries that wait in open sets."""
        return sum(map(self.size_of, self.blocks))

    def open(self, set_id: str) -> OpenSet | None:
        """Return an open set, None where none of this name is open."""
        found = self.entries.get(set_id)
        return found if isinstance(found, OpenSet) else None

    def size_of(self, set_id: str) -> int:
        """Return the number of queries that wait in a set."""
        return sum(len(block.query_id) for block in self.blocks[set_id])

    def begin(self, set_id: str, opened_ms: int) -> OpenSet:
        """Open a set."""
        self.count += 1
        opened = OpenSet(self.count, set_id, opened_ms, 0)
        self.blocks[set_id] = []
        self.put(set_id, opened)
        return opened

    def add_tops(self, growing: OpenSet, tops: int) -> None:
        """Count tops found in a set."""
        self.put(growing.set_id, msgspec.structs.replace(growing, tops=growing.tops + tops))

    def add(self, growing: OpenSet, waits: Waits) -> None:
        """Keep the bottoms of one batch."""
        numbers = waits.numbers.astype("<i8").tobytes()
        block = Block(self.count + 1, growing.number, numbers, waits.series, waits.query_id)
        if size_of(block) > _BLOCK_BYTES and len(waits.series) > 1:
            half = len(waits.series) // 2
            self.add(growing, waits.part(slice(half)))
            self.add(growing, waits.part(slice(half, None)))
            return
        self.count += 1
        self.blocks[growing.set_id].append(block)
        self.put(block.number, block)

    def close(self, set_id: str) -> None:
        """Forget a set."""
        self.remove(set_id)
        for block in self.blocks.pop(set_id):
            self.remove(block.number)

    def forget(self) -> None:
        """Close all sets."""
        for set_id in list(self.blocks):
            self.close(set_id)

    def settle(self) -> None:
        """See `Queue`."""
        names = {entry.number: entry.set_id for entry in self.entries.values() if isinstance(entry, OpenSet)}
        self.blocks = {set_id: [] for set_id in names.values()}
        for block in self.entries.values():
            if isinstance(block, Block):
                if block.owner not in names:
                    raise ValueError(f"there is no line of set {block.owner}")
                if {len(block.numbers), 32 * len(block.series)} != {32 * len(block.query_id)}:
                    raise ValueError("its columns are not of one length")
                self.blocks[names[block.owner]].append(block)


@dataclass(slots=True, repr=False, eq=False)
class RetryQueue(Queue[Waiting]):
    """Series whose last test was a bottom, oldest first. ``count`` is the number of queries seen."""

    kind: ClassVar[int] = 1
    holds: ClassVar[tuple[type, ...]] = (Waiting,)

    def attempt(self, place: Waiting) -> int:
        """Return how often a place was tested."""
        return 1 + self.sweeps - place.begun

    def swept(self, last: Waiting | None = None) -> None:
        """Take note that all places had one more attempt, or those up to the ``last`` one."""
        if last is None:
            self.sweeps += 1
        else:
            sweep_up_to(last.number, self.entries.values())
            self.cut.append(last.number)
        self.journal.note(self, NUMBER_BYTES)


KINDS: Mapping[int, type[Queue[Any]]] = {kind.kind: kind for kind in (OpenSets, RetryQueue, Mutes)}
