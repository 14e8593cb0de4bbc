"""The AsyncAPI document describes what the service reads and writes: no more, no less."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from docs.generator import example
from docs.generator.asyncapi import EVENTS, QUERY_REASONS, message_name
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command, CommandProgress, apply_to_many
from stream_svt.monitor.released import CLOSING, CONTENT_TYPE, EventType, ReleasedEvent, encode
from stream_svt.monitor.takeover import change_spec
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.controls import Refusal, accept_all, decode_command
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import Carried
from stream_svt.settings.datasets import Balance
from stream_svt.worker.ports import Reject
from tests.documentation.pages import ROOT
from tests.simulation.chains import give_up
from tests.simulation.log import Broker, Entry
from tests.support.deciles import asked_in_all_ways
from tests.support.ended import LONG, Feed, application, written
from tests.support.engine_play import Play, Query
from tests.support.generated_play import GeneratedPlay, at, day
from tests.support.monitor_forms import FORMS, MONOTONIC, TOPIC, spec_of, stream
from tests.support.watched import ENDS, ended
from tests.support.worker import HIGH, LOW, Scene

DOCUMENT: dict[str, Any] = yaml.load((ROOT / "docs" / "asyncapi.yaml").read_text(), yaml.CSafeLoader)
HERE = Path(__file__).parent
CARRIED = """
application: app
carried_over: file
datasets: [{{name: a, limit: 5, unit: one basket}}]
monitors:
  - {{name: m0, {monitor}}}
"""


# The document itself


def _asyncapi() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads((HERE / "asyncapi-3.0.0.schema.json").read_text()))


def test_it_is_an_asyncapi_document():
    assert [error.message for error in _asyncapi().iter_errors(DOCUMENT)] == []


def test_a_document_that_is_wrong_is_refused():
    assert not _asyncapi().is_valid(DOCUMENT | {"asyncapi": "2.6.0"})


def test_every_reference_leads_somewhere():
    for reference in [node["$ref"] for node in _mappings(DOCUMENT) if "$ref" in node]:
        place: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def _mappings(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping inside a document."""
    if isinstance(node, dict):
        yield node
    if isinstance(node, dict | list):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _mappings(inner)


# What is released


class Reader:
    """Holds messages against the document, and refuses fields that it does not mention."""

    def __init__(self) -> None:
        self._components = _closed(copy.deepcopy(DOCUMENT["components"]))
        self._schemas: dict[str, jsonschema.Draft202012Validator] = {}
        self.seen: set[tuple[str, str | None]] = set()

    def problems(self, message: str, payload: object) -> list[str]:
        """Return what is wrong with the payload of a message."""
        if message not in self._schemas:
            payload_schema = self._components["messages"][message]["payload"]
            jsonschema.Draft202012Validator.check_schema(payload_schema)
            self._schemas[message] = jsonschema.Draft202012Validator(
                {**payload_schema, "components": self._components},
                format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
            )
        return [
            f"{error.json_path}: {error.message}" for error in self._schemas[message].iter_errors(payload)
        ]

    def event(self, record: bytes) -> list[str]:
        """Return what is wrong with an event, and remember its type and reason."""
        document = json.loads(record)
        kind = EventType(document["type"])
        self.seen.add((kind, document["data"].get("reason")))
        return self.problems(message_name(kind), document)


def _closed(document: Any) -> Any:
    """Forbid what is not mentioned, wherever a schema lists properties."""
    for node in list(_mappings(document)):
        if isinstance(node.get("properties"), dict):
            node.setdefault("additionalProperties", False)
    return document


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_all_that_monitors_release_is_described_and_all_that_is_described_is_released(reader):
    found = [problem for event in _of_every_kind() for problem in reader.event(event)]
    assert found == []
    documented = {(kind, reason) for kind, event in EVENTS.items() for reason in event.get("reasons", [None])}
    assert reader.seen == documented


