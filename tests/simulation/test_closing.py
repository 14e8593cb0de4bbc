"""An application that is closed on a modelled log, by its owner or with its state given up, and what is left of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stream_svt.errors import ApplicationClosed, CommandRefused
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.audit import Audit
from stream_svt.protocol.carry_over import ShardHistory, Shown, carry_over
from stream_svt.protocol.sealing import proof_checker
from stream_svt.protocol.state_records import Closed
from stream_svt.settings.application import ApplicationSpec, Carried, load_spec, parse
from tests.simulation.chains import giving_up
from tests.simulation.log import finish
from tests.simulation.model import KEY, PLAIN, Model
from tests.simulation.test_commands import NAMES, SPEC, nth

UNITS = Kind.PURE.units


@pytest.fixture
def model(few_at_once: None) -> Model:
    made = Model(SPEC)
    for name in NAMES[:20]:
        made.send(2, f"{name}-", dataset=name)
    made.serve(2)
    return made


def close(model: Model) -> None:
    model.command("close", action=Action.CLOSE_APPLICATION, successor="next")


def close_for_ever(model: Model) -> None:
    close(model)
    serve_to_the_end(model)


def serve_to_the_end(model: Model) -> None:
    with contextlib.suppress(ApplicationClosed):
        model.serve()
    with pytest.raises(ApplicationClosed, match="closed permanently"):
        model.serve()
    model.broker.settle()


def events(model: Model, kind: EventType | None = None) -> list[dict[str, Any]]:
    return [event for event in model.events if kind is None or event["type"] == kind]


def history(
    model: Model, key: bytes = KEY, closed: Closed | None = None, shown: Iterable[Any] | None = None
) -> ShardHistory:
    """Read the events, all of them unless told, where wanted with what the state says of the end."""
    found = ShardHistory("app", 0, proof_checker([key]), closed=closed)
    for entry in model.broker.read("alerts", committed=False) if shown is None else shown:
        found.take(entry)
    found.end()
    return found


def history_of_closed(model: Model, key: bytes = KEY) -> ShardHistory:
    """Read how the state says that the shard was closed, then the events."""
    return history(model, key, finish(model.journal().read_closed()))


def left(
    shard: ShardHistory, spec: ApplicationSpec = SPEC, now_ms: int = 0, **more: Any
) -> tuple[Carried, list[str]]:
    options = {"cluster": "cluster", "alerts": "alerts", "successor": "next", "home": lambda name: 0} | more
    return carry_over(spec, [shard], now_ms=now_ms, **options)


def spent(carried: Carried) -> dict[str, float]:
    return {name: balance.spent / UNITS for name, balance in carried.datasets.items() if balance.spent}


def nothing_is_left(carried: Carried) -> bool:
    return all(balance.spent == balance.limit for balance in carried.datasets.values())


def forge(model: Model, template: dict[str, Any], **changes: Any) -> None:
    """Write an event that says something else than a true one."""
    model.broker.write("alerts", b"", msgspec.json.encode(template | changes))


def give_up(model: Model, **fields: Any) -> None:
    """Give the state of the shard up, as an operator would who looked at the alerts."""
    shown = [msgspec.json.decode(entry.value) for entry in model.broker.read("alerts", committed=False)]
    finish(model.journal().give_up(giving_up(shown, **{"successor": "next"} | fields)))
    model.broker.settle()


def test_a_shard_that_is_closed_publishes_a_balance_of_every_ledger_and_opens_no_more(model: Model) -> None:
    before = model.spent
    close_for_ever(model)
    balances = {
        event["data"]["dataset"]: event["data"]["account"] for event in events(model, EventType.BALANCE)
    }
    assert {name: account["spent"] for name, account in balances.items()} == before
    assert {account["reserved"] for account in balances.values()} == {0}
    *_, reply, closed = events(model)
    assert reply["type"] == EventType.COMMAND_REPLY
    assert (closed["type"], closed["data"]["detail"]) == (
        EventType.APPLICATION_CLOSED,
        {"successor": "next", "balances": 20},
    )
    size = len(list(model.broker.read("state")))
    serve_to_the_end(model)
    assert len(list(model.broker.read("state"))) == size
    carried, notes = left(history(model))
    assert (spent(carried), notes, carried.complete) == (before, [], True)
    assert len(carried.datasets) == 60
    assert parse(list(carried.lines())) == carried


def test_a_closed_shard_of_which_retention_took_some_balances_is_not_complete(model: Model) -> None:
    close_for_ever(model)
    first = next(at for at, event in enumerate(events(model)) if event["type"] == EventType.BALANCE)
    carried, _ = left(history(model, shown=[*model.broker.read("alerts", committed=False)][first + 3 :]))
    assert not carried.complete
    assert all(spent(carried).get(name, 0) >= amount for name, amount in model.spent.items())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(2, 9))
def test_a_takeover_goes_on_with_closing_and_does_nothing_twice(model, number, after):
    model.send(3, "late", dataset=NAMES[30])
    close(model)
    with contextlib.suppress(ApplicationClosed):  # fewer commits than that, and the last of them seen
        model.dies_at(nth(number), after=after)
    in_progress = model.stored_meta().commands.in_progress
    closing = in_progress is not None and in_progress.closes
    assert closing is ((6, True) <= (number, after) <= (8, False))
    model.send(3, "later", dataset=NAMES[31])
    serve_to_the_end(model)
    assert [event["data"]["dataset"] for event in events(model, EventType.BALANCE)] == sorted(model.spent)
    assert len(events(model, EventType.APPLICATION_CLOSED)) == 1
    assert [event["sequence"] for event in events(model)] == list(range(1, len(events(model)) + 1))
    if closing:  # durable with the first slice: whatever comes later is tested no more
        assert NAMES[31] not in model.spent


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cluster": "another"}, "meant for cluster 'another'"),
        ({"event": 3}, "names event 3"),
        ({"origin": "1-00"}, "of origin '1-00'"),
        ({"state": "00"}, "names event"),
        ({}, "can be proved"),
    ],
)
def test_a_command_to_give_up_that_names_something_else_or_a_sound_state_is_refused(model, fields, why):
    if fields:
        model.restore({})
    before = model.backup()
    with pytest.raises(CommandRefused, match=why):
        give_up(model, **fields)
    assert model.backup() == before


def test_a_closed_shard_whose_key_is_lost_is_given_up_for_its_successor_only(model: Model) -> None:
    close_for_ever(model)
    model.restore({})
    with pytest.raises(CommandRefused, match="closed for successor 'next'"):
        give_up(model, successor="other")
    assert model.backup() == {}
    give_up(model)
    audit = Audit()
    for event in model.broker.read("alerts"):
        audit.add(0, event.offset, event.value)
    assert audit.problems == []
    carried, _ = left(history_of_closed(model, key=bytes(32)))
    assert all(spent(carried)[name] >= amount for name, amount in model.spent.items())


def test_alerts_that_are_older_than_a_state_leave_nothing(model: Model) -> None:
    entries = model.broker.partitions["alerts"]
    while msgspec.json.decode(entries[-1].value or b"{}").get("type") != EventType.ALERT:
        entries.pop()
    del entries[-1]
    give_up(model)
    carried, notes = left(history_of_closed(model))
    assert nothing_is_left(carried)
    assert "may be missing" in notes[0]


@pytest.mark.parametrize("end", [False, True])
def test_a_forged_record_of_a_state_given_up_hides_no_event(model: Model, end: bool) -> None:
    """Nor does it with the forged end that it names."""
    spend = model.spent
    early, shown = events(model)[2], list(model.broker.read("alerts", committed=False))
    closed = Closed("next", early["sequence"], early["origin"])
    if end:
        closed = Closed("next", 4, "3-00")
        data = events(model)[0]["data"] | {"detail": {"successor": "next", "balances": 0}}
        changed = {"type": EventType.APPLICATION_CLOSED, "sequence": 4, "origin": "3-00", "data": data}
        shown.insert(3, replace(shown[0], value=msgspec.json.encode(early | changed)))
    carried, _ = left(history(model, closed=closed, shown=shown))
    assert all(carried.datasets[name].spent >= amount * UNITS for name, amount in spend.items())


@pytest.mark.parametrize("before", [0, 1])
def test_behind_a_gap_a_part_of_one_transaction_leaves_nothing(model: Model, before: int) -> None:
    """An aborted publication that retention took may have shown the rest of it, but not of the one before."""
    shown = [msgspec.json.decode(entry.value or b"") for entry in model.broker.read("alerts")]
    first = [event["origin"] for event in shown].index(shown[-1]["origin"])
    assert shown[first] != shown[-1]
    shard = history(model, shown=list(model.broker.read("alerts"))[first - before : first + 1])
    shard.closed = Closed("next", 0, "")
    carried, _ = left(shard)
    balance = carried.datasets[shown[first]["data"]["dataset"]]
    assert (balance.spent < balance.limit) == bool(before)


@pytest.mark.parametrize("gives_up", [False, True])
def test_where_the_end_is_missing_a_forged_event_shows_nothing_that_is_left(model, gives_up):
    """A forged event behind a gap says that nothing was spent: the dataset would count as seen since the gap."""
    template = next(event for event in events(model, EventType.DECLARED))
    close_for_ever(model)
    newest = model.backup()
    model.broker.first["alerts"] = model.broker.span("alerts", committed=False)[1]
    number = 1_000
    if gives_up:  # behind it, and the newest state is put back then
        model.restore({})
        give_up(model)
        model.restore(newest)
        number = 2
    data = template["data"] | {"account": template["data"]["account"] | {"spent": 0.0}}
    forge(model, template, sequence=number, id="forged", data=data)
    carried, notes = left(history_of_closed(model))
    assert nothing_is_left(carried)
    assert not carried.complete
    assert "Its last events may be missing" in notes[0]


def test_two_histories_on_one_partition_leave_nothing_even_of_a_raise_that_events_show(model: Model) -> None:
    """Carried over with the limit as it was declared, the same raise would pay a second time."""
    model.command("raise", action=Action.RAISE_BUDGET, dataset=NAMES[0], limit="9")
    model.serve()
    forge(model, events(model)[3], origin="7-0000000000000000")
    carried, notes = left(history(model, closed=Closed("next", 0, "")))
    assert spent(carried) == dict.fromkeys(NAMES, 5) | {NAMES[0]: 9}
    assert nothing_is_left(carried)
    assert "different histories" in notes[0]


def test_a_successor_begins_with_what_was_spent_and_its_events_say_so(model: Model) -> None:
    close_for_ever(model)
    carried, _ = left(history(model))
    datasets = f"[{{names: [{', '.join(NAMES)}], limit: 5, unit: one basket}}]"
    text = f"application: next\ncarried_over: file\ndatasets: {datasets}\nmonitors:\n  - {PLAIN}\n"
    spec = load_spec(text, read_names=lambda name: list(carried.lines()))
    successor = Model(spec)
    successor.send(60, "more", dataset=NAMES[0])
    successor.serve(2)
    begun = events(successor, EventType.STATE_BEGUN)[0]["data"]["detail"]
    assert (begun["carried_from"], begun["carried_digest"]) == ("app", spec.carried.digest)
    first = events(successor, EventType.DECLARED)[0]["data"]
    before = model.spent[NAMES[0]]
    assert (first["account"]["spent"], first["detail"]["spent_before"]) == (before, before)
    assert before < successor.spent[NAMES[0]] <= 5


def test_a_forged_event_of_nothing_leaves_a_file_that_reads(model: Model) -> None:
    """A dataset with a limit of 0 and a topic with a sensitivity of 0 do not exist."""
    last = len(events(model))
    account = {"measure": "epsilon", "charge": 0.0, "spent": 0.0, "reserved": 0.0, "limit": 0.0}
    nothing = {"dataset": "none", "monitor": "", "run": 0, "reason": "first-start", "detail": {"unit": "u"}}
    declared_topic = {"topic": "t", "sensitivity": "0", "monotonic": True}
    none = {EventType.DECLARED: nothing | {"account": account}}
    none[EventType.TOPIC_DECLARED] = nothing | {"dataset": "", "account": None, "detail": declared_topic}
    for number, (kind, data) in enumerate(none.items(), start=last + 1):
        forge(model, events(model)[-1], type=kind, sequence=number, data=data, id=f"forged/{number}")
    carried, _ = left(history(model, closed=Closed("next", 0, "")))
    assert parse(list(carried.lines())) == carried
    assert carried.datasets["none"].spent == carried.datasets["none"].limit
    assert carried.topics["t"].sensitivity == 1


@pytest.mark.parametrize(
    ("shown", "closed_day", "ends"), [("1970-01-05", 1, 5), ("1970-01-02", 7, 8), ("1970-01-02", 0, 2)]
)
def test_a_successor_is_told_which_generated_periods_had_begun(shown, closed_day, ends):
    """The latest one shown, or that of ten minutes after the last event; none of them is among the datasets."""
    daily = "{generate: 'shop-{date}', from: 1970-01-01, limit: 2, unit: one basket}"
    datasets = f"[{daily}, {{name: plain, limit: 5, unit: one basket}}]"
    day = 86_400_000
    spec = load_spec(f"application: app\ndatasets: {datasets}\nmonitors:\n  - {PLAIN}\n")
    one, nothing = (ShardHistory("app", 0, lambda *_: False, closed=Closed("next", 1, "")) for _ in range(2))
    one.datasets[f"shop-{shown}"] = Shown(Kind.PURE, "one basket")
    one.latest_ms = closed_day * day - 600_000
    carried, _ = left(one, spec, now_ms=99 * day)
    assert carried.watermarks == {"shop-{date}": ends * day}
    assert set(carried.datasets) == {"plain"}
    assert parse(list(carried.lines())) == carried
    of_nothing, _ = left(nothing, spec, now_ms=99 * day)
    assert of_nothing.watermarks == {"shop-{date}": 100 * day}, "no event is left"
    again, _ = left(nothing, replace(spec, carried=carried), now_ms=day)
    assert again.watermarks == carried.watermarks
