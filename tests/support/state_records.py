"""Records of a plain state as they lie on its topic, for judges: read without any code of the service."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

import msgspec

FRAME = 1 + 1 + 8 + 16
"""Bytes before the content of a plain state record: version, kind, sequence, check."""


@lru_cache(256)
def outbox(value: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Return the events of an outbox record, and how they are published."""
    events, _ = msgspec.msgpack.decode(zlib.decompress(value[FRAME:]))
    return [(msgspec.json.decode(encoded), encoded) for _, _, encoded in events]


def dataset(value: bytes) -> tuple[str, int, dict[tuple[str, str, int], bytes]]:
    """Return a dataset's name, what its ledger has spent, and the secrets of each open run."""
    _, name, _, _, ledger, _, run_states = msgspec.msgpack.decode(value[FRAME:])
    runs = {(name, monitor, run_state[3]): run_state[4] for monitor, run_state in run_states.items()}
    return name, ledger[3], {run: held for run, held in runs.items() if any(held)}  # zeros once it is closed