def _of_every_kind() -> Iterator[bytes]:
    """Play monitors of every form, with every command and every mishap; yield what they release."""
    plays = [
        _operated(spec_of(*MONOTONIC, datasets="{names: [a, b, c], limit: 60, unit: one basket}")),
        _operated(spec_of(FORMS["plain"], datasets="{names: [a, b, c], limit: {rho: 1}, unit: one basket}")),
        _changed(),
        _covered_again(),
        _scheduled(),
        _lost(),
        _unread(),
        _retired(),
        _over(),
        _closed_for_ever(),
        *map(ended, ENDS),
        Feed(application()).read(written(application(), LONG)).play,
        *asked_in_all_ways(),
    ]
    for play in plays:
        for event in play.events:
            yield _encoded(event)
    yield _given_up()


def _encoded(event: ReleasedEvent) -> bytes:
    prove = Sealing(RecordContext("cluster", "app", "state", 0), [bytes(32)], bytes).prove
    return encode(
        event,
        application="app",
        shard=0,
        time="2026-11-21T09:30:00.000Z",
        origin="1-00000000000000aa",
        state_id="5e" * 16,
        prove=prove if event.type in CLOSING else None,
    )


def _operated(spec: ApplicationSpec) -> Play:
    play = Play(spec)
    play.play(TOPIC, stream(7, 1500, monitors=[monitor.name for monitor in spec.monitors]))
    actions = [Action.PAUSE, Action.RESUME, Action.RESUME, Action.RESAMPLE, Action.CLOSE]
    commands = [
        *(Command(number=1, id=f"c{at}", action=action, dataset="a") for at, action in enumerate(actions)),
        Command(
            number=1, id="up", action=Action.RAISE_BUDGET, dataset="a", limit="100", issued_by="somebody"
        ),
        Command(number=1, id="mute", action=Action.MUTE, dataset="a", series="tea", until_word="period"),
        Command(number=1, id="unmute", action=Action.UNMUTE, dataset="a", series="tea"),
        Command(number=1, id="rest", action=Action.PAUSE, dataset="b", until=1),
        Command(number=1, id="lost", action=Action.ACCEPT_LOSS),
    ]
    for command in commands:
        operations.apply(play.engine, command)
        play.commit()
    operations.expire(play.engine, commands[-1], 1_790_000_000_000)
    play.more(Query(1, 0, time_ms=1))  # ends the pause
    for number in range(40):  # until the budget is gone
        at = play.engine.next_offset(TOPIC) or 0
        play.play(TOPIC, [*[Query(1, 0)] * at, *[Query(1, 90_000, f"new{number}-{k}") for k in range(60)]])
    return play


def _begun(*forms: str) -> Play:
    """Return a play with open runs on three datasets."""
    play = Play(spec_of(*(forms or [FORMS["plain"]])))
    play.play(TOPIC, [Query(k % 3, 0) for k in range(30)])
    return play


def _changed() -> Play:
    play = Play(spec_of(FORMS["plain"], FORMS["ladder"]))
    play.play(TOPIC, stream(5, 200))
    more = FORMS["plain"].replace("sensitivity: 1", "sensitivity: 2")
    for forms in (
        [FORMS["plain"]],
        [FORMS["plain"].replace("cutoff: 3", "cutoff: 2"), FORMS["retry"]],
        [more],
    ):
        change_spec(play.engine, spec_of(*forms))
        play.commit()
    play.engine.adopt((1, "5f0c"))
    at = play.engine.next_offset(TOPIC) or 0
    play.play(TOPIC, [*[Query(0, 0)] * at, Query(0, 0)])
    operations.apply(play.engine, Command(number=1, id="now", action=Action.PAUSE, dataset="a", now=True))
    play.commit()
    return play


