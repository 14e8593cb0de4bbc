"""State records sorted by what their keys say, in slices of a few milliseconds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Mapping

from stream_svt.errors import UnreadableState

Parts = list[tuple[int, bytes]]
"""Numbered state records."""
Named = list[tuple[str, bytes]]
"""State records of one kind, with what follows the kind in their keys."""

KEYS_AT_ONCE = 10_000
"""Keys that are sorted between two yields."""

_PART_KEY = re.compile(r"(.+)/([^/]+)/([0-9]{1,18})", re.DOTALL)
_QUEUE_KEY = re.compile(r"[0-9]{1,18}")


def by_kind(records: Mapping[bytes, bytes]) -> Generator[None, None, Mapping[str, Named]]:
    """Return the state records by kind, each with the rest of its key; yields now and then."""
    found: dict[str, Named] = defaultdict(list)
    for count, (key, data) in enumerate(records.items(), start=1):
        kind, _, rest = key.decode().partition("/")
        found[kind].append((rest, data))
        if count % KEYS_AT_ONCE == 0:
            yield
    return found


def parts_of(kind: str, named: Named) -> Generator[None, None, dict[str, dict[str, Parts]]]:
    """Return numbered state records of a kind by dataset and monitor; yields now and then.

    Raises:
        UnreadableState: A key is not of this form.
    """
    parts: dict[str, dict[str, Parts]] = {}
    for count, (rest, data) in enumerate(named, start=1):
        found = _PART_KEY.fullmatch(rest)
        if found is None:
            raise _strange(kind, rest)
        dataset, monitor, number = found.groups()
        parts.setdefault(dataset, {}).setdefault(monitor, []).append((int(number), data))
        if count % KEYS_AT_ONCE == 0:
            yield
    return parts


def queue_records(named: Named) -> Parts:
    """Return the records of the queue journal, in order of their numbers.

    Raises:
        UnreadableState: A key is no number.
    """
    for rest, _ in named:
        if _QUEUE_KEY.fullmatch(rest) is None:
            raise _strange("w", rest)
    return sorted((int(rest), data) for rest, data in named)


def _strange(kind: str, rest: str) -> UnreadableState:
    return UnreadableState(f"state record {f'{kind}/{rest}'.encode()!r} has a key that no release writes")
