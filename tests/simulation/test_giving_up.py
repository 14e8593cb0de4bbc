"""Giving a shard's budgets up after a rollback, on the modelled log: all at once or not at all, and for good."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from stream_svt.errors import ConfigError, StateRolledBack
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import LARGEST_SEQUENCE, EventType
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.protocol.tenure import State, Tenure
from stream_svt.service.audit import Auditor
from stream_svt.service.wire import home
from tests.simulation.auditing import problems
from tests.simulation.effects import finish
from tests.simulation.model import (
    AFTER,
    BEFORE,
    GIVEN_UP,
    NAMES,
    PLAIN,
    Few,
    Model,
    Stops,
    Stored,
    alert_place,
    backup,
    command,
    declared,
    give_up,
    go_on,
    ledgers,
    played_model,
    raise_and_go_on,
    restore,
    send,
)
from tests.simulation.test_reconfigured import ELSEWHERE, HOT, serve_a_while
from tests.support.engine_play import another_release


def one(limit: float = 5) -> ApplicationSpec:
    return declared(PLAIN, limit=limit)


def rolled_back() -> Model:
    """A model whose state is older than its alerts."""
    model = Model(partitions=1)
    model.send(20, 1)
    model.serve()
    old = backup(model)
    model.send(100, 2)
    model.serve()
    restore(model, old)
    with pytest.raises(StateRolledBack):
        finish(model.tenure()[0].open())
    return model


def raised() -> tuple[Model, Stored]:
    """A model whose limit was raised from 5 to 10, and its state from before."""
    model = Model(partitions=1, spec=one())
    send(model, 3, "a")
    model.serve()
    old = backup(model)
    command(model, "raise", action=Action.RAISE_BUDGET, dataset="d0", limit="10")
    model.serve()
    return model, old


def _dies_having_sent(model: Model, owner: Tenure, kind: bytes, shard: int = 0) -> None:
    """Let an owner die in its first transaction with such an event, once its events are sent."""
    books: Any = owner._journal._log
    transact = books.transact

    async def dies(transaction: Any) -> int | None:
        if any(kind in event for _, event in transaction.alerts):
            for key, event in transaction.alerts:
                await books._append("alerts", key, event)
            raise Stops
        newest: int | None = await transact(transaction)
        return newest

    books.transact = dies
    with pytest.raises(Stops):
        finish(owner.run())
    model.broker.fence(f"app-{shard}")


def _effects() -> int:
    work, outcome, count = rolled_back().tenure()[0].open(given_up=(0, GIVEN_UP)), None, 0
    try:
        while True:
            outcome = work.send(outcome).act()
            count += 1
    except StopIteration:
        return count


EFFECTS = _effects()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("crash", range(1, EFFECTS + 1))
def test_a_state_is_accepted_with_its_budgets_gone_or_refused_again(crash: int, after: bool) -> None:
    model = rolled_back()
    finish(model.tenure()[0].open(given_up=(0, GIVEN_UP)), crash=crash, after=after)
    following, status = model.tenure()
    try:
        finish(following.open())
    except StateRolledBack:
        following, status = model.tenure()
        finish(following.open(given_up=(0, GIVEN_UP)))
    assert set(ledgers(status)) == set(NAMES)
    assert all(spent == limit for spent, limit in ledgers(status).values())


def test_both_ends_of_a_crash_are_met() -> None:
    """The test above sees a state that is refused again, and one that was accepted."""
    met = set()
    for crash in range(1, EFFECTS + 1):
        model = rolled_back()
        finish(model.tenure()[0].open(given_up=(0, GIVEN_UP)), crash=crash)
        try:
            finish(model.tenure()[0].open())
            met.add("accepted")
        except StateRolledBack:
            met.add("refused")
    assert met == {"accepted", "refused"}


def test_a_raise_that_the_state_forgot_is_spent_and_cannot_be_granted_again() -> None:
    model, old = raised()
    send(model, 60, "b")
    model.serve()
    published, limit = model.books()["d0"]
    assert (published > 5, limit) == (True, 10)
    restore(model, old)
    following, status = model.tenure()
    finish(following.open(given_up=(0, GIVEN_UP)))
    finish(following.run())
    assert ledgers(status) == {"d0": (10, 10)}
    command(model, "again", action=Action.RAISE_BUDGET, dataset="d0", limit="10")
    tops = len(_of(model, EventType.ALERT))
    model.serve()
    send(model, 60, "c")
    model.serve()
    assert len(_of(model, EventType.ALERT)) == tops
    for spec in (one(5), one(10)):  # FILE may say what was declared, or what holds
        model.spec = spec
        model.serve()


def test_a_file_that_does_not_fit_the_older_state_accepts_nothing() -> None:
    model, old = raised()
    restore(model, old)
    model.spec = one(10)
    with pytest.raises(ConfigError):
        finish(model.tenure()[0].open(given_up=(0, GIVEN_UP)))
    model.spec = one(5)
    with pytest.raises(StateRolledBack):
        finish(model.tenure()[0].open())


@pytest.mark.parametrize("more", [1, 40])
def test_an_older_state_is_refused_beside_an_alert_topic_made_anew(more: int) -> None:
    """New events lie before the place where the old topic was left, or on both sides of it."""
    model = Model(partitions=1, spec=one())
    send(model, 6, "a")
    model.serve()
    old = backup(model)
    model.broker.partitions["alerts-0"] = []
    model.serve()
    command(model, "raise", action=Action.RAISE_BUDGET, dataset="d0", limit="50")
    send(model, more, "b")
    model.serve()
    restore(model, old)
    with pytest.raises(StateRolledBack):
        finish(model.tenure()[0].open())


@pytest.mark.parametrize("known", [False, True])
def test_what_an_alert_topic_made_anew_shows_before_the_old_place_is_given_up_too(known: bool) -> None:
    model = Model(partitions=1, spec=declared(PLAIN, names="d0, d1", limit=40))

    def end() -> int:
        return model.broker.span("alerts-0")[1]

    go_on(model, 1, "a", "d1")
    go_on(model, 40, "b")
    model.serve()
    old, place = backup(model), alert_place(model)
    model.broker.partitions["alerts-0"] = []
    name = "d1" if known else "d2"
    model.spec = declared(PLAIN, names="d0, d1, d2", limit=40)
    model.serve()
    raise_and_go_on(model, "60", 6 + known, name)
    assert end() < place
    go_on(model, 40, "d")
    assert end() > place
    assert not model.broker.partitions["alerts-0"][place].marker  # found there, it looks like the old topic
    model.spec = declared(PLAIN, names="d0, d1", limit=40)
    model.broker.partitions["state-0"] = []
    restore(model, old)
    if not known:
        with pytest.raises(ConfigError):
            give_up(model)
        return
    give_up(model)
    (status,) = model.serve()
    assert ledgers(status)["d1"] == (60, 60)


@pytest.mark.parametrize("own", [False, True])
def test_no_number_is_used_twice_where_retention_took_the_alerts_and_the_state_is_lost(own: bool) -> None:
    """Also where a migration brought a dataset, whose ids are beyond all that its new shard ever numbered."""
    names = [name for name in (f"e{number}" for number in range(200)) if _homes(name) == (0, 3)][:2]
    shard = 0 if own else 3
    model = Model(partitions=BEFORE, spec=declared(PLAIN, names=", ".join(names)))

    go_on(model, 14, "a", names[0])
    history = [event for events in model.events().values() for event in events]
    if not own:
        model.migrate()
        model.settle()
        model.serve()
    model.broker.first[f"alerts-{shard}"] = len(model.broker.partitions[f"alerts-{shard}"])
    go_on(model, 2, "b", names[1], shard=shard)
    assert all(event["data"]["dataset"] != names[0] for event in model.events()[shard])
    model.broker.partitions[f"state-{shard}"] = []
    with pytest.raises(StateRolledBack, match=r"Some alerts are gone.* highest one ever granted"):
        finish(model.tenure(shard)[0].open())
    give_up(model, shard)
    raise_and_go_on(model, "20", 9, names[0], shard)
    events = model.events()[shard]
    assert any(event["data"]["dataset"] == names[0] for event in events)
    assert not {event["id"] for event in events} & {event["id"] for event in history}
    assert len({event["id"] for event in events}) == len(events)
    if own:
        assert min(event["sequence"] for event in events) > max(event["sequence"] for event in history)
    assert max(event["sequence"] for event in events) < 2**31  # what CloudEvents call an integer
    assert problems(model) == []


def test_a_copy_of_the_first_event_does_not_hide_that_alerts_are_gone() -> None:
    """No takeover objects to it: its number is one of those that the books know."""
    model = Model(partitions=1, spec=one())
    go_on(model, 1, "a")
    copied = next(iter(model.broker.read("alerts-0"))).value
    go_on(model, 12, "b")
    used = {event["sequence"] for event in model.events()[0]}
    older = backup(model)
    model.broker.first["alerts-0"] = model.broker.span("alerts-0")[1]
    model.broker.write("alerts-0", b"d0", copied)
    model.serve()
    model.broker.partitions["state-0"] = []
    with pytest.raises(StateRolledBack, match="Some alerts are gone"):
        finish(model.tenure()[0].open())
    give_up(model)
    model.serve()
    assert not used & {event["sequence"] for event in model.events()[0][1:]}
    model.broker.partitions["state-0"] = []
    restore(model, older)
    with pytest.raises(StateRolledBack):
        finish(model.tenure()[0].open())


@pytest.mark.parametrize("number", [2**53 + number for number in range(3)])
def test_an_older_state_is_found_beside_alerts_that_a_forged_number_came_between(number: int) -> None:
    """Whether that one counts is the same beside every state: else what went on after it would be forged as well."""
    model = Model(partitions=1, spec=one())
    go_on(model, 3, "a")
    forged = model.events()[0][-1] | {"sequence": number, "id": "x"}
    model.broker.write("alerts-0", b"d0", msgspec.json.encode(forged))
    give_up(model)
    raise_and_go_on(model, "20", 3)
    older = backup(model)
    model.broker.partitions["state-0"] = []
    give_up(model)
    raise_and_go_on(model, "40", 6)
    model.broker.partitions["state-0"] = []
    restore(model, older)
    with pytest.raises(StateRolledBack):
        finish(model.tenure()[0].open())


@pytest.mark.parametrize("name", ["d0", "other"])
def test_what_was_forged_while_a_worker_ran_and_no_takeover_met_costs_nothing_later(name: str) -> None:
    """It lies before the place from which the alerts are read: nobody had a reason to look who wrote it."""
    model = Model(partitions=1, spec=one())
    go_on(model, 1, "a")
    last = model.events()[0][-1]

    def disturb(round_: int) -> None:
        if round_ == 0:
            data = last["data"] | {"dataset": name, "account": last["data"]["account"] | {"limit": 50.0}}
            forged = last | {"sequence": 2**53 - 7, "id": "x", "data": data}
            model.broker.write("alerts-0", b"d0", msgspec.json.encode(forged))
        elif round_ < 6:
            send(model, 1, f"b{round_}")

    serve_a_while(model, 12, disturb)
    model.serve()
    older = backup(model)
    go_on(model, 2, "c")
    restore(model, older)
    give_up(model)
    (status,) = model.serve()
    assert ledgers(status) == {"d0": (5, 5)}
    assert model.events()[0][-1]["sequence"] < 100


@pytest.mark.parametrize("gone", [False, True])
def test_raises_are_called_forgotten_only_where_alerts_are_gone_that_the_state_does_not_know(
    gone: bool,
) -> None:
    model, _ = raised()
    go_on(model, 3, "b")
    older, place = backup(model), alert_place(model)
    go_on(model, 9, "c")
    model.broker.first["alerts-0"] = place + gone
    restore(model, older)
    with pytest.raises(StateRolledBack) as refused:
        finish(model.tenure()[0].open())
    assert ("Some alerts are gone" in str(refused.value)) is gone


def _homes(name: str) -> tuple[int, int]:
    return home(name.encode(), BEFORE), home(name.encode(), AFTER)


@pytest.mark.parametrize("published", [False, True])
def test_a_state_that_is_one_transaction_old_is_refused_if_that_one_was_committed(published: bool) -> None:
    """It has yet to publish what it charged; sent and aborted, that is to be sent again."""
    model = Model(partitions=1, spec=one())
    send(model, 1, "a")
    owner, _ = model.tenure(interval=1e9)
    finish(owner.open())
    held: dict[str, Stored] = {}
    transact = owner._journal._log.transact

    async def keeps(transaction: Any) -> int | None:
        if transaction.alerts and any(b"alert.v1" in event for _, event in transaction.alerts):
            model.broker.mark("app-0", everything=True)
            held["before"] = backup(model)
            if not published:
                await owner._journal._log._append("alerts-0", *transaction.alerts[0])  # type: ignore[attr-defined]
                raise Stops
        return await transact(transaction)

    owner._journal._log.transact = keeps  # type: ignore[method-assign]
    with contextlib.suppress(Stops):
        finish(owner.run())
    model.broker.mark("app-0", everything=True)
    restore(model, held["before"])
    following, status = model.tenure(interval=1e9)
    if published:
        with pytest.raises(StateRolledBack, match=r"event \d+ as published"):
            finish(following.open())
        following, status = model.tenure(interval=1e9)
        finish(following.open(given_up=(0, GIVEN_UP)))
        assert ledgers(status) == {"d0": (5, 5)}
    else:
        finish(following.open())
    finish(following.run())
    model.broker.mark("app-0", everything=True)
    model.serve()
    assert len(_of(model, EventType.ALERT)) == 1


def test_an_alert_topic_made_anew_beside_its_own_state_is_no_rollback() -> None:
    model = Model(partitions=1, spec=one())
    send(model, 6, "a")
    model.serve()
    model.broker.partitions["alerts-0"] = []
    for number in range(3):
        model.serve()
        send(model, 1, f"b{number}")
    model.serve()
    assert _of(model, EventType.ALERT)


@pytest.mark.parametrize("number", [2**60, LARGEST_SEQUENCE])
def test_a_forged_number_costs_the_budgets_once_and_not_the_books(number: int) -> None:
    model = Model(partitions=1, spec=one())
    send(model, 3, "a")
    model.serve()
    forged = model.events()[0][-1] | {"sequence": number, "id": "x"}
    model.broker.write("alerts-0", b"d0", msgspec.json.encode(forged))
    with pytest.raises(StateRolledBack):
        finish(model.tenure()[0].open())
    finish(model.tenure()[0].open(given_up=(0, GIVEN_UP)))
    for _ in range(3):
        model.broker.mark("app-0", everything=True)
        following, status = model.tenure()
        finish(following.open())
        finish(following.run())
        assert ledgers(status) == {"d0": (5, 5)}
    numbers = [event["sequence"] for event in model.events()[0] if event["id"] != "x"]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(
    ("kind", "dataset", "account"),
    [
        (EventType.RUN_STARTED, "d0", {"measure": "rho", "limit": 1.0}),
        (EventType.MOVED, "d0", {"measure": "epsilon", "limit": 5.0}),
        (EventType.RUN_STARTED, "could never/be declared", {"measure": "epsilon", "limit": 5.0}),
    ],
)
def test_a_forged_event_hides_no_raise_that_was_published(kind, dataset, account) -> None:
    """One of another measure than the dataset's, one that it left, and one of no dataset at all."""
    model, old = raised()
    send(model, 60, "b")
    model.serve()
    started = _of(model, EventType.RUN_STARTED)[-1]
    account = {"charge": 0.0, "spent": 0.0, "reserved": 0.0} | account
    last = model.events()[0][-1]["sequence"]
    data = started["data"] | {"account": account, "dataset": dataset}
    forged = started | {"sequence": last + 1, "id": "x", "type": kind, "data": data}
    model.broker.write("alerts-0", dataset.encode(), msgspec.json.encode(forged))
    restore(model, old)
    following, status = model.tenure()
    finish(following.open(given_up=(0, GIVEN_UP)))
    finish(following.run())
    assert ledgers(status) == {"d0": (10, 10)}