def _covered_again() -> Play:
    """Cover paused and stopped datasets again."""
    play = _begun()
    for action in (Action.CLOSE, Action.PAUSE):
        operations.apply(play.engine, Command(number=1, id="c", action=action, dataset="a"))
    for more in (", datasets: [b]", ""):
        change_spec(play.engine, spec_of(FORMS["plain"] + more))
        play.commit()
    return play


def _scheduled() -> Play:
    play = Play(spec_of(FORMS["resampled"]))
    play.play(TOPIC, [Query(0, 0, time_ms=1000 * k) for k in range(12)])
    return play


def _lost() -> Play:
    """Lose queries."""
    play = _begun()
    play.engine.begin_state(5, "murmur2", "cluster")
    play.accept_loss(TOPIC, 5000)
    play.commit()
    play.play(TOPIC, [Query(k % 3, 0) for k in range(5030)])
    return play


def _over() -> GeneratedPlay:
    """Go on until a day is over."""
    daily = "{generate: 'd-{date}', from: 2026-01-05, limit: 2, unit: one event}"
    play = GeneratedPlay(spec_of(FORMS["plain"], datasets=daily))
    play.adopt()
    for number in range(4):
        play.roll(at(number))
        assert play.ask(day(number), at(number), topic=TOPIC)
    return play


def _closed_for_ever() -> Play:
    """Close an application that goes on with the budgets of another one."""
    lines = Carried(
        "before",
        "cluster",
        "before.alerts",
        "app",
        complete=True,
        topics={},
        watermarks={},
        begun={},
        datasets={"a": Balance("one basket", Kind.PURE, 5 * 10**9, 5 * 10**9, 10**9)},
    ).lines()
    play = Play(load_spec(CARRIED.format(monitor=FORMS["plain"]), read_names=lambda name: list(lines)))
    play.engine.begin_state(1, "murmur2", "cluster")
    play.play(TOPIC, [Query(0, 0) for _ in range(30)])
    command = Command(number=1, id="end", action=Action.CLOSE_APPLICATION, successor="next")
    for _ in apply_to_many(play.engine, CommandProgress(command)):
        pass
    play.commit()
    return play


def _given_up() -> bytes:
    """Give up a state of which no event is known."""
    broker = Broker(now_ms=lambda: 0)
    broker.write("state", b"another", b"record")
    give_up(broker, Journal, random.Random(1))
    [record] = broker.read("alerts")
    return record.value or b""


def _unread() -> Play:
    """Remove a monitor of whose topic an owner before may have lost outcomes."""
    play = _begun(FORMS["plain"], FORMS["never muted"])
    change_spec(play.engine, spec_of(FORMS["plain"]), {TOPIC})
    play.commit()
    return play


def _retired() -> Play:
    """Declare a dataset no longer on which a run is open."""
    play = _begun()
    play.retire(spec_of(FORMS["plain"], datasets="{names: [a, b], limit: 9, unit: one basket}"))
    return play


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noisy_value": 778}, "noisy_value"),
        ({"gap": -1}, "minimum"),
        ({"bound": "897"}, "$.data.bound"),
        ({"account": None}, "$.data.account"),
    ],
)
def test_an_alert_that_differs_from_the_document_is_found(reader, change, said):
    alert = copy.deepcopy(example.events()[EventType.ALERT])
    assert reader.event(json.dumps(alert).encode()) == []
    alert["data"] |= change
    assert said in " ".join(reader.event(json.dumps(alert).encode()))


def test_rejects_are_described(reader):
    for reason in (*QUERY_REASONS, *Refusal):
        record = msgspec.json.encode(Reject("retail.counts", 2, 41, reason))
        assert reader.problems("reject", json.loads(record)) == []
    assert (
        reader.problems("reject", {"topic": "t", "partition": 0, "offset": 1, "reason": "value-too-high"})
        != []
    )


# What is read

