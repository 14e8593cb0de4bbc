"""What several suites on the modelled log share."""

from __future__ import annotations

import pytest

from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.state.accounts import Bounds


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a commit hold a few datasets only, so that commands to many take several."""
    monkeypatch.setattr(operations, "DATASETS_AT_ONCE", 7)
    monkeypatch.setattr(operations, "AT_ONCE", 11)
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "bounds", Bounds(records=10))
