"""A migration crashed at each of its effects, on the modelled log: either count holds, no budget counts twice."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from stream_svt.errors import MigrationRefused, MisuseError, StateRolledBack, UnreadableState
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import EventType
from stream_svt.protocol.migration import Books, MovingJournal, rehearse
from stream_svt.service.wire import home
from stream_svt.service.workload import Workload
from tests.golden.regenerate import mutes_split
from tests.simulation.auditing import problems
from tests.simulation.effects import finish
from tests.simulation.log import Entry
from tests.simulation.model import (
    AFTER,
    BEFORE,
    GIVEN_UP,
    NAMES,
    PLAIN,
    Feed,
    Ground,
    Model,
    Stops,
    Stored,
    backup,
    declared,
    ledgers,
    played_model,
    raise_and_go_on,
    restore,
)
from tests.simulation.world import CONTROL
from tests.support.engine_play import another_release


def assert_in_order(model: Model) -> None:
    """Events are numbered densely on every shard, ids are unique, and charges add up across the move."""
    ids = set()
    spent: dict[str, int] = {}
    by_dataset: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for events in model.events().values():
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        for event in events:
            assert event["id"] not in ids
            ids.add(event["id"])
            if event["data"]["account"]:
                number = int(event["id"].rpartition("/")[2])
                by_dataset.setdefault(event["data"]["dataset"], []).append((number, event["data"]))
    for name, found in by_dataset.items():
        found.sort(key=lambda item: item[0])
        assert [number for number, _ in found] == list(range(1, len(found) + 1))
        for _, data in found:
            account = data["account"]
            spent[name] = spent.get(name, 0) + round(account["charge"] * 1e9)
            assert spent[name] == round(account["spent"] * 1e9)
            assert account["spent"] + account["reserved"] <= account["limit"] + 1e-12


def test_books_are_the_same_before_and_after_and_life_goes_on() -> None:
    model = played_model()
    before = model.books()
    report = model.migrate()
    assert report is not None
    assert {name: report.books[name] for name in before} == before
    assert report.runs_closed > 3
    assert len(report.moved) > 3
    model.send(200, 2)
    statuses = model.serve()
    assert len(statuses) == AFTER
    assert_in_order(model)
    kinds = [event["type"] for events in model.events().values() for event in events]
    assert kinds.count(EventType.MOVED) == len(report.moved)
    # Two of five shards are new: datasets that moved there have alerts, numbered on from what they were.
    moved = {name for name in NAMES if home(name.encode(), AFTER) >= BEFORE}
    found = [
        event["data"]
        for shard in range(BEFORE, AFTER)
        for event in model.events()[shard]
        if "gap" in event["data"]
    ]
    assert {data["dataset"] for data in found} <= moved
    assert any(data["run"] > 1 for data in found)


def test_a_dataset_that_stays_keeps_its_open_run() -> None:
    model = played_model()
    model.migrate()
    kept = {name for name in NAMES if home(name.encode(), AFTER) == home(name.encode(), BEFORE)}
    closed = {
        event["data"]["dataset"]
        for events in model.events().values()
        for event in events
        if event["type"] == EventType.RUN_CLOSED
    }
    assert kept
    assert not closed & kept
    assert closed


def test_mutes_come_along_also_where_they_have_records_of_their_own() -> None:
    with mutes_split(40):
        model = played_model()
        before = _muted(model)
        assert sum(map(len, before.values())) > 10
        report = model.migrate()
        assert report is not None
        assert len(report.moved) > 3
        assert _muted(model) == before
        model.send(60, 2)
        model.serve()
        assert {name: mutes[: len(before[name])] for name, mutes in _muted(model).items()} == before
    assert_in_order(model)
    parts = {
        key.decode().split("/")[1]: shard
        for shard in range(AFTER)
        for key in finish(model.journal(shard, AFTER).look()).records
        if key.startswith(b"q/")
    }
    assert parts == {name: home(name.encode(), AFTER) for name in parts}
    assert len(set(parts.values())) > 2


def _muted(model: Model) -> dict[str, list[str]]:
    """Return the muted series of each dataset, as stored."""
    return {
        books.name: list(books.mutes.get("m1", ()))
        for engine in looked_at(model)
        for number in range(len(engine.datasets))
        if "m1" in (books := engine.books(number)).slots
    }


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_migration_crashed_at_any_effect_is_finished_by_the_next(after: bool) -> None:
    crashed, finished = _crashed_everywhere(after=after)
    assert crashed > 40
    assert finished


def test_a_migration_that_is_begun_again_at_once_is_finished() -> None:
    """The marks that end its last transactions may not be written yet: what they committed is not to be missed."""
    played = played_model()
    for crash in itertools.count(1):
        model = copy.deepcopy(played)
        if model.migrate(crash=crash, after=True) is not None:
            break
        assert model.migrate() is not None
    assert crash > 50


def _crashed_everywhere(*, after: bool, ground: type[Ground] = Ground) -> tuple[int, int]:
    """Crash at each effect in turn and migrate again; return how often, and how often nothing was left to do."""
    played = played_model()
    before = played.books()
    crashed = finished = 0
    while True:
        model = copy.deepcopy(played)
        if model.migrate(crash=crashed + 1, after=after, ground=ground) is not None:
            return crashed, finished
        crashed += 1
        model.broker.mark("app-migrate")
        for shard in range(AFTER):
            model.broker.mark(f"app-{shard}")
        _assert_who_opens(model)
        report = model.migrate(ground=ground)
        assert report is not None
        finished += report.finished_before
        assert {name: report.books[name] for name in before} == before, crashed
        model.partitions = AFTER
        if crashed % 8 == 0:
            model.send(60, 3)
            model.serve()
            assert_in_order(model)


class _ShardByShard(Ground):
    """Moves each shard in a transaction of its own."""

    async def write(self, records: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        for shard, changes in records.items():
            await super().write({shard: changes})


def test_a_move_in_several_transactions_would_be_caught() -> None:
    with pytest.raises((AssertionError, MisuseError, UnreadableState)):
        _crashed_everywhere(after=True, ground=_ShardByShard)


def _assert_who_opens(model: Model) -> None:
    """At the old number only shards that were not reached open, and none once topics grow; at the new one all or none.

    Before the last topic has grown, a worker of the new number is refused for the topics alone.
    """
    assert not (_opened(model, BEFORE) and model.partitions == AFTER)
    if model.partitions == AFTER:
        assert len(_opened(model, AFTER)) in (0, AFTER)


def _opened(model: Model, partitions: int) -> set[int]:
    """Take every shard over as workers of that number would; return those that let them."""
    model.broker.fence("app-migrate")
    opened = set()
    for shard in range(partitions):
        try:
            finish(model.journal(shard, partitions).open())
            opened.add(shard)
        except UnreadableState as error:
            if not re.search("was begun and is not finished|its topics now have", str(error)):
                raise
    return opened


@pytest.mark.parametrize("dies", [None, 3, 8, 20])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_what_shards_not_reached_yet_do_at_the_old_number_is_kept(after: bool, dies: int | None) -> None:
    """Their worker reads everything, or dies at one of its effects and leaves queries unread, of outcomes lost."""
    played = played_model()
    partly = lost_at_full_price = 0
    for crash in itertools.count(1):
        model = copy.deepcopy(played)
        if model.migrate(crash=crash, after=after) is not None:
            break
        opened = _opened(model, BEFORE)
        partly += len(opened) == 1
        model.send(40, 3)
        for shard in opened:
            tenure, _ = model.tenure(shard)
            finish(tenure.open())
            finish(tenure.run(), crash=dies)
            model.broker.fence(f"app-{shard}")
        if not opened:
            continue
        expected, full_price = _expected(model, opened)
        report = model.migrate(leave_unread=dies is not None)
        assert report is not None
        assert report.books == _rounded(expected)
        assert report.full_price == full_price
        lost_at_full_price += full_price
        model.send(40, 4)
        model.serve()
        assert_in_order(model)
    assert partly > 10
    assert (lost_at_full_price > 0) is (dies is not None)


def _expected(model: Model, opened: set[int]) -> tuple[Books, int]:
    """Return the books after the migration, and how many runs it closes at full price, from the state before."""
    books: Books = {}
    full_price = 0
    for shard in range(BEFORE):
        restored = finish(model.journal(shard, BEFORE, MovingJournal, target=AFTER).look())
        engine = Workload(model.spec, BEFORE).engine(shard, restored.noise_key)
        engine.load(restored.records, restored.progress)
        unread = shard in opened and finish(Ground(model).unread(shard, "t", engine.next_offset("t") or 0))
        for view in engine.views():
            moves = home(view.dataset.encode(), AFTER) != shard
            lost = [
                monitor.run_left
                for monitor in view.monitors
                if unread and monitor.state == "running" and (moves or monitor.monitor == "m1")
            ]
            books[view.dataset] = view.spent + sum(lost), view.limit
            full_price += len(lost)
    return books, full_price


def _rounded(books: Books) -> dict[str, tuple[Any, float]]:
    return {name: (pytest.approx(spent), limit) for name, (spent, limit) in books.items()}


def _begun(model: Model, left: Iterable[int] = (1,), *, leave_unread: bool = False) -> Model:
    """Crash a migration where shard 0 was reached and shard 1 was not, unless other shards are to be left."""
    for crash in itertools.count(1):
        begun = copy.deepcopy(model)
        begun.migrate(crash=crash, leave_unread=leave_unread)
        if _opened(copy.deepcopy(begun), BEFORE) == set(left):
            return begun
    raise AssertionError


class _Accepting(Feed):
    """An operator accepts a loss once the shard waits for that."""

    async def fetch(
        self, topics: Any, patience: float, max_records: int | None = None
    ) -> dict[str, list[Entry]]:
        if not self._rounds and topics == [CONTROL]:
            accept = Command(id=f"loss-{self._shard}", action=Action.ACCEPT_LOSS)
            self._broker.write(f"{CONTROL}-{self._shard}", None, msgspec.json.encode(accept))
        return await super().fetch(topics, patience, max_records)


@pytest.mark.parametrize("lost", [False, True])
def test_a_migration_that_was_begun_can_go_on_whatever_came_meanwhile(lost: bool) -> None:
    """No worker can read it: queries on both shards, which retention may have taken, and commands."""
    model = _begun(played_model())
    model.send(40, 3)
    expected, full_price = _expected(model, {1})
    if lost:
        for partition in ("t-0", "t-1"):
            model.broker.first[partition] = model.broker.span(partition)[1]
    names = [name for name in NAMES if home(name.encode(), BEFORE) == 1]
    for name in names:
        pause = Command(id=name, action=Action.PAUSE, dataset=name, monitor="m0")
        model.broker.write(f"{CONTROL}-1", None, msgspec.json.encode(pause))
    found = "were lost before they were read" if lost else "holds queries that were not read yet"
    for attempt in (model.migrate, lambda: finish(rehearse(Ground(model), model.move()))):
        with pytest.raises(MigrationRefused, match=f"shard 1: .* {found}.*begun before.*--leave-unread"):
            attempt()
    report = model.migrate(leave_unread=True)
    assert report is not None
    assert report.full_price == full_price > 0
    assert report.books == _rounded(expected)
    model.serve(_Accepting if lost else Feed)
    assert_in_order(model)
    replies = {
        event["data"]["detail"]["command"]: event["data"]["reason"]
        for events in model.events().values()
        for event in events
        if event["type"] == EventType.COMMAND_REPLY
    }
    # They meant the shard as it was: with other datasets, it hears commands from then on.
    assert replies == {f"loss-{shard}": "accepted" for shard in range(BEFORE) if lost}


def test_a_release_that_closes_runs_while_it_ends_a_migration_announces_them() -> None:
    """Of another release than began it, one that would not compute their noise again; also where nothing arrives."""
    homes = {f"e{n}": (home(f"e{n}".encode(), BEFORE), home(f"e{n}".encode(), AFTER)) for n in range(400)}
    names = [next(n for n, found in homes.items() if found == place) for place in ((0, 0), (0, 3), (1, 1))]
    model = Model(spec=declared(PLAIN, names=", ".join(names)))
    for name in names:
        body = msgspec.json.encode({"id": name, "value": 90_000})
        model.broker.write(f"t-{homes[name][0]}", name.encode(), body)
    model.serve()
    model = _begun(model)
    with another_release():
        assert model.migrate(leave_unread=True) is not None
        model.serve()
    assert_in_order(model)
    for shard in range(BEFORE):
        assert "incompatible" in [event["data"].get("reason") for event in model.events()[shard]]


class _StopsBeforeTheMove(Ground):
    async def grow(self, *, inputs: bool) -> None:
        if inputs:
            raise Stops
        await super().grow(inputs=inputs)


def _finished(names: list[str] = NAMES) -> tuple[Model, dict[int, Stored], dict[int, Stored]]:
    """A model that was migrated and lived on, with the states from before and from the middle."""
    model = Model(spec=declared(PLAIN, names=", ".join(names)))
    model.send(60, 1)
    model.serve()
    model.serve()
    earlier = {shard: backup(model, shard) for shard in range(BEFORE)}
    with pytest.raises(Stops):
        model.migrate(ground=_StopsBeforeTheMove)
    for shard in range(BEFORE):
        model.broker.mark(f"app-{shard}", everything=True)
    middle = {shard: backup(model, shard) for shard in range(AFTER)}
    assert model.migrate() is not None
    body = msgspec.json.encode({"id": "later", "value": 90_000})
    model.broker.write(f"t-{home(b'd0', AFTER)}", b"d0", body)
    model.serve()
    model.serve()
    return model, earlier, middle


def _refused(model: Model) -> str:
    """Migrate, and rehearse it; return why that is refused. Nothing is written."""
    model.settle()
    told = []
    entries = {name: len(entries) for name, entries in model.broker.partitions.items()}
    for attempt in (model.migrate, lambda: finish(rehearse(Ground(model), model.move()))):
        with pytest.raises(MigrationRefused) as refused:
            attempt()
        told.append(str(refused.value))
    assert {name: len(entries) for name, entries in model.broker.partitions.items()} == entries
    # Who stops nobody may have looked in the middle.
    assert told[1] == f"{told[0]}. If a migration has ended only just now, look again"
    return told[0]


def _given_up(model: Model, shard: int) -> dict[str, tuple[float, float]]:
    """Give up a shard that waits for it, or nothing where it does not; return its books."""
    tenure, status = model.tenure(shard)
    try:
        finish(tenure.open())
    except StateRolledBack:
        tenure, status = model.tenure(shard)
        finish(tenure.open(given_up=(0, GIVEN_UP)))
    model.broker.fence(f"app-{shard}")
    tenure, status = model.tenure(shard)
    finish(tenure.open())
    return ledgers(status)


@pytest.mark.parametrize("shard", range(AFTER))
def test_a_state_from_the_middle_put_back_after_the_end_changes_nothing(shard: int) -> None:
    # Nothing moves to shard 0, and nothing happens there afterwards: its alerts do not show that its state is older.
    model, _, middle = _finished([name for name in NAMES if name != "d1"])
    before = model.books()
    model.broker.partitions[f"state-{shard}"] = []
    restore(model, middle[shard], shard)
    others = sorted({*range(AFTER)} - {shard})
    told = _refused(model)
    assert f"those of shard {shard} are not, and no interrupted migration leaves that" in told
    assert f"give up the budgets of shard {shard} with" in told
    for number in others:
        finish(model.tenure(number)[0].open())
    # As told where there is no newer state.
    model.broker.partitions[f"state-{shard}"] = []
    books = {name: found for number in range(AFTER) for name, found in _given_up(model, number).items()}
    for name, (spent, limit) in before.items():
        gone = home(name.encode(), AFTER) == shard
        assert books[name] == (limit if gone else pytest.approx(spent), limit)
    assert model.migrate().finished_before  # type: ignore[union-attr]


@pytest.mark.parametrize("shards", [[0], [1], [0, 1]])
@pytest.mark.parametrize("middle", [False, True], ids=["earlier", "middle"])
def test_a_state_of_the_old_number_that_is_older_than_its_alerts_can_be_given_up(
    shards: list[int], middle: bool
) -> None:
    """At the new number: what has moved away since has its books elsewhere, what has come is given up, too.

    From the middle of the migration, it has to be emptied first: where that is not over, nothing else is known.
    """
    model, *stored = _finished()
    model.send(90, 9)
    model.serve()
    model.serve()
    before = model.books()
    for shard in shards:
        model.broker.partitions[f"state-{shard}"] = []
        restore(model, stored[middle][shard], shard)
        refused, way = (UnreadableState, "migrate") if middle else (StateRolledBack, "mark-exhausted")
        with pytest.raises(refused, match=way):
            finish(model.tenure(shard)[0].open())
    if middle:
        told = _refused(model)
        if len(shards) == BEFORE:
            shards = list(range(AFTER))
        everything = "every shard" if len(shards) == AFTER else f"shard {shards[0]}"
        assert f"empty the state topic's partitions of {everything}, not" in told
        for shard in shards:
            model.broker.partitions[f"state-{shard}"] = []
    books: Books = {}
    for shard in range(AFTER):
        found = _given_up(model, shard)
        assert {home(name.encode(), AFTER) for name in found} <= {shard}
        books |= found
    for name, (spent, limit) in before.items():
        gone = home(name.encode(), AFTER) in shards
        assert books[name] == (limit if gone else pytest.approx(spent), limit)
    model.send(40, 10)
    model.serve()
    model.serve()
    assert problems(model) == []
    assert model.migrate().finished_before  # type: ignore[union-attr]


@pytest.mark.parametrize("shard", range(BEFORE))
def test_an_older_state_is_given_up_at_the_new_number_only_after_the_migration(shard: int) -> None:
    """What was to move is lost with it before that: at its new home, nothing would be known of it."""
    model = played_model()
    model.serve()
    earlier = backup(model, shard)
    with pytest.raises(Stops):
        model.migrate(ground=_StopsBeforeTheMove)
    model.broker.partitions[f"state-{shard}"] = []
    restore(model, earlier, shard)
    model.partitions = AFTER
    tenure, _ = model.tenure(shard)
    with pytest.raises(UnreadableState, match="has 2 partitions and its topics now have 5"):
        finish(tenure.open(given_up=(0, GIVEN_UP)))


def test_no_alert_makes_a_state_from_the_middle_of_a_migration_one_to_be_given_up() -> None:
    """It could be forged, and the ledgers of what was to move would be gone."""
    model = played_model()
    with pytest.raises(Stops):
        model.migrate(ground=_StopsBeforeTheMove)
    model.settle()
    last = model.events()[0][-1]
    forged = last | {"sequence": last["sequence"] + 1, "id": "x", "type": EventType.PAUSED}
    model.broker.write("alerts-0", b"d0", msgspec.json.encode(forged))
    model.partitions = AFTER
    for given_up in (None, (0, GIVEN_UP)):
        with pytest.raises(UnreadableState, match="was begun and is not finished"):
            finish(model.tenure(0)[0].open(given_up=given_up))


def test_what_a_worker_says_of_a_state_from_before_a_migration_leads_out() -> None:
    model, earlier, _ = _finished([name for name in NAMES if name != "d1"])
    model.broker.partitions["state-0"] = []
    restore(model, earlier[0], 0)
    way = (
        "'stream-svt migrate --partitions 5' says what to do, with topics.partitions: 2 in the configuration"
    )
    with pytest.raises(UnreadableState, match=way):
        finish(model.tenure(0)[0].open())
    assert "give up the budgets of shard 0 with" in _refused(model)


@pytest.mark.parametrize("charged", [False, True])
def test_a_worker_that_ran_at_the_new_number_before_is_found_before_anything_is_written(
    charged: bool,
) -> None:
    """Its books are second ledgers of the same datasets."""
    model = played_model()
    raised = next(
        name for name in NAMES if home(name.encode(), BEFORE) == 0 and home(name.encode(), AFTER) != 0
    )
    raise_and_go_on(model, "10", 24, raised)
    before = model.books()
    model.written = model.partitions = AFTER
    if charged:
        body = msgspec.json.encode({"id": "q", "value": 90_000})
        model.broker.write("t-3", b"d0", body)
    for shard in range(BEFORE, AFTER):
        tenure, _ = model.tenure(shard)
        finish(tenure.open())
        finish(tenure.run())
    assert bool(model.events()[3]) is charged
    told = _refused(model)
    if not charged:
        assert "nothing was charged there" in told
        for shard in range(BEFORE, AFTER):
            model.broker.partitions[f"state-{shard}"] = []
        report = model.migrate()
        assert report is not None
        assert {name: report.books[name] for name in before} == before
        return
    assert "those of shards 0, 1 are not" in told
    assert "give up the budgets of every shard" in told
    assert "empty the state topic's partitions of every shard, not the alert topic's" in told
    assert "write the highest limits ever granted into the configuration" in told
    for shard in range(AFTER):
        model.broker.partitions[f"state-{shard}"] = []
    granted = tuple(
        dataclasses.replace(dataset, limit=dataset.limit * (2 if dataset.name == raised else 1))
        for dataset in model.spec.datasets
    )
    model.spec = dataclasses.replace(model.spec, datasets=granted)
    for shard in range(AFTER):
        _given_up(model, shard)
        model.broker.write(f"{CONTROL}-{shard}", None, msgspec.json.encode(GIVEN_UP))
    views = [view for status in model.serve() for view in status.views.values()]
    assert {view.dataset for view in views} == set(NAMES)
    assert all(view.spent == view.limit == (10 if view.dataset == raised else 5) for view in views)


def test_a_new_shard_that_is_refused_is_found_before_any_shard_takes_leave() -> None:
    """Its state is empty, beside alerts."""
    model, *_ = _finished()
    used = model.broker.partitions["alerts-3"]
    model = played_model()
    model.written = AFTER
    model.broker.partitions["alerts-3"] = used
    with pytest.raises(StateRolledBack, match="shard 3"):
        model.migrate()
    assert _opened(model, BEFORE) == {0, 1}


def test_lost_records_and_commands_stop_a_migration_that_was_not_begun() -> None:
    model = played_model()
    pause = Command(id="c", action=Action.PAUSE, dataset="d0", monitor="m0")
    model.broker.write(f"{CONTROL}-0", None, msgspec.json.encode(pause))
    with pytest.raises(MigrationRefused, match=r"commands that were not carried out.*Nothing was changed"):
        model.migrate(leave_unread=True)
    model.send(3, 9)
    model.broker.first["t-0"] = model.broker.span("t-0")[1]
    with pytest.raises(MigrationRefused, match=r"were lost before they were read.*Nothing was changed"):
        model.migrate(leave_unread=True)


def test_unread_queries_stop_a_migration_unless_they_are_to_be_left() -> None:
    model = played_model()
    model.send(3, 9)
    with pytest.raises(MigrationRefused, match="were not read yet"):
        model.migrate()
    model.serve()
    assert model.migrate() is not None


@pytest.mark.parametrize("unread", [False, True])
def test_a_rehearsal_tells_the_same_and_changes_nothing(unread: bool) -> None:
    model = played_model()
    if unread:
        model.send(9, 9)
    lengths = {name: len(entries) for name, entries in model.broker.partitions.items()}
    told = finish(rehearse(Ground(model), model.move(leave_unread=unread)))
    assert lengths == {name: len(entries) for name, entries in model.broker.partitions.items()}
    report = model.migrate(leave_unread=unread)
    assert report is not None
    assert (told.runs_closed, told.full_price, sorted(told.moved), told.books) == (
        report.runs_closed,
        report.full_price,
        sorted(report.moved),
        report.books,
    )
    assert (report.full_price > 0) is unread


def looked_at(model: Model) -> list[Engine]:
    """Return the engines of the present state."""
    engines = []
    for shard in range(model.partitions):
        restored = finish(model.journal(shard, model.partitions).look())
        engine = Workload(model.spec, model.partitions).engine(shard, restored.noise_key)
        engine.load(restored.records, restored.progress)
        engines.append(engine)
    return engines
