"""What the command line says about reasons of refusal."""

from __future__ import annotations

from stream_svt.protocol.controls import Refusal
from stream_svt.service.metrics import REJECT_REASONS
from stream_svt.service.rejects import REMEDIES


def test_every_reason_has_a_remedy() -> None:
    assert REMEDIES.keys() == {*REJECT_REASONS, *Refusal}
