"""Parts of messages that several rooms write: numbers of things, and lists that are cut."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5
"""Datasets or shards that one message names."""


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 event, 2 events."""
    return f"{number} {noun}{'s' * (number != 1)}"


def more(hidden: int) -> str:
    """Return the number of things that a message leaves out, to append to it; "" for none."""
    return f" and {hidden} more" if hidden > 0 else ""


def listed(things: Sequence[object], most: int, separator: str = ", ") -> str:
    """Return the first things and the number of others: a, b and 3 more."""
    return separator.join(map(str, things[:most])) + more(len(things) - most)


def named(noun: str, things: Sequence[object], most: int) -> str:
    """Return things with a noun before them, of which ``most`` are shown: shard 1, shards 1, 2 and 3 more."""
    return f"{noun}{'s' * (len(things) != 1)} {listed(things, most)}"


def lasting(ms: float) -> str:
    """Return a duration in its two largest units, rounded down: 5h 24m, 2d 3h, 40s."""
    seconds, parts = int(ms // 1000), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        parts.append(f"{number}{unit}" if number else "")
    first = next((place for place, part in enumerate(parts) if part), len(parts) - 1)
    return " ".join(filter(None, parts[first : first + 2])) or f"{ms:.3g}ms"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines whose columns begin one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
