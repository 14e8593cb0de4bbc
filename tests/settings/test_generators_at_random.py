"""Generated datasets under random configurations, times, lags and takeovers: no ledger begins twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.settings.application import ApplicationSpec
from tests.settings.test_generators import MONITOR, spec_of
from tests.support.generated_play import GeneratedPlay, at, day, watermarks

ENDED = {EventType.RETIRED, EventType.BALANCE}


def _spec(chance: random.Random, today: int) -> ApplicationSpec | None:
    """Return some specification, None where it is refused."""
    names = chance.choice(["[a]", "[a, b]", "[b, c]"])
    first = chance.choice(["2025-12-29", "2026-01-05", "2026-01-07"])
    lateness = chance.choice(["0s", "6h", "30h", "3d"])
    daily = f"{{generate: '{{name}}-{{date}}', names: {names}, from: {first}, lateness: {lateness}, limit: 2, unit: u}}"
    weekly = "{generate: 'w{iso_week}', from: 2026-01-05, lateness: 1d, limit: 2, unit: u}"
    later = day(max(3, today + 1), prefix="")[1:]
    datasets = chance.choice(
        [
            [daily],
            [daily],
            [daily, weekly],
            [
                daily.replace("lateness", f"until: {later}, lateness"),
                daily.replace(first, later).replace("limit: 2", "limit: 3"),
            ],
            ["{name: plain, limit: 2, unit: u}"],
            [f"{{name: {day(max(0, today - chance.randrange(4)), prefix='a')}, limit: 2, unit: u}}"],
        ]
    )
    monitors = [f"{{name: m, topic: t, datasets: ['{chance.choice(['*', '*', 'a*', 'b*'])}'], {MONITOR}}}"]
    if chance.random() < 0.5:
        monitors.append(f"{{name: n, topic: u, {MONITOR}}}")
    try:
        return spec_of(*datasets, monitors="\n  - ".join(monitors))
    except ConfigError:
        return None


def _play(chance: random.Random) -> GeneratedPlay:
    spec = None
    while spec is None:
        spec = _spec(chance, 0)
    play = GeneratedPlay(spec)
    play.adopt()
    today, marks = 0.0, dict[str, int]()
    clocks = {"t": 0.0, "u": 0.0}
    for _ in range(chance.randrange(40, 90)):
        match chance.choice(("ask", "ask", "ask", "ask", "roll", "die", "wait", "apply")):
            case "ask":
                today += chance.choice([0, 0.01, 0.3, 0.5])
                topic = chance.choice("tu")
                lag = chance.choice([0, 0, 1, 2.5]) if topic == "u" else 0
                clocks[topic] = max(clocks[topic], today - lag)
                number = max(0, int(clocks[topic]) - chance.choice([0, 0, 0, 1, 2, 5]))
                names = [
                    "plain",
                    f"w2026-w{2 + number // 7:02}",
                    *(day(number, prefix=name) for name in "aabbcc"),
                ]
                moment = at(clocks[topic]) + chance.randrange(-3_600_000, 3_600_000)
                play.ask(chance.choice(names), moment, chance.choice([0, 9, 9]), topic=topic)
            case "roll":
                play.roll(at(today))
            case "die":
                play.open(now_ms=at(today))
            case "wait":
                play.adopt(idle_ms=at(today) - 3_600_000)
            case "apply":
                _apply(play, _spec(chance, int(today)), at(today))
        now = dict(watermarks(play))
        assert now | marks == now or all(now[pattern] >= mark for pattern, mark in marks.items())
        marks = now
    return play


def _apply(play: GeneratedPlay, spec: ApplicationSpec | None, now_ms: int) -> None:
    """Go on with a specification, or with the one before where the state refuses it."""
    if spec is None:
        return
    before, stored = play.spec, (dict(play.records), play.progress, len(play.events))
    try:
        play.open(spec, now_ms)
        play.adopt()
    except ConfigError:
        play.records, play.progress, count = stored
        del play.events[count:]
        play.open(before)
        play.adopt()


@pytest.mark.parametrize("seed", range(6))
def test_no_ledger_of_a_period_begins_twice_or_goes_on_after_its_end(seed: int) -> None:
    kinds: Counter[EventType] = Counter()
    for number in range(8):
        play = _play(random.Random(100 * seed + number))
        declared, retired = set[str](), set[str]()
        for event in play.events:
            name = event.data.dataset
            kinds[event.type] += 1
            assert name not in retired or event.type in ENDED
            if event.type is EventType.DECLARED:
                assert name not in declared
                declared.add(name)
            if event.type is EventType.RETIRED:
                retired.add(name)
    assert kinds[EventType.RETIRED] > 5
    assert kinds[EventType.DECLARED] > kinds[EventType.RETIRED]
