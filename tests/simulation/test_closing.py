"""An application that is closed on a modelled log, by its owner or with its state given up, and what is left of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stream_svt.errors import ApplicationClosed, CommandRefused
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import Bounds
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.history.audit import Audit
from stream_svt.protocol.history.carry_over import ShardHistory, carry_over
from stream_svt.protocol.sealing import proof_checker
from stream_svt.protocol.shard_states import Cause
from stream_svt.protocol.state_records import Closed
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import Carried, MonitorPosition, parse
from stream_svt.settings.datasets import RetiredDatasets
from tests.simulation.chains import giving_up
from tests.simulation.log import finish
from tests.simulation.model import COMMON, KEY, MANY, PLAIN, SPEC_OF_MANY, Model, nth

UNITS = Kind.PURE.units


@pytest.fixture
def model(few_at_once: None) -> Model:
    made = Model(SPEC_OF_MANY)
    for name in MANY[:20]:
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
    shard: ShardHistory, spec: ApplicationSpec = SPEC_OF_MANY, now_ms: int = 0, **more: Any
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
    detail = closed["data"]["detail"]
    assert (closed["type"], detail["successor"], detail["balances"]) == (
        EventType.APPLICATION_CLOSED,
        "next",
        20,
    )
    end = model.broker.span("t")[1]
    clock_ms = model.broker.partitions["t"][-1].timestamp
    stopped = {"topic": "t", "offset": end, "row": 0, "clock_ms": clock_ms, "topic_id": ""}
    assert (detail["positions"], detail["watermarks"]) == ({"m0": stopped}, {})
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
    model.send(3, "late", dataset=MANY[30])
    close(model)
    with contextlib.suppress(ApplicationClosed):  # fewer commits than that, and the last of them seen
        model.dies_at(nth(number), after=after)
    in_progress = model.stored_meta().commands.in_progress
    closing = in_progress is not None and in_progress.closes
    assert closing is ((6, True) <= (number, after) <= (8, False))
    model.send(3, "later", dataset=MANY[31])
    serve_to_the_end(model)
    assert [event["data"]["dataset"] for event in events(model, EventType.BALANCE)] == sorted(model.spent)
    assert len(events(model, EventType.APPLICATION_CLOSED)) == 1
    assert [event["sequence"] for event in events(model)] == list(range(1, len(events(model)) + 1))
    if closing:  # durable with the first slice: whatever comes later is tested no more
        assert MANY[31] not in model.spent


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
    model.command("raise", action=Action.RAISE_BUDGET, dataset=MANY[0], limit="9")
    model.serve()
    forge(model, events(model)[3], origin="7-0000000000000000")
    carried, notes = left(history(model, closed=Closed("next", 0, "")))
    assert spent(carried) == dict.fromkeys(MANY, 5) | {MANY[0]: 9}
    assert nothing_is_left(carried)
    assert "different histories" in notes[0]


def test_a_successor_begins_with_what_was_spent_and_its_events_say_so(model: Model) -> None:
    close_for_ever(model)
    carried, _ = left(history(model))
    datasets = f"[{{names: [{', '.join(MANY)}], limit: 5, unit: one basket}}]"
    text = f"application: next\ncarried_over: file\ndatasets: {datasets}\nmonitors:\n  - {PLAIN}\n"
    spec = load_spec(text, read_names=lambda name: list(carried.lines()))
    successor = Model(spec)
    successor.send(60, "more", dataset=MANY[0])
    successor.serve(2)
    begun = events(successor, EventType.STATE_BEGUN)[0]["data"]["detail"]
    assert (begun["carried_from"], begun["carried_digest"]) == ("app", spec.carried.digest)
    first = events(successor, EventType.DECLARED)[0]["data"]
    before = model.spent[MANY[0]]
    assert (first["account"]["spent"], first["detail"]["spent_before"]) == (before, before)
    assert before < successor.spent[MANY[0]] <= 5


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


# A move in the middle of a day


DAILY = "{generate: 'd-{date}', from: 2026-09-01, lateness: 6h, limit: 99, unit: one basket}"
MUTING = f"{{name: m0, mute: 1h, {COMMON}}}"
TODAY = "d-2026-09-21"
"""The day of a model's clock, at noon."""


def moved(model: Model, monitor: str = MUTING, **options: Any) -> Model:
    """Return the successor of a closed application, on the same query topic."""
    carried, notes = left(history_of_closed(model), model.spec, **options)
    assert notes == []
    successor = Model(daily(monitor, carried), start_at="latest")
    successor.now = model.now
    successor.broker.partitions["t"] = model.broker.partitions["t"]
    return successor


def daily(monitor: str = MUTING, carried: Carried | None = None) -> ApplicationSpec:
    head = "application: app\n" if carried is None else "application: next\ncarried_over: file\n"
    text = f"{head}datasets:\n  - {DAILY}\nmonitors:\n  - {monitor}\n"
    return load_spec(text, read_names=lambda _: list(carried.lines()) if carried else [])


def reported(model: Model) -> list[tuple[int, str]]:
    """Return offset and series of each alert."""
    return [(one["position"]["offset"], one["series"]) for one in model.told(EventType.ALERT)]


def ask(model: Model, *series: str, dataset: str = TODAY) -> None:
    for name in series:
        model.send(1, f"{name}-", dataset=dataset, series=name)


def ended(*series: str, topic_id: str | None = None) -> Model:
    """Return an application that found these alerts in two lives and was then closed."""
    model = Model(daily())
    if topic_id:
        model.broker.topic_ids["t"] = topic_id
    model.serve()
    ask(model, *series)
    model.serve(2)
    close_for_ever(model)
    return model


