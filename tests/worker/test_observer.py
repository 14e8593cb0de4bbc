"""What the log says of runs: counts of committed events, one line for each commit."""

from __future__ import annotations

import logging

import pytest

from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import Commit
from stream_svt.worker.metrics import Metrics
from stream_svt.worker.observer import CommitObserver
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import ONE_TOP, spec_of


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def observed(play: Play, caplog: pytest.LogCaptureFixture, *times: int, datasets: int = 1) -> list[str]:
    """Play high queries of all datasets, and return the lines of the commits as one commit would write them."""
    caplog.clear()
    first = len(play.commits)
    play.more(*[Query(dataset, 90_000, time_ms=time) for time in times for dataset in range(datasets)])
    events = [event for commit in play.commits[first:] for event in commit.events]
    CommitObserver(4, Metrics(play.spec, "hash")).committed(Commit(events=events))
    assert {level for level, _ in lines(caplog)} <= {"WARNING"}
    return [line for _, line in lines(caplog)]


def test_a_first_run_is_not_logged_and_later_ones_limits_and_exhaustion_are(caplog):
    play = Play(spec_of(f"{ONE_TOP}, max_runs: 2 per 10s", datasets="{name: a, limit: 3, unit: one basket}"))
    play.more(Query(0, 0, time_ms=500))
    CommitObserver(4, Metrics(play.spec, "hash")).committed(Commit(events=play.events))
    assert lines(caplog) == []
    assert observed(play, caplog, 1000, 2000, 3000) == [
        (
            "event=runs shard=4 begun=1 halted=2 closed=0 limited=1 exhausted=0 on=1 first='a/m0 limited until "
            "1970-01-01 00:00:10 UTC' remedy='control mute, pause or resample'"
        )
    ]
    assert observed(play, caplog, 12_000, 13_000) == [
        (
            "event=runs shard=4 begun=1 halted=1 closed=0 limited=0 exhausted=1 on=1 first='a/m0 exhausted' "
            "remedy='control raise-budget'"
        )
    ]


def test_a_commit_is_one_line_whatever_the_number_of_datasets(caplog):
    names = ", ".join(f"d{number:03}" for number in range(300))
    play = Play(
        spec_of(f"{ONE_TOP}, max_runs: 1 per 10s", datasets=f"{{names: [{names}], limit: 3, unit: b}}")
    )
    assert observed(play, caplog, 1000, 2000, datasets=300) == [
        "event=runs shard=4 begun=0 halted=300 closed=0 limited=300 exhausted=0 on=300 first='"
        + ", ".join(f"d00{number}/m0 limited until 1970-01-01 00:00:11 UTC" for number in range(3))
        + "' remedy='control mute, pause or resample'"
    ]


def test_alerts_and_mutes_alone_are_not_logged(caplog):
    play = Play(
        spec_of(
            f"{ONE_TOP}, max_runs: off".replace("cutoff: 1", "cutoff: 9"),
            datasets="{name: a, limit: 3, unit: b}",
        )
    )
    caplog.set_level(logging.DEBUG)
    assert observed(play, caplog, 1000, 2000) == []
    assert EventType.ALERT in {event.type for event in play.events}
