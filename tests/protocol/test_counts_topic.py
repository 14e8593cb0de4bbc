"""A shard on a topic of counts: where it begins, how it waits for what is lost, and that it shows no offset of it."""

from __future__ import annotations

import msgspec
import pytest

from stream_svt.columns.query_batch import DecilesRequest
from stream_svt.errors import ApplicationClosed, TimestampAhead
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.snapshot import ProgressRecord, from_bytes
from stream_svt.protocol.shard_states import Cause, ShardStatus
from stream_svt.settings.application import ApplicationSpec
from stream_svt.sources.counts import record_of_deciles
from tests.simulation.log import Entry, Fate, finish
from tests.simulation.model import Model, has
from tests.support.counts import ERRORS, HOUR_MS, SOURCE, TOPIC, VISITORS, WINDOW_MS, Counts, counting

OFF = ", mute: none, max_runs: off"
SPEC = counting(VISITORS + OFF, ERRORS + OFF, datasets="{names: [a, b, c], limit: 90}")
DAILY = SOURCE.replace('{pattern: "{name}", field: ward, names: [a, b, c]}', "'web-{date}'")
PERIODS = counting(
    VISITORS + OFF,
    source=DAILY,
    datasets="{generate: 'web-{date}', from: 2026-09-21, lateness: 1h, limit: 9}",
)
BEGINS = WINDOW_MS / 1000 + 3700
"""A minute after the first window has closed, in seconds since 1970."""


def model_of(spec: ApplicationSpec, **more: object) -> Model:
    return Model(spec, start_at="latest", now=BEGINS, **more)  # type: ignore[arg-type]


def write(model: Model, *windows: int, dataset: str = "a", values: tuple[int, ...] = (90_000,)) -> None:
    """Write the records of both measures about windows, by their hours since the first one, each in a transaction."""
    (source,) = model.spec.sources
    for hour in windows:
        begin = WINDOW_MS + hour * HOUR_MS
        epoch = model.broker.fence("counter")
        for measure in source.measures:
            row = [*values, *[0] * (7 - len(values))]
            one = Counts(source, measure.name, dataset, row, begin, begin + HOUR_MS + 60_000)
            model.broker.append("counter", epoch, TOPIC, one.key, one.value)
            entry = model.broker.partitions[TOPIC][-1]
            entry.timestamp, entry.headers = one.tick, one.headers
        model.broker.end("counter", epoch)
        model.broker.settle()


def look(model: Model, name: str) -> None:
    """Write a request for deciles of the first day."""
    (source,) = model.spec.sources
    (tested,) = (one.tested or "" for one in model.spec.monitors)
    request = DecilesRequest(name, "m0", tested, 1, WINDOW_MS, WINDOW_MS + 24 * HOUR_MS, 9)
    one = record_of_deciles(source, "web-2026-09-21", request, range(9), WINDOW_MS + 25 * HOUR_MS)
    epoch = model.broker.fence("counter")
    model.broker.append("counter", epoch, TOPIC, one.dataset.encode(), one.content)
    entry = model.broker.partitions[TOPIC][-1]
    entry.timestamp, entry.headers = one.timestamp_ms, one.headers
    model.broker.end("counter", epoch)
    model.broker.settle()


def told(model: Model) -> list[tuple[str, str]]:
    """Return the alerts: monitor, and the window with its tick."""
    alerts = model.told(EventType.ALERT)
    assert all(data["position"]["offset"] == -1 for data in alerts)
    assert [data["position"]["window"] for data in alerts] == [data["query_id"] for data in alerts]
    return [(data["monitor"], data["query_id"][:16]) for data in alerts]


def test_a_new_topic_of_counts_is_read_from_its_begin_and_nothing_is_repeated_by_a_successor() -> None:
    model = model_of(SPEC)
    write(model, 0)
    model.serve()
    expected = [("m0", "2026-09-21T00:00"), ("m1", "2026-09-21T00:00")]
    assert told(model) == expected
    model.serve(3)
    model.dies_at(has(EventType.ALERT), opened=lambda: write(model, 1))
    assert told(model) == expected
    model.serve(3)
    assert told(model) == [*expected, ("m0", "2026-09-21T01:00"), ("m1", "2026-09-21T01:00")]


def test_a_source_that_an_applied_configuration_adds_is_read_from_the_begin_of_its_counts() -> None:
    first = counting(VISITORS + OFF)
    query = (
        counting(VISITORS + OFF)
        .monitors[0]
        .model_copy(update={"name": "other", "topic": "t", "source": None, "measure": None})
    )
    model = model_of(ApplicationSpec(first.application, first.datasets, (query,)))
    model.serve()
    model.spec, model.version = first, (1, "with a source")
    write(model, 0)
    model.serve(2)
    assert told(model) == [("m0", "2026-09-21T00:00")]


def test_only_the_newest_tick_tested_is_shown() -> None:
    model = model_of(SPEC)
    write(model, 0, 1)
    status = model.serve().status
    assert (status.offsets, status.lag) == ({}, {})
    assert status.ticks == status.read_ms == {TOPIC: WINDOW_MS + 2 * HOUR_MS + 60_000}


def lost(model: Model) -> None:
    """Let retention delete records that were not read."""
    write(model, 0)
    model.serve()
    write(model, 1, 2)
    model.broker.first[TOPIC] = 7


