"""A state in which queries are skipped is shown with its begin; events say that it begins and that it ends."""

from __future__ import annotations

from typing import Any

import pytest

from stream_svt.monitor.operations import Action, Command, apply
from stream_svt.monitor.released import EventType, MonitorStatus, ReleasedEvent, decode, encode
from stream_svt.monitor.state.snapshot import BLIND
from stream_svt.monitor.takeover import change_spec
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import ONE_TOP, spec_of

DATASETS = "{name: a, limit: 2, unit: b}"
HIGH = 10**6
BEGIN = 1_780_000_000_000


def play_of(more: str, datasets: str = DATASETS) -> Play:
    return Play(spec_of(f"{ONE_TOP}, {more}", datasets=datasets))


def high(play: Play, *seconds: int) -> None:
    play.more(*[Query(0, HIGH, time_ms=BEGIN + 1000 * one) for one in seconds])


def command(play: Play, action: Action, **more: Any) -> None:
    assert apply(play.engine, Command(id="c", action=action, dataset="a", **more))
    play.commit()


def shown(play: Play) -> tuple[str, int | None]:
    """Return the state and the second since which queries are skipped, None while they are tested."""
    (monitor,) = play.views()[0].monitors
    return monitor.state, (monitor.since - BEGIN) // 1000 if monitor.since else None


def folded(events: list[ReleasedEvent]) -> str:
    status = MonitorStatus()
    for number, event in enumerate(events, 1):
        if event.data.monitor or event.type == EventType.BUDGET_RAISED:
            time = f"2026-01-01T00:00:{number:02}Z"
            status.take(decode(encode(event, application="a", shard=0, time=time, origin="1-a")))
    assert bool(status.blind_ms) == (status.shown in BLIND)
    return status.shown


CAUSES = {
    "exhausted": (
        "max_runs: off",
        3,
        lambda play: None,
        lambda play: command(play, Action.RAISE_BUDGET, limit="9"),
    ),
    "limited": ("max_runs: 1 per 1h", 2, lambda play: None, lambda play: command(play, Action.RESAMPLE)),
    "stopped": ("on_halt: stop", 1, lambda play: None, lambda play: command(play, Action.RESAMPLE)),
    "closed": (
        "max_runs: off",
        1,
        lambda play: command(play, Action.CLOSE),
        lambda play: command(play, Action.RESAMPLE),
    ),
    "paused": (
        "max_runs: off",
        1,
        lambda play: command(play, Action.PAUSE),
        lambda play: command(play, Action.RESUME),
    ),
}
"""By cause: keys of the monitor, the second at which it becomes blind, what an operator does, and what ends it."""


@pytest.mark.parametrize("cause", CAUSES)
def test_it_is_shown_with_its_begin_until_it_ends_and_a_takeover_changes_nothing(cause):
    keys, second, begin, end = CAUSES[cause]
    play = play_of(keys)
    high(play, *range(1, second + 1))
    begin(play)
    state = "stopped" if cause == "closed" else cause
    assert shown(play) == (state, second)
    high(play, 10, 20)
    play.crash()
    high(play, 30)
    assert (shown(play), folded(play.events)) == ((state, second), state)
    end(play)
    assert shown(play)[1] is None
    assert folded(play.events) not in BLIND
    high(play, 40)
    assert play.commits[-1].tested


def test_a_pause_hides_what_is_behind_it_and_the_begin_stays():
    play = play_of("max_runs: off")
    high(play, 1, 2, 3, 10)
    assert shown(play) == ("exhausted", 3)
    command(play, Action.PAUSE)
    assert shown(play) == ("paused", 3)
    assert play.views()[0].monitors[0].beneath == "exhausted"
    command(play, Action.RESUME)
    assert shown(play) == ("exhausted", 3)
    assert play.views()[0].monitors[0].beneath == ""


def test_a_paused_limit_keeps_its_time_beside_that_of_the_pause():
    play = play_of("max_runs: 1 per 1h")
    high(play, 1, 2)
    command(play, Action.PAUSE, until=BEGIN + 60_000)
    (monitor,) = play.views()[0].monitors
    assert (monitor.state, monitor.until) == ("paused", BEGIN + 60_000)
    assert (monitor.beneath, monitor.beneath_until) == ("limited", BEGIN + 3_601_000)


@pytest.mark.parametrize("cause", CAUSES)
def test_an_event_ends_it_where_the_configuration_no_longer_covers_the_dataset(cause):
    keys, second, begin, _ = CAUSES[cause]
    play = play_of(keys, "{names: [a, b], limit: 2, unit: b}")
    high(play, *range(1, second + 1))
    begin(play)
    change_spec(
        play.engine,
        spec_of(f"{ONE_TOP}, {keys}, datasets: [b]", datasets="{names: [a, b], limit: 2, unit: b}"),
    )
    (event,) = [event for event in play.commit().events if event.type is EventType.RUN_CLOSED]
    assert (event.data.dataset, event.data.reason) == ("a", "removed")