_FIELDS: dict[str, list[Any]] = {
    "id": ["q1", "", None, 7, "x" * 256, "x" * 257],
    "value": [3, 2.5, None, "text", [1], True],
    "series": ["item", "", None, 4],
    "set": ["week", "", None, 1],
    "threshold": [5, 0.5, None, "5", True],
    "monitor": ["hot", None, 3],
    "time": ["now", 17, 1.5, None, [2]],
    "closed": [True, False, None, "yes"],
    "unknown": [1],
}


def mixed(chance: random.Random, fields: dict[str, list[Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yield objects with some of the fields, each with one of its values."""
    for _ in range(count):
        share = chance.random()
        yield {name: chance.choice(values) for name, values in fields.items() if chance.random() < share}


def test_a_query_is_accepted_exactly_where_the_document_says_so(reader):
    chance = random.Random(11)
    decoder = QueryDecoder(
        "t", DatasetIndex(["d"], partition=0, partitioning=Partitioning(1, "murmur2")), ["hot"]
    )
    lenient = Reader()
    lenient._components = copy.deepcopy(DOCUMENT["components"])
    accepted = 0
    single = [{"id": "q1", name: value} for name, values in _FIELDS.items() for value in values]
    for payload in [*single, *mixed(chance, _FIELDS, 1000), [], "text", 3, None]:
        described = any(lenient.problems(message, payload) == [] for message in ("query", "setMarker"))
        record = Entry("t", 0, 0, b"d", json.dumps(payload).encode())
        batch = decoder.decode([record])
        assert (batch.rejects == []) == described, (payload, batch.rejects)
        accepted += described
    assert 50 < accepted < 1000


def test_a_command_is_accepted_exactly_where_the_document_says_so(reader):
    needed: dict[str, list[Any]] = {
        "id": ["c1", 5],
        "action": [Action.PAUSE, Action.CLOSE_APPLICATION, Action.WITHDRAW, "explode"],
        "state": ["5e", ""],
        "number": [1, 0],
        "expires": [1, 0],
        "cluster": ["c", ""],
    }
    optional: dict[str, list[Any]] = {"dataset": [None], "limit": [5], "more": [1]}
    chance, known = random.Random(12), 0
    for changed in mixed(chance, needed, 1500):
        [more] = mixed(chance, optional, 1)
        payload = {name: values[0] for name, values in needed.items()} | changed | more
        payload.pop(chance.choice([*needed, "", "", ""]), None)
        described = reader.problems("command", payload) == []
        sent: Any = SimpleNamespace(value=json.dumps(payload).encode())
        assert isinstance(decode_command(sent, accept_all), Command) == described, payload
        known += described
    assert 20 < known < 1000, known


# On a real broker


@pytest.mark.kafka
async def test_what_a_worker_writes_to_kafka_is_described(broker, reader):
    async with Scene(broker.bootstrap_servers, "described").on_stage() as scene:
        worker = await scene.start()
        await scene.send("a", LOW, HIGH, HIGH, HIGH, HIGH)
        await scene.producer.send_and_wait(scene.queries, b"no json", key=b"a")
        await scene.producer.send_and_wait(scene.queries, b"{}", key=b"nobody")
        await scene.settled(worker, 7)
        await scene.command("pause", "a")
        await scene.command("explode", "a")
        rejects = await scene.rejected(3)
        alerts = await scene.read("alerts")
        for record in alerts:
            document = json.loads(record.value)
            assert reader.event(record.value) == []
            assert record.headers == (("content-type", CONTENT_TYPE.encode()),)
            assert record.key.decode() == document["data"]["dataset"]
            assert document["shard"] == record.partition
        for record in rejects:
            payload = json.loads(record.value)
            assert reader.problems("reject", payload) == []
            assert record.key.decode() == f"{payload['topic']}/{payload['offset']}"
        assert {json.loads(record.value)["reason"] for record in rejects} == {
            "not-json",
            "undeclared",
            "command-bad-field",
        }
        assert {(EventType.ALERT, None), (EventType.COMMAND_REPLY, "accepted")} < reader.seen