def test_what_a_release_closes_while_giving_up_is_numbered_after_all_that_was_shown() -> None:
    """It would not recompute the noise of the open run, and says so before anything is marked."""
    model = Model(partitions=1, spec=one())
    send(model, 1, "a")
    model.serve()
    old = backup(model)
    send(model, 1, "b")
    model.serve()
    restore(model, old)
    with another_release():
        finish(model.tenure()[0].open(given_up=(0, GIVEN_UP)))
        model.broker.mark("app-0", everything=True)
        following, _ = model.tenure()
        finish(following.open())
        finish(following.run())
    model.broker.mark("app-0", everything=True)
    shown = model.events()[0]
    assert [event["data"].get("reason") for event in shown].count("incompatible") == 1
    assert [event["sequence"] for event in shown] == list(range(1, len(shown) + 1))
    assert len({event["id"] for event in shown}) == len(shown)


def test_the_audit_takes_a_budget_for_given_up_with_a_raise_that_was_shown_to_nobody_who_reads_it() -> None:
    """Its event was sent, and aborted: an owner that gives the budget up has seen it, and counts it as spent."""
    model = Model(partitions=1, spec=one())
    send(model, 3, "a")
    model.serve()
    old = backup(model)
    command(model, "raise", action=Action.RAISE_BUDGET, dataset="d0", limit="10")
    owner, _ = model.tenure()
    finish(owner.open())
    _dies_having_sent(model, owner, b"budget.raised")
    restore(model, old)
    following, status = model.tenure()
    finish(following.open(given_up=(0, GIVEN_UP)))
    finish(following.run())
    model.broker.mark("app-0", everything=True)
    assert ledgers(status) == {"d0": (10, 10)}
    auditor = Auditor()
    for entry in model.broker.read("alerts-0"):
        auditor.add(0, entry.offset, entry.value)
    assert auditor.audit.problems == []


