"""The declaration of the answers on a topic can only become more cautious."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream_svt.errors import ConfigError, UnreadableState
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.snapshot import State, TopicRecord, from_bytes, to_bytes
from stream_svt.monitor.takeover import change_spec
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, ample_play, ample_spec, assert_books_balance, changed_to

_ONE = FORMS["never muted"]
_FIVE = _ONE.replace("sensitivity: 1", "sensitivity: 5")
_GENERAL = _ONE.replace("monotonic: true", "monotonic: false")
_UNSAID = _ONE.replace("monotonic: true, ", "")
_ELSEWHERE = _ONE.replace("topic: t", "topic: u")

either_way = pytest.mark.parametrize("restart", [False, True])
more_cautious = pytest.mark.parametrize(
    ("cautious", "field"), [(_FIVE, "sensitivity"), (_GENERAL, "monotonic")]
)


def _change(play: Play, *forms, restart=False) -> list:
    """Continue with another configuration: while running, or by a start with another file."""
    play.commit()
    play.spec = ample_spec(*forms)
    if restart:
        play.crash()
    return changed_to(play, *forms)


def _closed(events) -> list[tuple[str, str, str]]:
    data = [event.data for event in events if event.type is EventType.RUN_CLOSED]
    return [(one.monitor, one.dataset, one.reason) for one in data]


@either_way
@pytest.mark.parametrize(
    ("old", "new", "field", "remedy"),
    [
        (_FIVE, [_ONE], "m0.sensitivity", "Declare at least 5, or let the monitor read another query topic"),
        (_GENERAL, [_ONE], "m0.monotonic", "Declare monotonic: false, or let the monitor read another"),
        (_UNSAID, [_ONE], "m0.monotonic", "Declare monotonic: false"),
    ],
)
def test_less_than_was_declared_is_refused_and_nothing_changes(old, new, field, remedy, restart):
    """Answers of sensitivity five, tested with noise for one, lose five times the charge."""
    play = ample_play(old)
    with pytest.raises(ConfigError, match=rf"monitors\.{field}: topic 't' was declared .*{remedy}"):
        _change(play, *new, restart=restart)
    assert play.engine.runners["m0"].spec == ample_spec(old).monitors[0]
    assert play.run_state().state is State.RUNNING


@either_way
@pytest.mark.parametrize("new", [_FIVE, _GENERAL, _UNSAID], ids=["sensitivity", "not monotonic", "unsaid"])
def test_a_rise_closes_the_open_runs_before_anything_is_tested_under_it(new, restart):
    play = ample_play(_ONE)
    assert play.ledger().reserved > 0
    assert _closed(_change(play, new, restart=restart)) == [("m0", name, "changed") for name in "abc"]
    assert play.ledger().reserved == 0
    at = play.engine.next_offset(TOPIC)
    play.play(TOPIC, [*([Query(0, 0)] * at), Query(0, 10**5)])
    assert (play.run_state().run, play.events[-1].data.spec_hash) == (2, ample_spec(new).monitors[0].hash())
    assert_books_balance(play)


@either_way
@more_cautious
def test_a_rise_is_one_of_all_monitors_that_read_the_topic(cautious, field, restart):
    """Both monitors test the same answers: one that declares less would lose more than it charges."""
    for part in ((_ONE, cautious), (cautious, _ONE), (_ONE, _ONE, cautious)):
        unchanged = 1 if part[0] == cautious else 0
        with pytest.raises(ConfigError, match=rf"monitors\[{unchanged}\]\.{field}: monitor .* declares"):
            ample_spec(*part)
    play = ample_play(_ONE, _ONE)
    closed = _closed(_change(play, cautious, cautious, restart=restart))
    assert {(one, dataset) for one, dataset, _ in closed} == {
        (m, dataset) for m in ("m0", "m1") for dataset in "abc"
    }


@either_way
@more_cautious
def test_a_declaration_outlives_its_monitor(cautious, field, restart):
    """Removed by one configuration and added again by the next, with restarts between."""
    play, removed = ample_play(cautious), ample_spec(_ELSEWHERE)
    play.spec = replace(removed, monitors=(removed.monitors[0].model_copy(update={"name": "other"}),))
    change_spec(play.engine, play.spec)
    play.commit()
    play.crash()
    play.commit()
    with pytest.raises(ConfigError, match=rf"monitors\.m0\.{field}"):
        _change(play, _ONE, restart=restart)
    _change(play, cautious, restart=restart)
    record = from_bytes(TopicRecord, play.records[b"t/t"], key="t/t")
    assert record == TopicRecord(1, "5" if field == "sensitivity" else "1", field == "monotonic")


def test_one_topic_says_nothing_of_another():
    play = ample_play(_FIVE)
    _change(play, f"{_FIVE}, beta: 0.5", f"{_ELSEWHERE}, beta: 0.5", restart=True)
    assert [runner.spec.sensitivity for runner in play.engine.runners.values()] == [5, 1]


@pytest.mark.parametrize("form", ["sweep", "retry"])
@pytest.mark.parametrize(
    "change",
    [
        ("sensitivity: 1", "sensitivity: 2"),
        ("monotonic: true", "monotonic: false"),
        ("sensitivity: 1", "sensitivity: 1, granularity: 1/2"),
        ("bounds: [0, 100000]", "bounds: [0, 90000]"),
    ],
    ids=lambda change: change[1],
)
def test_what_waits_is_dropped_where_it_was_measured_or_declared_otherwise(form, change):
    play = ample_play(FORMS[form])
    assert play.runs().queued(0) == 4
    _change(play, FORMS[form].replace(*change))
    assert [play.runs().queued(number) for number in range(3)] == [0, 0, 0]
    play.crash()
    assert play.runs().queued(0) == 0


def test_a_rise_on_a_topic_that_was_not_read_again_closes_runs_at_their_full_price():
    """Lost outcomes of an earlier owner are not computed again."""
    play = ample_play(_ONE)
    play.spec = ample_spec(_FIVE)
    before, left = play.ledger().spent, play.run_state().left
    change_spec(play.engine, play.spec, {TOPIC})
    assert {reason for *_, reason in _closed(play.commit().events)} == {"unread"}
    assert play.ledger().spent == before + left


@pytest.mark.parametrize("sensitivity", ["", "1/0", "five"])
def test_a_declaration_that_cannot_be_read_stops_the_shard(sensitivity):
    play = ample_play(_ONE)
    play.records[b"t/t"] = to_bytes(TopicRecord(1, sensitivity, False))
    with pytest.raises(UnreadableState, match="t/t"):
        play.crash()
