"""What a migration does to each kind of monitor and dataset, on the modelled log: timed, retried, swept, zCDP."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import msgspec
import pytest

from stream_svt.monitor.released import DatasetView, EventType
from stream_svt.monitor.spec import load_spec
from stream_svt.protocol.migration import rehearse
from stream_svt.service.wire import home
from tests.simulation.effects import finish
from tests.simulation.model import AFTER, BEFORE, COMMON, NAMES, RETRY, Ground, Model
from tests.simulation.test_migration import assert_in_order, looked_at

ZCDP = [name.replace("d", "y") for name in NAMES]
SET = (
    "topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500, "
    "correction: annealed, append: {sweep: {max_open_sets: 2}}"
)
SPEC = load_spec(
    "application: app\ndatasets:\n"
    f"  - {{names: [{', '.join(NAMES)}], limit: 9, unit: one basket}}\n"
    '  - {generate: "w-{date}", from: 2025-12-28, until: 2026-01-09, lateness: 30d, limit: 9, unit: one visit}\n'
    f"  - {{names: [{', '.join(ZCDP)}], limit: {{rho: 1000}}, unit: one user}}\n"
    "monitors:\n"
    f'  - {{name: plain, mute: none, {COMMON}, datasets: ["d*", "w-*", "y0", "y1", "y2", "y3"]}}\n'
    f'  - {{name: timed, mute: 1h, {RETRY}, {COMMON}, datasets: ["d*", "y4", "y5", "y6", "y7"]}}\n'
    f'  - {{name: swept, mute: none, {SET}, datasets: ["d*", "w-*"]}}\n'
    f'  - {{name: other, mute: none, {COMMON.replace("topic: t", "topic: u")}, datasets: ["d*", "w-*"]}}\n'
)
NOON = 1_767_960_000.0
"""2026-01-09, 12:00: late for every period, and not too late."""


def _old(name: str) -> int:
    return home(name.encode(), BEFORE)


def _new(name: str) -> int:
    return home(name.encode(), AFTER)


def _moves(name: str) -> bool:
    return _old(name) != _new(name)


def _played(start_at: str = "earliest") -> Model:
    """A model that has read queries of every kind; on each dataset a set is open."""
    model = Model(spec=SPEC, now=NOON, start_at=start_at)
    model.send(400, 1)
    model.send(200, 2, "u")
    model.serve()
    _send(model, {"value": 480, "set": "s"})
    _send(model, {"value": 480}, "u")
    model.serve()
    return model


def _send(model: Model, body: Mapping[str, object], topic: str = "t", names: Iterable[str] = ()) -> None:
    """Send one query of each dataset, of a series of its own, to where its home was before the migration."""
    for name in names or model.names:
        record = msgspec.json.encode({"id": f"one-{topic}-{name}", "series": "own", **body})
        model.broker.write(f"{topic}-{_old(name)}", name.encode(), record)


def _views(model: Model) -> dict[str, DatasetView]:
    """Return the released state of every dataset, from the shard that it is stored on."""
    return {view.dataset: view for engine in looked_at(model) for view in engine.views()}


def _running(model: Model) -> dict[tuple[str, str], float]:
    """Return what is left of each open run, by dataset and monitor."""
    return {
        (view.dataset, monitor.monitor): monitor.run_left
        for view in _views(model).values()
        for monitor in view.monitors
        if monitor.state == "running"
    }


def _queued(model: Model) -> dict[tuple[str, str], int]:
    """Return how many queries wait, by dataset and monitor."""
    return {
        (view.dataset, monitor.monitor): monitor.queued
        for view in _views(model).values()
        for monitor in view.monitors
        if monitor.queued
    }


def _lengths(model: Model) -> dict[int, int]:
    return {shard: len(events) for shard, events in model.events().items()}


def _closed(model: Model, first: Mapping[int, int]) -> dict[tuple[str, str], tuple[str, float]]:
    """Return reason and charge of the runs closed since events of those numbers, by dataset and monitor."""
    return {
        (data["dataset"], data["monitor"]): (data["reason"], data["account"]["charge"])
        for shard, events in model.events().items()
        for event in events[first[shard] :]
        if event["type"] == EventType.RUN_CLOSED
        for data in [event["data"]]
    }


def _refused(model: Model, shard: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(entry.key, entry.value) for entry in model.broker.read(f"rejects-{shard}")]


def test_runs_that_move_end_and_only_what_pure_epsilon_reserved_is_given_back() -> None:
    model = _played()
    before, running, first = _views(model), _running(model), _lengths(model)
    report = model.migrate()
    assert report is not None
    after = _views(model)
    moving = {key for key in running if _moves(key[0])}
    assert _closed(model, first) == dict.fromkeys(moving, ("moved", 0))
    assert report.runs_closed == len(moving)
    assert {monitor for _, monitor in moving} == {"plain", "timed", "swept", "other"}
    assert {name[0] for name, _ in moving} == set("dwy")
    for name, view in before.items():
        assert (after[name].spent, after[name].limit) == (view.spent, view.limit)
        left = [left for (dataset, _), left in running.items() if dataset == name]
        if name in ZCDP:
            assert (view.reserved, after[name].reserved) == (0, 0)
        elif _moves(name):
            assert view.reserved == pytest.approx(sum(left))
            assert after[name].reserved == 0
        else:
            assert after[name] == view
    model.send(200, 3)
    model.serve()
    assert_in_order(model)


def test_what_waits_on_datasets_that_move_is_dropped_and_on_those_that_stay_goes_on() -> None:
    model = _played()
    before = _queued(model)
    kinds = {(monitor, _moves(name)) for name, monitor in before}
    assert kinds == set(itertools.product(("timed", "swept"), (True, False)))
    model.migrate()
    model.partitions = AFTER
    kept = {key: count for key, count in before.items() if not _moves(key[0])}
    assert _queued(model) == kept
    # The set of a dataset that stayed is closed where it was opened.
    staying = [name for name, monitor in kept if monitor == "swept"]
    _send(model, {"set": "s", "closed": True}, names=staying)
    model.serve()
    assert {name for name, monitor in _queued(model) if monitor == "swept"} == set()


@pytest.mark.parametrize("topic", ["t", "u"])
def test_runs_whose_tests_may_be_lost_with_queries_left_unread_close_at_full_price(topic: str) -> None:
    """Shard 0 has a query of one topic that a worker tested and lost; all else was read."""
    model = _played()
    _send(model, {"value": 90_000}, topic, names=[next(name for name in NAMES if _old(name) == 0)])
    before, running, first = _views(model), _running(model), _lengths(model)
    told = finish(rehearse(Ground(model), model.move(leave_unread=True)))
    report = model.migrate(leave_unread=True)
    assert report is not None
    closed, lost = _closed(model, first), dict.fromkeys(before, 0.0)
    kinds = set()
    for (name, monitor), run_left in running.items():
        unread = _old(name) == 0 and (monitor == "other") is (topic == "u")
        timed = monitor == "timed" or name.startswith("w-")
        kinds.add((name[0], monitor, _moves(name), unread))
        found = closed.pop((name, monitor), None)
        if unread and (_moves(name) or timed):
            price = 0 if name in ZCDP else run_left
            assert found == ("unread", pytest.approx(price))
            assert price > 0 or name in ZCDP
            lost[name] += price
            report.full_price -= 1
        elif _moves(name):
            assert found == ("moved", 0)
        else:
            assert found is None
    assert not closed
    assert report.full_price == 0
    monitors = {"t": ("plain", "swept"), "u": ("other",)}[topic]
    assert set(itertools.product("dw", monitors, (True, False), (True, False))) <= kinds
    if topic == "t":
        assert set(itertools.product("dy", ("plain", "timed"), (True, False), (True,))) <= kinds
    for name, view in before.items():
        assert report.books[name] == (pytest.approx(view.spent + lost[name]), view.limit)
    assert (told.runs_closed, told.books) == (report.runs_closed, report.books)
    model.send(200, 4)
    model.serve()
    assert_in_order(model)


def test_queries_at_an_old_home_are_refused_whether_they_waited_or_came_later() -> None:
    model = _played()
    _send(model, {"value": 90_000})
    model.migrate(leave_unread=True)
    _send(model, {"value": 90_000})
    before = _views(model)
    refused = {shard: len(_refused(model, shard)) for shard in range(BEFORE)}
    model.serve()
    for shard in range(BEFORE):
        moved = [name for name in model.names if _moves(name) and _old(name) == shard]
        reasons = [reason for _, reason in _refused(model, shard)[refused[shard] :]]
        assert reasons == [b"misrouted"] * (2 * len(moved))
    after = _views(model)
    assert all(after[name] == before[name] for name in model.names if _moves(name))
    assert any(after[name].spent > before[name].spent for name in model.names if not _moves(name))


def test_new_partitions_are_read_from_their_beginning() -> None:
    """Also where a topic that was never read is read from its end."""
    model = _played(start_at="latest")
    arriving = [name for name in NAMES if _new(name) >= BEFORE]
    for name in arriving:
        record = msgspec.json.encode({"id": name, "value": 90_000})
        model.broker.write(f"t-{_new(name)}", name.encode(), record)
    before = _views(model)
    model.migrate()
    model.serve()
    after = _views(model)
    assert arriving
    assert all(after[name].spent > before[name].spent for name in arriving)