@pytest.mark.parametrize("left", [0, 2])
def test_no_command_is_carried_out_twice_where_the_control_topic_lost_records(left: int) -> None:
    """Whether it was made anew or lost its newest record, nobody knows; commands from now on are heard."""
    model = Model(partitions=1, spec=one())
    send(model, 2, "a")
    model.serve()
    command(model, "c1", action=Action.MARK_EXHAUSTED)
    command(model, "c2", action=Action.RAISE_BUDGET, dataset="d0", limit="9")
    command(model, "c3", action=Action.RESAMPLE, dataset="d0")
    model.serve()
    del model.broker.partitions["control-0"][left:]
    for _ in range(2):
        (status,) = model.serve()
    assert status.views["d0"].spent < 9
    command(model, "c4", action=Action.RAISE_BUDGET, dataset="d0", limit="12")
    (status,) = model.serve()
    assert status.views["d0"].limit == 12


@pytest.mark.parametrize("told_at", [0, 99])
def test_a_pause_in_the_middle_of_a_replay_ends_it_for_no_owner(told_at: int) -> None:
    """What is closed before a lost outcome is computed again would give back what that outcome costs."""
    model = Model(partitions=1, spec=one())
    send(model, 1, "first", value=0)
    model.serve()
    send(model, 20, "low", value=0)
    send(model, 1, "top")
    # An owner computes the top and dies in its transaction.
    dying, _ = model.tenure(feed=Few, interval=1e9)
    finish(dying.open())
    commit = dying._journal.commit

    async def dies(content: Any) -> int:
        if any(event.type == EventType.ALERT for event in content.events):
            raise Stops
        return await commit(content)

    dying._journal.commit = dies  # type: ignore[method-assign]
    with pytest.raises(Stops):
        finish(dying.run())
    model.broker.mark("app-0", everything=True)
    # The next one hears of a pause before it has read all of it again; or does not.
    second, status = model.tenure(feed=Few, interval=1e9)
    feed: Any = second._feed
    feed.rounds = 4
    feed.hook = lambda round_: round_ == told_at and command(model, "p", action=Action.PAUSE, dataset="d0")
    finish(second.open())
    finish(second.run())
    assert status.state is State.REPLAYING
    model.broker.mark("app-0", everything=True)
    # To the one after it a close must wait, until reading goes on and has come to the end.
    command(model, "x", action=Action.CLOSE, dataset="d0")
    third, status = model.tenure(feed=Few, interval=1e9)
    finish(third.open())
    assert status.state is State.REPLAYING
    third._feed.rounds = 6  # type: ignore[attr-defined]
    finish(third.run())
    model.broker.mark("app-0", everything=True)
    last, status = model.tenure(interval=1e9)
    finish(last.open())
    finish(last.run())
    assert status.state is State.RUNNING
    model.broker.mark("app-0", everything=True)
    kinds = [event["type"] for event in model.events()[0]]
    assert kinds.count(EventType.ALERT) == 1
    assert kinds.index(EventType.ALERT) < kinds.index(EventType.RUN_CLOSED)


