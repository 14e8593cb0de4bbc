"""No timestamp stops a shard: brokers store what producers write, and any number of 64 bits is a timestamp."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.state.accounts import Bounds
from stream_svt.settings.fields import LAST_MS
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import FORMS, MONOTONIC, TOPIC, spec_of

FIRST, LAST = -(2**63), 2**63 - 1
TINY = Bounds(records=2, cost=3, runs=1, rejects=1)
LIMIT = "{names: [a, b, c], limit: 40, unit: one basket}"
STEPS = 6
"""Steps of each query and monitor: its pause ends, its run is opened, it is tested, and sets close before it."""


def timestamps(rng: random.Random) -> Iterator[int]:
    """Yield timestamps of the whole range: near its ends and 0, around a clock that leaps, and any."""
    clock = 1_000_000
    while True:
        near = rng.choice((FIRST, -1, 0, 1, LAST, rng.randrange(FIRST, LAST + 1)))
        clock += rng.choice((0, 1, 500, 5_000, -5_000))
        if rng.random() < 0.05:
            clock = near
        stamp = clock if rng.random() < 0.7 else near + rng.choice((0, 1, -1, 4_000, -4_000))
        clock = max(FIRST, min(clock, LAST))
        yield max(FIRST, min(stamp, LAST))


def queries_of(rng: random.Random, count: int) -> list[Query]:
    stamps = timestamps(rng)
    return [
        Query(
            rng.randrange(3),
            rng.choice((0, 480, 505, 900)),
            rng.choice((None, "s1", "s2", "s3")),
            set_id=f"set{number // 9}",
            closes=rng.random() < 0.05,
            time_ms=next(stamps),
        )
        for number in range(count)
    ]


def command(rng: random.Random, number: int) -> Command:
    action = rng.choice((Action.PAUSE, Action.MUTE, Action.RESUME, Action.RESAMPLE))
    end = rng.choice((1, 1_000_000, LAST_MS))
    series = "s1" if action is Action.MUTE else ""
    until = end if action in (Action.PAUSE, Action.MUTE) else 0
    return Command(id=f"c{number}", action=action, dataset=rng.choice("abc"), until=until, series=series)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", FORMS)
def test_every_timestamp_is_passed_in_few_steps_and_leaves_a_state_that_can_be_read(form, seed):
    rng = random.Random(f"{form} {seed}")
    others = [MONOTONIC[rng.randrange(len(MONOTONIC))]] * (form != "general" and rng.random() < 0.5)
    play = Play(spec_of(FORMS[form], *others, datasets=LIMIT), bounds=rng.choice((TINY, Bounds())))
    queries = queries_of(rng, 120)
    while (first := play.engine.next_offset(TOPIC)) < len(queries):
        last = min(len(queries), first + rng.choice((1, 2, 7, 40)))
        batch, left = batch_of(TOPIC, queries, first, last), STEPS * (last - first) * len(play.engine.runners)
        while not play.engine.step(batch).done:
            play.commit()
            left -= 1
            assert left > 0, f"no progress at offset {play.engine.next_offset(TOPIC)}"
        play.commit()
        if rng.random() < 0.2:
            operations.apply(play.engine, command(rng, first))
            play.commit()
        if rng.random() < 0.3:
            play.crash()
    assert play.alerts()
