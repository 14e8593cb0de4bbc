"""Deciles with noise, charged before they are released, each once."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest

from stream_svt.columns.query_batch import DECILES, DecilesRequest
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.monitor.released import EventType, Lifecycle
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.monitor.takeover import change_spec
from stream_svt.proving.streams import QueryRecord, Row, batch_of_records
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec
from tests.support.counts import ERRORS, SOURCE, TOPIC, VISITORS, counting
from tests.support.deciles import ONE, PARTS, REFUSED, asked, record
from tests.support.engine_play import Play

SMALL = Bounds(runs=1, records=1, rejects=1, cost=1)


def counts(dataset: int = 0, value: int = 3) -> QueryRecord:
    return QueryRecord((Row(dataset, value * PARTS, "s1"),), measure="visitors")


def played(*records: QueryRecord, bounds: Bounds = BOUNDS, form: str = "", crash: int = 0) -> Play:
    play = Play(counting(f"{VISITORS}{form}", VISITORS), bounds=bounds)
    for last in range(1, len(records) + 1):
        first = play.engine.next_offset(TOPIC) or 0
        play.step(batch_of_records(TOPIC, records[first:last], first))
        if last == crash:
            play.crash()
            first = play.engine.next_offset(TOPIC) or 0
            play.step(batch_of_records(TOPIC, records[first:last], first))
    play.commit()
    return play


def looks(play: Play) -> list[Lifecycle]:
    return [
        one.data for one in play.events if one.type == EventType.DECILES and isinstance(one.data, Lifecycle)
    ]


def test_a_look_says_nine_rising_deciles_less_the_threshold_and_what_they_cost():
    play = played(counts(), record())
    (found,) = looks(play)
    assert (found.dataset, found.monitor, found.run, found.reason) == ("a", "m0", 1, "released")
    assert found.account is not None
    assert found.account.charge == 0.1
    assert (
        play.ledger().spent
        == UNITS_PER_EPSILON // 10
        + sum(state.spent for state in map(play.run_state, [0, 0], ["m0", "m1"]) if state is not None)
        - ONE.epsilon
    )
    assert play.run_state().spent - play.run_state(0, "m1").spent == ONE.epsilon
    detail = found.detail
    assert detail["deciles"] == sorted(detail["deciles"])
    assert len(detail["deciles"]) == DECILES
    assert {name: detail[name] for name in ("request", "from", "until", "values", "scale")} == {
        "request": "one",
        "from": 1_000,
        "until": 2_000,
        "values": 63,
        "scale": 90.0,
    }


def test_the_noise_has_its_law():
    play = Play(counting(VISITORS, datasets="{names: [a, b, c], limit: 1000}"))
    values = [500 + 10**6 * place for place in range(9)]
    each = [record(replace_id(f"l{number}"), values=values) for number in range(400)]
    play.step(batch_of_records(TOPIC, each, 0))
    play.commit()
    noise = [one - 10**6 * place for look in looks(play) for place, one in enumerate(look.detail["deciles"])]
    assert len({*noise}) > 300
    rate = 1 / 90
    spread = 2 * math.exp(-rate) / (1 - math.exp(-rate)) ** 2
    assert abs(np.mean(noise)) < 5 * (spread / len(noise)) ** 0.5
    assert np.var(noise) == pytest.approx(spread, rel=0.1)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.07


def replace_id(name: str) -> DecilesRequest:
    return msgspec.structs.replace(ONE, id=name)


def test_a_look_is_charged_once_whatever_stops_the_shard():
    records = [counts(), record(), counts(1), record(replace_id("two"), 1), counts(2)]
    whole = looks(played(*records))
    assert [one.detail["request"] for one in whole] == ["one", "two"]
    for crash in range(1, len(records) + 1):
        for bounds in (BOUNDS, SMALL):
            play = played(*records, crash=crash, bounds=bounds)
            assert looks(play) == whole
    assert whole[0].detail["deciles"] != whole[1].detail["deciles"]


def test_what_an_id_and_a_position_have_had_as_noise_no_other_look_has():
    play = played(record(), record(), record(replace_id("two")))
    first, again, other = (one.detail["deciles"] for one in looks(play))
    assert len({*map(tuple, (first, again, other))}) == 3


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refused_look_costs_nothing_and_says_why(reason):
    (found,) = looks(asked(*REFUSED[reason]))
    assert found.reason == reason
    assert found.account is not None
    assert (found.account.charge, found.account.spent) == (0, 0)
    assert found.detail["deciles"] == []


@pytest.mark.parametrize("tested", ["errors", "monitor m0 0123456789ab", ""])
def test_a_look_at_values_that_the_monitor_does_not_test_is_refused(tested):
    """They may move further than the noise of what it tests hides."""
    (found,) = looks(played(counts(), record(msgspec.structs.replace(ONE, tested=tested))))
    assert (found.reason, found.detail["deciles"]) == ("no-monitor", [])
    assert found.run == 1  # of the open run: readers take an event's run as the newest


def test_a_look_is_refused_in_a_replay_after_its_measure_was_removed():
    play = played()
    play.take_over(counting(ERRORS, source=SOURCE.replace("{name: visitors}, ", "")))
    play.step(batch_of_records(TOPIC, [record()], 0))
    play.commit()
    assert [one.reason for one in looks(play)] == ["no-monitor"]


def test_a_look_is_not_taken_again_by_a_monitor_that_begins_at_its_record():
    play = Play(counting(VISITORS), bounds=SMALL)
    batch = batch_of_records(TOPIC, [record(), counts()], 0)
    play.engine.step(batch)
    play.commit()
    change_spec(play.engine, counting(VISITORS, ERRORS))
    play.step(batch)
    play.commit()
    assert [one.detail["request"] for one in looks(play)] == ["one"]


def test_a_topic_that_is_read_again_from_its_begin_charges_for_no_look_again():
    whole = counting(VISITORS)
    (monitor,) = whole.monitors
    query = monitor.model_copy(update={"name": "other", "topic": "t", "source": None, "measure": None})

    def spec(*monitors: MonitorSpec) -> ApplicationSpec:
        return ApplicationSpec(whole.application, whole.datasets, monitors, sources=whole.sources)

    play = Play(spec(query, monitor))
    records = [record(), record(replace_id("two"))]
    play.step(batch_of_records(TOPIC, records, 0))
    play.commit()
    play.crash()
    for monitors in ([query], [query, monitor]):
        change_spec(play.engine, spec(*monitors))
    assert play.engine.next_offset(TOPIC) is None
    play.engine.begin(TOPIC, 0)
    play.step(batch_of_records(TOPIC, [*records, record(replace_id("three"))], 0))
    play.commit()
    found = [(one.detail["request"], one.reason) for one in looks(play)]
    assert found == [(name, "released") for name in ("one", "two")] + [
        ("one", "again"),
        ("two", "again"),
        ("three", "released"),
    ]
    assert play.ledger().spent == 3 * ONE.epsilon
    assert b"l/a" in play.records
    play.retire(dataclasses.replace(whole, datasets=whole.datasets[1:]))
    assert b"l/a" not in play.records


def test_what_open_runs_reserve_is_not_spent_on_a_look():
    play = played(counts(), record(msgspec.structs.replace(ONE, epsilon=9 * UNITS_PER_EPSILON)))
    assert [one.reason for one in looks(play)] == ["budget"]


def test_a_look_at_answers_to_a_question_has_the_noise_that_they_need():
    source = SOURCE.replace("measures: [", "measures: [{name: parts, where: {status: [500]}}, ")
    usual = f"{VISITORS}, usual: {{every: 2h, times: 2, factor: 1.5}}"
    play = Play(counting(usual, source=source))
    tested = play.spec.monitors[0].tested or ""
    play.step(batch_of_records(TOPIC, [record(msgspec.structs.replace(ONE, tested=tested))], 0))
    play.commit()
    (found,) = looks(play)
    # One unit moves a difference by -1.5 to 1, in steps of a half.
    assert found.detail["scale"] == 9 * 1.5 / 0.1