def _of(model: Model, kind: EventType) -> list[dict[str, Any]]:
    return [event for event in model.events()[0] if event["type"] == kind]


def test_what_a_migration_brought_to_a_new_shard_is_not_forgotten_with_its_state() -> None:
    """Nothing was spent there yet: without a word of where it came from, its books would begin anew."""
    model = played_model()
    model.send(400, 5)
    model.serve()
    before = model.books()
    model.migrate()
    spent = {name: before[name] for name in before if home(name.encode(), AFTER) >= BEFORE}
    assert max(amount for amount, _ in spent.values()) > 1
    for shard in sorted({home(name.encode(), AFTER) for name in spent}):
        model.broker.partitions[f"state-{shard}"] = []
        with pytest.raises(StateRolledBack):
            finish(model.tenure(shard)[0].open())
        following, status = model.tenure(shard)
        finish(following.open(given_up=(0, GIVEN_UP)))
        assert all(view.spent == view.limit for view in status.views.values())


def test_a_raise_from_before_a_migration_is_known_to_the_new_shard() -> None:
    model = played_model()
    name = next(name for name in NAMES if home(name.encode(), AFTER) >= BEFORE)
    command(model, "r", home(name.encode(), BEFORE), action=Action.RAISE_BUDGET, dataset=name, limit="10")
    model.serve()
    model.migrate()
    shard = home(name.encode(), AFTER)
    model.broker.partitions[f"state-{shard}"] = []
    following, status = model.tenure(shard)
    finish(following.open(given_up=(0, GIVEN_UP)))
    assert ledgers(status)[name] == (10, 10)


