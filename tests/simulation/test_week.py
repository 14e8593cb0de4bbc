"""A week on the modelled log: schedules, mutes and periods run out while owners crash and the broker's clock steps."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from stream_svt.monitor.released import EventType
from stream_svt.settings.application import load_spec
from tests.simulation import world as world_module
from tests.simulation.applications import COMMON, OTHER, STREAM, TOPIC, Application, query
from tests.simulation.log import Broker
from tests.simulation.rules import Rules
from tests.simulation.script import RARE, Fault, Script
from tests.simulation.world import CONTROL, World
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, spec_of

DAY = 86_400.0
QUERIES = 1_500
FAULTS = 220
SPEC = load_spec(
    "application: app\n"
    "datasets:\n"
    "  - {names: [a, b], limit: 40, unit: one basket}\n"
    "  - {generate: 'shop-{date}', from: 1970-01-01, lateness: 2h, limit: 2, unit: one basket}\n"
    "monitors:\n"
    f"  - {{name: daily, topic: t, mute: 3h, resample_every: 12h, {STREAM}}}\n"
    f"  - {{name: patient, topic: t, mute: run, max_mutes: 3, datasets: [a, b], {STREAM}, "
    "append: {retry: {attempts: 3, lifetime: 6h, capacity: 5, every: 4}}}\n"
    f"  - {{name: sets, topic: u, mute: none, datasets: [a, b], {COMMON}, max_runs: off, cutoff: 3, "
    "correction: {annealed: {start: 8, end: 2}}, append: {sweep: {close_after: 5h, max_open_sets: 3}}}\n"
)


class Week(World):
    """Minutes to hours pass before every few queries; the broker's clock leaps ahead and back."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, None, Application(SPEC, query))
        self.now = 1_000.0  # its datasets are those of the first days of 1970
        self.skew = 0.0
        self.leaps = 0
        self.written: list[int] = []
        self.broker = Broker(now_ms=lambda: int(1000 * (self.now + self.skew)))
        days = tuple(SPEC.generators[0].periods(0, int(9 * DAY * 1000)))
        self.rules = Rules(self.broker, replace(SPEC, datasets=SPEC.datasets + days))

    def _write(self, count: int) -> None:
        for _ in range(min(count, self.unwritten)):
            self.now += self._writer.expovariate(QUERIES / (7 * DAY))
            if self._writer.random() < 0.02:
                self.skew = self._writer.choice((0.0, 0.0, 3600.0, -5 * 3600.0, 500.0, -DAY))
                self.leaps += 1
            number = self.script.queries - self.unwritten
            key, body = query(self._writer, number)
            topic = self._writer.choice((TOPIC, OTHER))
            if topic == TOPIC and self._writer.random() < 0.5:
                # Mostly the day's own dataset, sometimes the one before, which may be over.
                day = min(int(self.now / DAY), 6) - (self._writer.random() < 0.2)
                key = f"shop-1970-01-0{1 + max(day, 0)}".encode()
            self.written.append(self.broker.write(topic, key, body).timestamp)
            self.unwritten -= 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_week_of_schedules_mutes_periods_faults_and_clock_steps_breaks_no_rule(seed, monkeypatch):
    monkeypatch.setattr(world_module, "MOST_EFFECTS", 200_000)
    chance = random.Random(seed)
    kinds = [kind for kind in Fault if kind not in RARE]
    faults = tuple(
        (at, chance.choice(kinds)) for at in sorted(chance.randrange(1, 9_000) for _ in range(FAULTS))
    )
    week = Week(Script(seed, 0, QUERIES, faults))
    assert week.run() == []
    audit = week.rules.audit
    assert audit.ledgers < 6  # of seven days, those that are over have none any more

    assert max(week.written) - min(week.written) > 6 * DAY * 1000
    assert week.leaps > 5
    assert sorted(week.written) != week.written
    assert week.rules.tops > 60
    events = [msgspec.json.decode(entry.value) for entry in week.broker.read("alerts")]
    kinds = Counter((event["type"], event["data"].get("reason")) for event in events)
    assert kinds[EventType.RUN_CLOSED, "schedule"] > 2
    mutes = [event["data"]["muted_until"] for event in events if event["type"] == EventType.ALERT]
    assert len([until for until in mutes if until is not None]) > 30
    assert kinds[EventType.EXHAUSTED, "budget"] > 0
    assert kinds[EventType.RETIRED, "period-over"] >= 4
    assert kinds[EventType.DECLARED, "first-start"] == audit.ledgers + kinds[EventType.RETIRED, "period-over"]
    rejected = [entry.value for entry in week.broker.read("rejects")]
    assert rejected.count(b"outside-period") > 10
    restarts = sum("dies" in line or "told to stop" in line for line in week.trace)
    assert restarts > 30
    assert list(week.broker.read(CONTROL))


@pytest.mark.parametrize(
    ("times", "alerts"),
    [
        # A leap ahead ends mutes early; the way back does not bring them back.
        ((1_000, 1_500, 90_000, 1_600), [0, 2, 3]),
        # After a leap ahead that was an error, what is muted then stays so until the clock has caught up.
        ((90_000, 1_000, 91_999, 92_000), [0, 3]),
    ],
)
def test_durations_run_on_the_latest_time_that_was_seen(times: tuple[int, ...], alerts: list[int]) -> None:
    """Two series; the third query is of the other one, where only the clock matters."""
    play = Play(spec_of(FORMS["muted for a while"], datasets="{name: a, limit: 9, unit: one basket}"))
    series = ("s", "s", "other", "s") if alerts[1] == 2 else ("s",) * 4
    queries = [Query(0, 90_000, name, time_ms=time) for name, time in zip(series, times, strict=True)]
    for last in range(1, len(queries) + 1):  # whatever the batching, and whoever goes on
        play.feed(TOPIC, queries, last)
        play.commit()
        play.crash()
    found = [event.data.position.offset for event in play.events if event.type == EventType.ALERT]
    assert found == alerts
