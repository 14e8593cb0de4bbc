"""The takeover benchmark measures what it says, in a tiny form."""

from __future__ import annotations

import pytest

from benchmarks import takeover


@pytest.mark.kafka
@pytest.mark.soak
def test_it_gives_the_time_of_a_restore_and_of_a_takeover() -> None:
    found = takeover.figures(datasets=40, restores=1, kills=1)
    assert set(found) == {"restore_100k_seconds", "kill_to_ready_minus_session_timeout"}
    assert found["restore_100k_seconds"] > 0
    # Kafka waits for the session to end; a worker that was not killed would not have been missed at all.
    assert found["kill_to_ready_minus_session_timeout"] > -takeover.SESSION