@pytest.mark.parametrize("round_", range(1, 7))
def test_a_successor_goes_on_where_the_application_stopped(round_: int) -> None:
    """No query is read twice and none is left out, although nobody reads the topic from its begin or from its end."""
    model = Model(daily())
    model.serve()
    ask(model, *(f"s{number}" for number in range(40)))
    with contextlib.suppress(ApplicationClosed):
        model.serve_a_while(20, lambda number: number == round_ and close(model), interval="100ms")
    serve_to_the_end(model)
    before = reported(model)
    assert 0 < len(before) < 40
    ask(model, "late")
    successor = moved(model)
    successor.serve(3)
    assert [offset for offset, _ in before + reported(successor)] == list(range(41))


def test_an_application_moves_in_the_middle_of_a_day() -> None:
    """With the balance, the running period and the mutes; the next day begins with its whole limit."""
    model = ended("a", "b", "c", "d")
    assert [name for _, name in reported(model)] == ["a", "b", "c", "d"]
    successor = moved(model)
    ask(successor, "a", "b", "new")
    successor.serve(3)
    assert [name for _, name in reported(successor)] == ["new"]
    declared_event = successor.told(EventType.DECLARED)[0]
    assert declared_event["dataset"] == TODAY
    assert declared_event["detail"]["spent_before"] == model.spent[TODAY] > 0
    ask(successor, "over", dataset="d-2026-09-20")
    successor.now += 1801
    ask(successor, "a")
    successor.now += 1801
    ask(successor, "a")
    successor.serve(3)
    assert [name for _, name in reported(successor)] == ["new", "a"]
    successor.now += 12 * 3600
    ask(successor, "a", dataset="d-2026-09-22")
    successor.serve(3)
    tomorrow = [one for one in successor.told(EventType.DECLARED) if one["dataset"] != TODAY]
    assert [(one["dataset"], one["account"]["spent"]) for one in tomorrow] == [("d-2026-09-22", 0.0)]


def test_the_runs_of_two_applications_on_one_day_keep_its_limit() -> None:
    small = daily().generators[0]
    model = Model(daily(MUTING.replace("mute: 1h", "mute: none")))
    assert small.each.limit == 99 * UNITS
    model.serve()
    for applications in range(3):
        ask(model, *(f"{applications}-{number}" for number in range(150)))
        model.serve(2)
        if applications < 2:
            close_for_ever(model)
            model = moved(model, MUTING.replace("mute: 1h", "mute: none"))
    assert 98 < model.spent[TODAY] <= 99


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(5))
def test_a_takeover_in_the_middle_goes_on_with_the_mutes(monkeypatch, few_at_once, number, after):
    """A line at a time, and a commit holds few of them: none is lost, none is stored twice."""
    monkeypatch.setattr("stream_svt.settings.carried.SERIES_IN_LINE", 3)
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "bounds", Bounds(size=400))
    series = [f"s{count}" for count in range(30)]
    model = Model(daily())
    model.serve()
    ask(model, *series)
    model.serve(3)
    close_for_ever(model)
    assert len(reported(model)) == 30
    successor = moved(model)
    successor.dies_at(nth(number), after=after)
    ask(successor, *series, "new")
    successor.serve(3)
    assert [name for _, name in reported(successor)] == ["new"]
    assert successor.stored_meta().progress is not None


def test_a_successor_waits_where_the_next_queries_are_gone() -> None:
    """As any owner does: retention deleted what nobody had read."""
    model = ended("a", "b")
    ask(model, "c", "d")
    successor = moved(model)
    successor.broker.first["t"] = 3
    assert "'stream-svt control accept-loss" in successor.waits().reason


@pytest.mark.parametrize("cluster", ["cluster", "other"])
def test_on_another_cluster_or_topic_a_successor_begins_as_configured(cluster: str) -> None:
    model = ended("a", "b")
    ask(model, "c")
    here = cluster == "cluster"
    successor = moved(model, MUTING.replace("topic: t", "topic: u") if here else MUTING)
    spec = successor.spec
    if not here:
        successor.spec = replace(spec, carried=msgspec.structs.replace(spec.carried, cluster=cluster))
    successor.broker.partitions["u"] = []
    successor.serve()
    model.send(1, "d-", topic="t", dataset=TODAY, series="d")
    successor.send(1, "d-", topic="u", dataset=TODAY, series="d")
    successor.serve(2)
    assert [name for _, name in reported(successor)] == ["d"], "start_at is latest"


def test_offsets_of_a_topic_that_was_created_again_are_no_positions() -> None:
    """Else queries of the new topic would be passed over without a word."""
    model = ended("a", "b", topic_id="first")
    successor = moved(model)
    successor.broker.topic_ids["t"] = "second"
    status = successor.waits()
    assert status.cause is Cause.RECORDS_LOST
    assert "'t', which was created again and now holds" in status.reason


def test_a_monitor_that_stopped_inside_a_record_goes_on_inside_of_it() -> None:
    """And a new monitor of the topic goes on where the others did."""
    with_more = f"{MUTING}\n  - {MUTING.replace('m0', 'more')}"
    position = MonitorPosition("t", 5, 3, 1_790_000_000_000)
    carried = Carried("app", "cluster", "alerts", "next", True, {}, {}, {}, {}, {0: {"m0": position}})
    engine = Model(daily(with_more, carried)).session().workload
    for _ in engine.gather(0, RetiredDatasets()):
        pass
    begun = engine.engine(0, KEY)
    begun.begin_state(1, "murmur2", "cluster")
    assert begun.positions() == {"m0": position, "more": MonitorPosition("t", 5, 0, 0)}
