"""Hash tables of numbers with linear probing, for many keys at once; the caller compares the keys themselves."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Table: TypeAlias = NDArray[np.int32]
"""Numbers by slot; as many slots as a power of two."""

EMPTY: Final = -1
"""What a slot without a number holds."""


def empty_table(slots: int) -> Table:
    """Return a table without numbers, of so many slots: a power of two."""
    return np.full(slots, EMPTY, dtype=np.int32)


def first_slot(table: Table, hashed: int) -> int:
    """Return the slot at which the search for one hash begins."""
    return hashed >> 65 - len(table).bit_length()


def first_slots(table: Table, hashes: NDArray[np.uint64]) -> Integers:
    """Return the slots at which the search for hashes begins."""
    return (hashes >> np.uint64(65 - len(table).bit_length())).view(np.int64)


def next_slots(table: Table, slots: Integers) -> Integers:
    """Return the slots at which the search goes on where other numbers took these."""
    return (slots + 1) & (len(table) - 1)


def enter(table: Table, numbers: Table, slots: Integers) -> None:
    """Enter numbers that the table lacks, each at the first empty slot from its own on."""
    while len(numbers):
        is_free = table[slots] == EMPTY
        table[slots[is_free]] = numbers[is_free]  # the last one, where several have one slot
        is_waiting = table[slots] != numbers
        numbers, slots = numbers[is_waiting], next_slots(table, slots[is_waiting])
