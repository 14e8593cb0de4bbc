"""What the command line says about refused records, whatever their producers wrote."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream_svt.operate.rejects import REMEDIES, Rejects, lines_of
from stream_svt.protocol.controls import Refusal
from stream_svt.worker.metrics import REJECT_REASONS

MICROSECONDS = 1_790_000_000_000_000
"""A time of the year 2026 in the wrong unit."""


def test_every_reason_has_a_remedy() -> None:
    assert REMEDIES.keys() == {*REJECT_REASONS, *Refusal}


@pytest.mark.parametrize("timestamp", [MICROSECONDS, 2**63 - 1])
def test_a_timestamp_that_is_no_date_does_not_hide_a_record(timestamp: int) -> None:
    refused = b'{"topic":"counts","partition":0,"offset":7,"reason":"not-json"}'
    record: Any = SimpleNamespace(timestamp=timestamp, key=b"a", headers=(), value=refused)
    assert f"{timestamp} ms since 1970" in next(lines_of(record, 100))
    found = Rejects({})
    found.take(record)
    assert (found.read, found.unreadable) == (1, 1)