@pytest.mark.parametrize("lost", ["rolled back", "deleted"])
def test_no_id_is_used_twice_for_a_dataset_that_brought_more_events_than_its_shard_has(lost: str) -> None:
    model = Model()
    name = next(name for name in NAMES if home(name.encode(), AFTER) >= BEFORE)
    shard = home(name.encode(), AFTER)

    def queries(partition: int, count: int, tag: str, monitor: str = "m0") -> None:
        go_on(model, count, tag, name, shard=partition, monitor=monitor)

    queries(home(name.encode(), BEFORE), 5, "x", "m1")
    queries(home(name.encode(), BEFORE), 2, "a")
    model.migrate()
    model.settle()
    queries(shard, 1, "b")
    old = list(model.broker.read(f"state-{shard}"))
    queries(shard, 2, "c")
    assert problems(model) == []
    if lost == "deleted":
        model.broker.partitions[f"state-{shard}"] = []
    else:
        for entry in old:
            model.broker.write(f"state-{shard}", entry.key, entry.value)
    give_up(model, shard)
    command(model, "r", shard, action=Action.RAISE_BUDGET, dataset=name, limit="20")
    model.serve()
    queries(shard, 9, "d")
    ids = [event["id"] for events in model.events().values() for event in events]
    assert len(set(ids)) == len(ids)
    assert problems(model) == []


