"""An application that is closed on a modelled log, by its owner or with its state given up, and what is left of it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stream_svt.errors import ApplicationClosed, CommandRefused, UnreadableState
from stream_svt.monitor.carried import Carried, parse
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.monitor.spec import load_spec
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.carry_over import CarryOverRefused, ShardHistory, Shown, carry_over
from stream_svt.protocol.journal import Closed
from stream_svt.protocol.sealing import proof_checker
from stream_svt.service.audit import Auditor
from tests.simulation.effects import finish
from tests.simulation.model import KEY, PLAIN, Few, Model, backup, command, restore, send
from tests.simulation.test_commands import NAMES, SPEC, dies_at

UNITS = Kind.PURE.units
SPEC_TEXT = """
application: app
datasets:
  - {daily}
  - {{name: plain, limit: 5, unit: one basket}}
monitors:
  - {{name: m, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 9], threshold: 5,
     expected_queries: 9}}
"""


@pytest.fixture
def model(few_at_once: None) -> Model:
    """An application of many datasets, some of which have spent."""
    made = Model(partitions=1, spec=SPEC)
    for name in NAMES[:20]:
        send(made, 2, f"{name}-", dataset=name)
    for _ in range(2):
        made.serve()
    return made


def close(model: Model) -> None:
    command(model, "close", action=Action.CLOSE_APPLICATION, successor="next")


def close_for_ever(model: Model) -> None:
    close(model)
    serve_to_the_end(model)


def serve_to_the_end(model: Model) -> None:
    """Serve until the shard says that it is closed."""
    with contextlib.suppress(ApplicationClosed):
        model.serve()
    with pytest.raises(ApplicationClosed, match="closed for ever"):
        model.serve()
    model.settle()


def events(model: Model, kind: EventType | None = None) -> list[dict[str, Any]]:
    return [event for event in model.events()[0] if kind is None or event["type"] == kind]


def history(model: Model, key: bytes = KEY, closed: Closed | None = None) -> ShardHistory:
    """Read the events, where wanted with what the state says of the end."""
    found = ShardHistory("app", 0, proof_checker([key]), closed=closed)
    for entry in model.broker.read("alerts-0", committed=False):
        found.take(entry)
    found.end()
    return found


def history_of_closed(model: Model, key: bytes = KEY) -> ShardHistory:
    """Read how the state says that the shard was closed, then the events."""
    return history(model, key, finish(model.journal(0, 1).read_closed()))


def left(shard: ShardHistory, successor: str = "next", **more: Any) -> tuple[Carried, list[str]]:
    options = {"cluster": "cluster", "alerts": "alerts", "home": lambda name: 0} | more
    return carry_over(SPEC, [shard], **({"successor": successor, "now_ms": 0} | options))


def spent(carried: Carried) -> dict[str, float]:
    return {name: balance.spent / UNITS for name, balance in carried.datasets.items() if balance.spent}


def give_up(model: Model, **fields: Any) -> None:
    """Give the state of the shard up, as an operator would who looked at the alerts."""
    entries = [msgspec.json.decode(entry.value) for entry in model.broker.read("alerts-0", committed=False)]
    newest = entries[-1] if entries else {"sequence": 0, "origin": "", "stateid": ""}
    wanted = Command(
        **{
            "id": "give-up",
            "action": Action.CLOSE_APPLICATION,
            "successor": "next",
            "cluster": "cluster",
            "event": newest["sequence"],
            "origin": newest["origin"],
            "state": newest["stateid"],
        }
        | fields
    )
    finish(model.journal(0, 1).give_up(wanted))
    model.settle()


def test_a_shard_that_is_closed_publishes_a_balance_of_every_ledger_and_opens_no_more(model: Model) -> None:
    before = model.books()
    close_for_ever(model)
    balances = {
        event["data"]["dataset"]: event["data"]["account"] for event in events(model, EventType.BALANCE)
    }
    assert {name: account["spent"] for name, account in balances.items()} == {
        name: amount for name, (amount, _) in before.items()
    }
    assert {account["reserved"] for account in balances.values()} == {0}
    *_, reply, closed = events(model)
    assert reply["type"] == EventType.COMMAND_REPLY
    assert (closed["type"], closed["data"]["detail"]) == (
        EventType.APPLICATION_CLOSED,
        {"successor": "next", "balances": 20},
    )
    size = len(list(model.broker.read("state-0")))
    serve_to_the_end(model)
    assert len(list(model.broker.read("state-0"))) == size


def test_nothing_is_tested_once_the_application_is_being_closed(model: Model) -> None:
    close(model)
    owner, _ = model.tenure(feed=Few)
    feed: Any = owner._feed
    feed.rounds, feed.hook = 12, lambda number: number == 1 and send(model, 3, "late", dataset=NAMES[-1])
    finish(owner.open())
    with pytest.raises(ApplicationClosed):
        finish(owner.run())
    model.settle()
    assert NAMES[-1] not in model.books()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(2, 9))
def test_a_takeover_goes_on_with_closing_and_does_nothing_twice(
    model: Model, number: int, after: bool
) -> None:
    send(model, 3, "late", dataset=NAMES[30])
    close(model)
    with contextlib.suppress(ApplicationClosed):  # fewer commits than that, and the last of them seen
        dies_at(model, number, after=after)
    model.broker.fence("app-0")
    model.settle()
    closing = finish(model.journal(0, 1).look()).commands.closing
    assert closing is ((6, True) <= (number, after) <= (8, False))
    send(model, 3, "later", dataset=NAMES[31])
    serve_to_the_end(model)
    assert [event["data"]["dataset"] for event in events(model, EventType.BALANCE)] == sorted(model.books())
    assert len(events(model, EventType.APPLICATION_CLOSED)) == 1
    assert [event["sequence"] for event in events(model)] == list(range(1, len(events(model)) + 1))
    if closing:  # durable with the first slice: whatever comes later is tested no more
        assert NAMES[31] not in model.books()


def test_what_is_left_is_what_the_owner_proved(model: Model) -> None:
    before = {name: amount for name, (amount, _) in model.books().items()}
    close_for_ever(model)
    carried, notes = left(history(model))
    assert (spent(carried), notes, carried.complete) == (before, [], True)
    assert len(carried.datasets) == 60
    assert parse(list(carried.lines())) == carried


def test_without_the_key_every_open_run_counts_in_full(model: Model) -> None:
    most = {
        name: max(
            event["data"]["account"]["spent"] + event["data"]["account"]["reserved"]
            for event in events(model)
            if event["data"].get("dataset") == name and event["data"]["account"]
        )
        for name in NAMES[:20]
    }
    close_for_ever(model)
    assert history(model, key=bytes(32)).closed is None
    carried, notes = left(history_of_closed(model, key=bytes(32)))
    assert spent(carried) == most
    assert [note.partition(":")[0] for note in notes] == ["shard 0"]
    assert carried.complete  # every event is there, so a dataset that none shows has spent nothing


def test_a_lost_state_costs_what_the_alerts_show_reserved_and_no_more(model: Model) -> None:
    restore(model, {})
    with pytest.raises(UnreadableState):
        finish(model.journal(0, 1).open())
    give_up(model)
    carried, _ = left(history_of_closed(model))
    assert set(spent(carried)) == set(NAMES[:20])
    assert all(amount <= 2 for amount in spent(carried).values())
    with pytest.raises(ApplicationClosed):
        finish(model.journal(0, 1).open())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cluster": "another"}, "meant for cluster 'another'"),
        ({"event": 3}, "names event 3"),
        ({"origin": "1-00"}, "of origin '1-00'"),
        ({"state": "00"}, "names event"),
    ],
)
def test_a_command_to_give_up_that_names_something_else_is_refused(
    model: Model, fields: dict[str, Any], why: str
) -> None:
    restore(model, {})
    with pytest.raises(CommandRefused, match=why):
        give_up(model, **fields)
    assert backup(model) == {}


def test_a_state_that_can_be_proved_is_not_given_up(model: Model) -> None:
    with pytest.raises(CommandRefused, match="can be proved"):
        give_up(model)


def test_a_closed_shard_whose_key_is_lost_is_given_up_for_its_successor_only(model: Model) -> None:
    close_for_ever(model)
    restore(model, {})
    with pytest.raises(CommandRefused, match="closed for successor 'next'"):
        give_up(model, successor="other")
    assert backup(model) == {}
    give_up(model)
    auditor = Auditor()
    for event in model.broker.read("alerts-0"):
        auditor.add(0, event.offset, event.value)
    assert auditor.audit.problems == []
    carried, _ = left(history_of_closed(model, key=bytes(32)))
    assert all(spent(carried)[name] >= amount for name, (amount, _) in model.books().items())


def test_no_state_put_back_wakes_a_shard_up_that_was_given_up(model: Model) -> None:
    newest = backup(model)
    restore(model, {})
    give_up(model)
    for key, value in newest.items():
        model.broker.write("state-0", key, value)
    with pytest.raises(ApplicationClosed):
        finish(model.journal(0, 1).open())


def test_an_application_that_is_not_closed_or_closed_for_another_is_refused(model: Model) -> None:
    with pytest.raises(CarryOverRefused, match="not closed yet: shard 0"):
        left(history(model))
    close_for_ever(model)
    with pytest.raises(CarryOverRefused, match="closed for successor 'next'"):
        left(history(model), successor="other")


def test_a_forged_end_closes_nothing(model: Model) -> None:
    forged = events(model)[-1] | {
        "type": EventType.APPLICATION_CLOSED,
        "sequence": len(events(model)) + 1,
        "data": events(model)[0]["data"] | {"detail": {"successor": "next", "balances": 0}},
    }
    model.broker.write("alerts-0", b"", msgspec.json.encode(forged))
    with pytest.raises(CarryOverRefused, match="not closed yet"):
        left(history(model))


def test_a_mirror_holds_what_its_source_proved_and_else_nothing_unless_the_operator_says_so(
    model: Model,
) -> None:
    carried, notes = left(history(model), cluster="mirror")
    assert all(balance.spent == balance.limit for balance in carried.datasets.values())
    assert "nobody says that it holds the source's last event" in notes[0]
    told, _ = left(history(model), cluster="mirror", source_ended=True)
    assert set(spent(told)) == set(NAMES[:20])
    close_for_ever(model)
    proved, _ = left(history(model), cluster="mirror")
    assert spent(proved) == {name: amount for name, (amount, _) in model.books().items()}


def test_alerts_that_are_older_than_a_state_leave_nothing(model: Model) -> None:
    entries = model.broker.partitions["alerts-0"]
    while msgspec.json.decode(entries[-1].value or b"{}").get("type") != EventType.ALERT:
        entries.pop()
    del entries[-1]
    give_up(model)
    carried, notes = left(history_of_closed(model))
    assert all(balance.spent == balance.limit for balance in carried.datasets.values())
    assert "may be missing" in notes[0]


def test_a_forged_record_of_a_state_given_up_hides_no_event(model: Model) -> None:
    spend = {name: amount for name, (amount, _) in model.books().items()}
    early = events(model)[2]
    record = msgspec.json.encode(Closed("next", early["sequence"], early["origin"]))
    model.broker.write("state-0", b"closed", record)
    carried, _ = left(history_of_closed(model))
    assert all(carried.datasets[name].spent >= amount * UNITS for name, amount in spend.items())


def test_a_forged_end_hides_nothing_that_comes_behind_it(model: Model) -> None:
    spend = {name: amount for name, (amount, _) in model.books().items()}
    early = events(model)[2]
    data = events(model)[0]["data"] | {"detail": {"successor": "next", "balances": 0}}
    changed = {"type": EventType.APPLICATION_CLOSED, "sequence": 4, "origin": "3-00", "data": data}
    entries = list(model.broker.read("alerts-0", committed=False))
    entries.insert(3, replace(entries[0], value=msgspec.json.encode(early | changed)))
    shard = ShardHistory("app", 0, proof_checker([KEY]), closed=Closed("next", 4, "3-00"))
    for entry in entries:
        shard.take(entry)
    shard.end()
    carried, _ = left(shard)
    assert all(carried.datasets[name].spent >= amount * UNITS for name, amount in spend.items())


def test_what_stands_before_a_gap_has_nothing_left(model: Model) -> None:
    entries = model.broker.partitions["alerts-0"]
    gone = [at for at, entry in enumerate(entries) if b'"dataset":"d005"' in (entry.value or b"")][-1]
    later = {name for name in NAMES for entry in entries[gone + 1 :] if name.encode() in (entry.value or b"")}
    model.broker.first["alerts-0"] = gone + 1
    restore(model, {})
    give_up(model)
    carried, notes = left(history_of_closed(model))
    empty = {name for name, balance in carried.datasets.items() if balance.spent == balance.limit}
    assert empty == set(NAMES) - later
    assert not carried.complete
    assert "are missing" in notes[0]


@pytest.mark.parametrize("before", [0, 1])
def test_behind_a_gap_a_part_of_one_transaction_leaves_nothing(model: Model, before: int) -> None:
    """An aborted publication that retention took may have shown the rest of it, but not of the one before."""
    shown = [msgspec.json.decode(entry.value or b"") for entry in model.broker.read("alerts-0")]
    first = [event["origin"] for event in shown].index(shown[-1]["origin"])
    assert shown[first] != shown[-1]
    entries = list(model.broker.read("alerts-0"))[first - before : first + 1]
    shard = ShardHistory("app", 0, proof_checker([KEY]))
    for entry in entries:
        shard.take(entry)
    shard.end()
    shard.closed = Closed("next", 0, "")
    carried, _ = left(shard)
    balance = carried.datasets[shown[first]["data"]["dataset"]]
    assert (balance.spent < balance.limit) == bool(before)


@pytest.mark.parametrize("gives_up", [False, True])
def test_where_the_end_is_missing_a_forged_event_shows_nothing_that_is_left(
    model: Model, gives_up: bool
) -> None:
    """A forged event behind a gap says that nothing was spent: the dataset would count as seen since the gap."""
    template = next(event for event in events(model, EventType.DECLARED))
    close_for_ever(model)
    newest = backup(model)
    model.broker.first["alerts-0"] = model.broker.span("alerts-0", committed=False)[1]
    number = 1_000
    if gives_up:  # behind it, and the newest state is put back then
        restore(model, {})
        give_up(model)
        restore(model, newest)
        number = 2
    forged = template | {"sequence": number, "id": "forged"}
    forged["data"] = template["data"] | {"account": template["data"]["account"] | {"spent": 0.0}}
    model.broker.write("alerts-0", b"", msgspec.json.encode(forged))
    carried, notes = left(history_of_closed(model))
    assert all(balance.spent == balance.limit for balance in carried.datasets.values())
    assert not carried.complete
    assert "Its last events may be missing" in notes[0]


def test_where_nothing_is_left_a_raise_that_events_show_grants_nothing_again(model: Model) -> None:
    """Carried over with the limit as it was declared, the same raise would pay a second time."""
    command(model, "raise", action=Action.RAISE_BUDGET, dataset=NAMES[0], limit="9")
    model.serve()
    second = events(model)[3] | {"origin": "7-0000000000000000"}
    model.broker.write("alerts-0", b"", msgspec.json.encode(second))
    carried, _ = left(history(model, closed=Closed("next", 0, "")))
    assert {name: balance.spent / UNITS for name, balance in carried.datasets.items()} == dict.fromkeys(
        NAMES, 5
    ) | {NAMES[0]: 9}


def test_two_histories_on_one_partition_leave_nothing(model: Model) -> None:
    second = events(model)[3] | {"origin": "7-0000000000000000"}
    model.broker.write("alerts-0", b"", msgspec.json.encode(second))
    carried, notes = left(history(model, closed=Closed("next", 0, "")))
    assert all(balance.spent == balance.limit for balance in carried.datasets.values())
    assert "different histories" in notes[0]


def test_a_successor_begins_with_what_was_spent_and_its_events_say_so(model: Model) -> None:
    close_for_ever(model)
    carried, _ = left(history(model))
    datasets = f"[{{names: [{', '.join(NAMES)}], limit: 5, unit: one basket}}]"
    text = f"application: next\ncarried_over: file\ndatasets: {datasets}\nmonitors:\n  - {PLAIN}\n"
    spec = load_spec(text, read_names=lambda name: list(carried.lines()))
    successor = Model(partitions=1, spec=spec)
    send(successor, 60, "more", dataset=NAMES[0])
    for _ in range(2):
        successor.serve()
    begun = events(successor, EventType.STATE_BEGUN)[0]["data"]["detail"]
    assert (begun["carried_from"], begun["carried_digest"]) == ("app", spec.carried_digest)
    first = events(successor, EventType.DECLARED)[0]["data"]
    before = model.books()[NAMES[0]][0]
    assert (first["account"]["spent"], first["detail"]["spent_before"]) == (before, before)
    assert before < successor.books()[NAMES[0]][0] <= 5


def test_a_forged_event_of_nothing_leaves_a_file_that_reads(model: Model) -> None:
    """A dataset with a limit of 0 and a topic with a sensitivity of 0 do not exist."""
    last = len(events(model))
    account = {"measure": "epsilon", "charge": 0.0, "spent": 0.0, "reserved": 0.0, "limit": 0.0}
    nothing = {"dataset": "none", "monitor": "", "run": 0, "reason": "first-start", "detail": {"unit": "u"}}
    declared_topic = {"topic": "t", "sensitivity": "0", "monotonic": True}
    for number, (kind, data) in enumerate(
        (
            (EventType.DECLARED, nothing | {"account": account}),
            (EventType.TOPIC_DECLARED, nothing | {"dataset": "", "account": None, "detail": declared_topic}),
        ),
        start=last + 1,
    ):
        forged = events(model)[-1] | {
            "type": kind,
            "sequence": number,
            "data": data,
            "id": f"forged/{number}",
        }
        model.broker.write("alerts-0", b"", msgspec.json.encode(forged))
    carried, _ = left(history(model, closed=Closed("next", 0, "")))
    assert parse(list(carried.lines())) == carried
    assert carried.datasets["none"].spent == carried.datasets["none"].limit
    assert carried.topics["t"].sensitivity == 1


@pytest.mark.parametrize(
    ("shown", "closed_day", "ends"), [("1970-01-05", 1, 5), ("1970-01-02", 7, 8), ("1970-01-02", 0, 2)]
)
def test_a_successor_is_told_which_generated_periods_had_begun(
    shown: str, closed_day: int, ends: int
) -> None:
    """The latest one shown, or that of ten minutes after the last event; none of them is among the datasets."""
    daily = "{generate: 'shop-{date}', from: 1970-01-01, limit: 2, unit: one basket}"
    day = 86_400_000
    spec = load_spec(SPEC_TEXT.format(daily=daily))
    one, nothing = (ShardHistory("app", 0, lambda *_: False, closed=Closed("next", 1, "")) for _ in range(2))
    one.datasets[f"shop-{shown}"] = Shown(Kind.PURE, "one basket")
    one.latest_ms = closed_day * day - 600_000
    options = {
        "cluster": "",
        "alerts": "alerts",
        "successor": "next",
        "home": lambda name: 0,
        "now_ms": 99 * day,
    }
    carried, _ = carry_over(spec, [one], **options)
    assert carried.watermarks == {"shop-{date}": ends * day}
    assert set(carried.datasets) == {"plain"}
    assert parse(list(carried.lines())) == carried
    assert carry_over(spec, [nothing], **options)[0].watermarks == {"shop-{date}": 100 * day}, (
        "no event is left"
    )
    again, _ = carry_over(replace(spec, carried=carried), [nothing], **options | {"now_ms": day})
    assert again.watermarks == carried.watermarks
