from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale.loop_lag import Lag


@pytest.fixture
def lag(tmp_path: Path) -> Lag:
    """Return the late beats of two workers, the second of which loses its place once."""
    one, other, log = (tmp_path / name for name in ("one", "other", "log"))
    one.write_text("105.0 0.2\n112.0 0.4\n")
    other.write_text("112.5 0.3\n121.5 2.0\n")
    log.write_text(
        "WARNING Heartbeat failed for group x because it is rebalancing\n"
        "WARNING Heartbeat session expired - marking coordinator dead\n"
    )
    return Lag([(100.0, "start"), (110.0, "pages"), (120.0, "end")], [one, other], [log])


def test_a_hold_belongs_to_the_phase_in_which_it_began(lag: Lag) -> None:
    assert lag.worst() == {"start": 0.2, "pages": 2.0, "end": 0.0}


def test_a_rebalance_is_no_loss_of_a_place(lag: Lag) -> None:
    assert lag.losses() == 1