EDGE = [2**53 + number for number in (-5, -1, 0, 1)]


@pytest.mark.parametrize(
    ("sequence", "number"),
    [
        *((None, number) for number in ("9" * 5000, 2**64, LARGEST_SEQUENCE, "\u0663", "-1", "", *EDGE)),
        *((sequence, "x") for sequence in EDGE),
    ],
)
def test_a_forged_number_uses_no_numbers_up(sequence: int | None, number: Any) -> None:
    """Nor is what goes on after one that was accepted taken for forged, once the state is lost again."""
    model = Model(partitions=1, spec=one())
    send(model, 3, "a")
    model.serve()
    last = model.events()[0][-1]
    forged = last | {"sequence": sequence or last["sequence"] + 1, "id": f"app/d0/m0/1/{number}"}
    model.broker.write("alerts-0", b"d0", msgspec.json.encode(forged))
    for limit in ("20", "40"):
        give_up(model)
        raise_and_go_on(model, limit, 3)
        model.broker.partitions["state-0"] = []
    ids = [event["id"] for event in model.events()[0]]
    assert len(set(ids)) == len(ids)
    assert len(_of(model, EventType.ALERT)) == 9


def test_numbers_that_only_records_put_back_know_are_explained() -> None:
    """Those of an aborted transaction: it had charged more than the owner did that went on instead."""
    model = Model(partitions=1, spec=one())
    send(model, 1, "a")
    model.serve()
    send(model, 3, "b")
    owner, _ = model.tenure(interval=1e9)
    finish(owner.open())
    model.settle()
    held: Stored = {}
    transact = owner._journal._log.transact

    async def dies(transaction: Any) -> int | None:
        if b"ob/0" in transaction.records:
            held.update(backup(model) | transaction.records)
            raise Stops
        return await transact(transaction)

    owner._journal._log.transact = dies  # type: ignore[method-assign]
    with pytest.raises(Stops):
        finish(owner.run())
    model.broker.fence("app-0")
    following, _ = model.tenure(feed=Few, interval=1e9)
    following._feed.rounds, following._feed.most = 2, 1  # type: ignore[attr-defined]
    finish(following.open())
    finish(following.run())
    model.settle()
    last = model.events()[0][-1]["sequence"]
    restore(model, held)
    give_up(model)
    (given_up,) = _of(model, EventType.MARKED_EXHAUSTED)
    assert given_up["data"]["detail"]["after"] > last
    assert problems(model) == []