def shown(model: Model, status: ShardStatus) -> str:
    """Return all that is released of a shard."""
    rejects = [(entry.key, entry.value) for entry in model.broker.read("rejects")]
    whole = [status.reason, status.offsets, status.lag, status.ticks, model.events, rejects]
    return msgspec.json.encode(whole).decode()


def test_a_shard_waits_for_an_acceptance_of_lost_counts_that_names_no_offset(caplog) -> None:
    model = model_of(SPEC)
    lost(model)
    status = model.waits()
    assert status.cause is Cause.RECORDS_LOST
    assert f"accept-loss -c FILE --shard 0 --topic {TOPIC}' continues" in status.reason
    assert "offset" not in shown(model, status).replace('"offset":-1', "")
    model.command("accept", action=Action.ACCEPT_LOSS, topic=TOPIC)
    model.serve(2)
    assert told(model)[2:] == [("m1", "2026-09-21T02:00")]
    assert model.replies() == [("accepted", 1, f"reading goes on: {TOPIC} at offset not shown")]
    (loss,) = model.told(EventType.LOSS_ACCEPTED)
    assert loss["detail"] == {"topic": TOPIC}
    assert "offset=not shown" in caplog.text


def test_counts_that_were_created_again_wait_likewise() -> None:
    model = model_of(SPEC)
    write(model, 0)
    model.broker.topic_ids[TOPIC] = "first"
    model.serve()
    model.broker.make_anew(TOPIC)
    status = model.waits()
    assert status.cause is Cause.RECORDS_LOST
    assert f"counts of {TOPIC!r}, which was created again" in status.reason


def test_a_tick_far_ahead_of_the_workers_clock_waits_and_its_offset_is_not_shown() -> None:
    model = model_of(counting(f"{VISITORS}, max_runs: off, mute: 1h"))
    write(model, 0, 1)
    session = model.session()
    finish(session.open())
    with pytest.raises(TimestampAhead) as ahead:
        finish(session.run())
    assert f"shard 0: a tick of {TOPIC!r} is stamped 3" in str(ahead.value)
    assert "offset" not in str(ahead.value)
    model.broker.settle()
    assert told(model) == [("m0", "2026-09-21T00:00")]


def test_the_clock_of_a_monitor_is_its_newest_tick_whatever_the_workers_clock_says() -> None:
    model = model_of(SPEC)
    write(model, 0)
    model.serve()
    model.now -= 2 * 3600
    model.serve()
    stored = from_bytes(ProgressRecord, model.stored_meta().progress or b"", key="meta")
    tick = WINDOW_MS + HOUR_MS + 60_000
    assert stored.positions == {"m0": (3, 0, tick), "m1": (3, 0, tick)}


def test_the_last_window_of_a_day_is_tested_however_late_the_counter_and_after_any_restart() -> None:
    model = model_of(PERIODS)
    write(model, 0, dataset="web-2026-09-21", values=(0,))
    model.serve()
    model.now += 4 * 86_400  # the day is long over, and all that is there has been read
    model.serve(3)
    write(model, 23, dataset="web-2026-09-21")
    model.serve(2)
    assert told(model) == [("m0", "2026-09-21T23:00")]
    write(model, 24, 25, 26, dataset="web-2026-09-22", values=(0,))
    model.serve(3)
    assert [data["dataset"] for data in model.told(EventType.RETIRED)] == ["web-2026-09-21"]


def test_a_broken_record_of_counts_is_reported_nowhere_and_holds_nothing_up() -> None:
    model = model_of(SPEC)
    write(model, 0)
    entries: list[Entry] = model.broker.partitions[TOPIC]
    entries[0].headers = ()
    model.broker.write(TOPIC, b"a", b"not counts")
    status = model.serve(2).status
    assert told(model) == [("m1", "2026-09-21T00:00")]
    assert [*model.broker.read("rejects")] == []
    assert status.ticks == {TOPIC: WINDOW_MS + HOUR_MS + 60_000}


def test_an_aborted_tick_is_not_read_and_a_closed_shard_tells_no_position_of_counts() -> None:
    model = model_of(SPEC)
    write(model, 0)
    model.broker.produce("counter", TOPIC, [(b"a", b"of a tick that was not asked")], Fate.ABORTED)
    write(model, 1)
    model.serve()
    assert len(told(model)) == 4
    model.command("close", action=Action.CLOSE_APPLICATION, successor="next")
    with pytest.raises(ApplicationClosed):
        model.serve()
    model.broker.settle()
    (closed,) = model.told(EventType.APPLICATION_CLOSED)
    assert closed["detail"]["positions"] == {}


def test_a_look_at_a_period_that_is_over_is_not_answered() -> None:
    model = Model(PERIODS, start_at="latest", now=BEGINS + 40 * 3600)
    write(model, 0, 23, dataset="web-2026-09-21")
    look(model, "first")
    model.serve(3)
    write(model, *range(24, 29), dataset="web-2026-09-22")
    model.serve(3)
    look(model, "late")
    model.serve(3)
    assert [one["detail"]["request"] for one in model.told(EventType.DECILES)] == ["first"]
    assert [one["dataset"] for one in model.told(EventType.RETIRED)] == ["web-2026-09-21"]