def test_numbers_that_a_shard_without_datasets_skips_are_explained() -> None:
    """The last one that was used was sent and aborted: no reader of the alerts is shown it."""
    model = Model(partitions=2, spec=declared(HOT))
    model.serve()
    model.spec = declared(HOT, ELSEWHERE)
    model.serve()
    model.serve()
    old = list(model.broker.read("state-1"))
    model.spec = declared(HOT)
    owner, _ = model.tenure(1)
    finish(owner.open())
    _dies_having_sent(model, owner, b"", shard=1)
    model.broker.partitions["state-1"] = old
    give_up(model, 1)
    assert [event["sequence"] for event in model.events()[1]] == [1, 3, 4]
    assert problems(model) == []


def test_a_state_that_is_given_up_while_its_key_is_replaced_is_sealed_with_the_new_one() -> None:
    before, after = bytes(range(32)), bytes(range(1, 33))
    model = Model(partitions=1, spec=one(), masters=(before,))
    send(model, 1, "a")
    model.serve()
    old = backup(model)
    send(model, 3, "b")
    model.serve()
    restore(model, old)
    model.masters = (after, before)
    give_up(model)
    model.masters = (after,)
    following, status = model.tenure()
    finish(following.open())
    assert ledgers(status) == {"d0": (5, 5)}
