"""A transaction is written whole or not at all, whatever answers the brokers give, and whichever are lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from aiokafka import TopicPartition, errors
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.transaction import (
    AddPartitionsToTxnRequest_v0,
    EndTxnRequest_v0,
    InitProducerIdRequest_v0,
)
from aiokafka.record.default_records import DefaultRecordBatch

from stream_svt.kafka import transactions
from stream_svt.kafka.aiokafka_fixes import wait_for_topic
from stream_svt.kafka.transactions import Appended, NewRecords, TransactionalProducer

STATE, ALERTS = TopicPartition("state", 3), TopicPartition("alerts", 3)
LOST = errors.RequestTimedOutError()
"""The response is lost, and the request was carried out."""
STARTS = ["InitProducerId", "AddPartitionsToTxn", "EndTxn"]
APPENDS = [
    NewRecords(STATE, [(b"meta", b"1"), (b"gone", None)]),
    NewRecords(ALERTS, [(b"a", b"x")], [("kind", b"top")]),
]


NOT_SENT = errors.NodeNotReadyError("not ready")
MOVES = [errors.CoordinatorNotAvailableError, errors.NotCoordinatorError, NOT_SENT]
"""Faults after which another broker is the coordinator."""


class Brokers:
    """The client of two brokers; ``faults`` names requests and what happens to them, in their order."""

    def __init__(self, *faults: tuple[str, object]) -> None:
        self.faults = list(faults)
        self.leaders: dict[TopicPartition, int | None] = {STATE: 1, ALERTS: 1}
        self.requests: list[tuple[str, int]] = []
        self.records: dict[TopicPartition, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
        self.ended: list[bool] = []
        self.time_ms, self.closed = -1, False
        self.coordinator = 2
        self._joined = set[TopicPartition]()
        self._sequences: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def cluster(self) -> Brokers:
        return self

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        return self.leaders[partition]

    async def _nothing(self, *_: object) -> None:
        await asyncio.sleep(0)

    bootstrap = force_metadata_update = _wait_on_metadata = _nothing

    async def close(self) -> None:
        self.closed = True

    async def coordinator_lookup(self, _kind: object, _key: str) -> int:
        self._meet("FindCoordinator", 1)
        return self.coordinator

    async def send(self, node: int, request: Any, *, group: int = 0) -> Any:
        await asyncio.sleep(0)
        name = type(request).__name__.removesuffix("Request")
        assert name == "Produce" or node == self.coordinator
        fault = self._meet(name, node)
        code = getattr(fault, "errno", 0)
        if fault is LOST or not code:
            answer = getattr(self, f"_{name.lower()}")(request, 0)
            if fault is LOST:
                raise LOST
            return answer
        return getattr(self, f"_{name.lower()}")(request, code)

    def _meet(self, name: str, node: int) -> object:
        self.requests.append((name, node))
        met = next((one for one in self.faults if one[0] == name), None)
        if met is None:
            return None
        self.faults.remove(met)
        if name != "Produce" and met[1] in MOVES:
            self.coordinator += 1
        if met[1] is not LOST and isinstance(met[1], Exception):
            raise met[1]
        return met[1]

    def _initproducerid(self, _request: Any, code: int) -> Any:
        return InitProducerIdRequest_v0.RESPONSE_TYPE(0, code, 77, 5)

    def _addpartitionstotxn(self, request: Any, code: int) -> Any:
        topics = request.build(AddPartitionsToTxnRequest_v0).topics
        if not code:
            self._joined |= {TopicPartition(topic, one) for topic, each in topics for one in each}
        found = [(topic, [(one, code) for one in each]) for topic, each in topics]
        return AddPartitionsToTxnRequest_v0.RESPONSE_TYPE(0, found)

    def _produce(self, request: Any, code: int) -> Any:
        topics = [
            (
                topic,
                [
                    (number, *self._append(TopicPartition(topic, number), content, code))
                    for number, content in each
                ],
            )
            for topic, each in request.build(ProduceRequest_v7).topics
        ]
        return ProduceRequest_v7.RESPONSE_TYPE(topics, 0)

    def _append(self, partition: TopicPartition, content: bytes, code: int) -> tuple[int, int, int, int]:
        if code:
            return code, -1, -1, -1
        batch = DefaultRecordBatch(bytes(content))
        assert batch.is_transactional
        assert partition in self._joined
        assert (batch.producer_id, batch.producer_epoch) == (77, 5)
        expected, first = self._sequences.get(partition, (batch.base_sequence, 0))
        if batch.base_sequence == expected:
            first = len(self.records[partition])
            self.records[partition] += [(record.key, record.value) for record in batch]
            count = len(self.records[partition]) - first
            self._sequences[partition] = (expected + count) % (1 << 31), first
        return 0, first, self.time_ms, 0

    def _endtxn(self, request: Any, code: int) -> Any:
        if not code:
            self._joined = set()
            self.ended.append(request.build(EndTxnRequest_v0).transaction_result)
        return EndTxnRequest_v0.RESPONSE_TYPE(0, code)


async def producer_of(brokers: Brokers) -> TransactionalProducer:
    producer = TransactionalProducer(brokers, "shop-3", 15_000, 5_000)
    await producer.start()
    return producer


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(transactions, "PAUSE", 0.0)
    monkeypatch.setattr(transactions, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(transactions, "MARKERS", 0.0)


def assert_written(brokers: Brokers, times: int = 1) -> None:
    assert brokers.records == {
        STATE: [(b"meta", b"1"), (b"gone", None)] * times,
        ALERTS: [(b"a", b"x")] * times,
    }
    assert brokers.ended == [True] * times


async def test_a_transaction_is_three_requests() -> None:
    brokers = Brokers()
    producer = await producer_of(brokers)
    before = len(brokers.requests)
    assert await producer.transact(APPENDS, 9) == {STATE: Appended(1, None), ALERTS: Appended(0, None)}
    assert brokers.requests[before:] == [("AddPartitionsToTxn", 2), ("Produce", 1), ("EndTxn", 2)]
    brokers.time_ms = 12
    assert await producer.transact(APPENDS, 9) == {STATE: Appended(3, 12), ALERTS: Appended(1, 12)}
    assert_written(brokers, 2)
    await producer.stop()
    assert brokers.closed


BUSY = {
    "the transaction before is ending": errors.ConcurrentTransactions,
    "the coordinator is loading": errors.CoordinatorLoadInProgressError,
    "there is no coordinator": errors.CoordinatorNotAvailableError,
    "the coordinator moved": errors.NotCoordinatorError,
    "it was not sent": NOT_SENT,
}
MOVING = {
    "the leader moved": errors.NotLeaderForPartitionError,
    "replicas lag behind": errors.NotEnoughReplicasError,
    "replicas lag behind after it": errors.NotEnoughReplicasAfterAppendError,
    "it was not sent": NOT_SENT,
    "the connection broke": errors.KafkaConnectionError("closed"),
    "the response is lost": LOST,
}


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        *(pytest.param(name, fault, id=f"{name}: {why}") for name in STARTS for why, fault in BUSY.items()),
        *(pytest.param("Produce", fault, id=f"Produce: {why}") for why, fault in MOVING.items()),
        pytest.param(
            "AddPartitionsToTxn", errors.UnknownTopicOrPartitionError, id="AddPartitionsToTxn: not known yet"
        ),
        pytest.param(
            "FindCoordinator", errors.CoordinatorNotAvailableError(), id="FindCoordinator: there is none"
        ),
    ],
)
async def test_a_request_that_may_succeed_later_is_repeated(request_: str, fault: object) -> None:
    brokers = Brokers((request_, fault), (request_, fault))
    producer = await producer_of(brokers)
    await producer.transact(APPENDS, 9)
    await producer.transact(APPENDS, 9)
    assert brokers.faults == []
    assert_written(brokers, 2)


@pytest.mark.parametrize("name", ["AddPartitionsToTxn", "EndTxn"])
@pytest.mark.parametrize("fault", [LOST, errors.KafkaConnectionError("closed")], ids=["late", "broken"])
async def test_a_request_that_may_still_arrive_is_not_sent_again(name: str, fault: Exception) -> None:
    """It would begin or end another transaction of this producer, whose epoch is the same."""
    brokers = Brokers((name, fault))
    producer = await producer_of(brokers)
    with pytest.raises(type(fault)):
        await producer.transact(APPENDS, 9)
    for again in (producer.transact(APPENDS, 9), producer.begin([STATE])):
        with pytest.raises(errors.IllegalOperation, match="discard"):
            await again
    assert brokers.requests.count((name, 2)) == 1


FINAL = {
    "fenced": (errors.InvalidProducerEpoch, errors.ProducerFenced, errors.ProducerFenced().args),
    "timed out": (errors.InvalidTxnState, errors.InvalidTxnState, ("shop-3",)),
    "denied": (
        errors.TransactionalIdAuthorizationFailed,
        errors.TransactionalIdAuthorizationFailed,
        ("shop-3",),
    ),
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("why", list(FINAL))
async def test_what_is_refused_for_good_is_raised(name: str, why: str) -> None:
    fault, raised, told = FINAL[why]
    brokers = Brokers((name, fault))
    with pytest.raises(raised) as error:
        await (await producer_of(brokers)).transact(APPENDS, 9)
    assert type(error.value) is raised
    assert error.value.args == told
    assert brokers.ended == []


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (errors.InvalidProducerEpoch, errors.ProducerFenced),
        (errors.MessageSizeTooLargeError, errors.MessageSizeTooLargeError),
        (errors.OutOfOrderSequenceNumber, errors.OutOfOrderSequenceNumber),
        (errors.DuplicateSequenceNumber, errors.DuplicateSequenceNumber),  # the offset is not known
        (errors.InvalidTimestampError, errors.InvalidTimestampError),
        (errors.TopicAuthorizationFailedError, errors.TopicAuthorizationFailedError),
    ],
    ids=["fenced", "too large", "gap", "duplicate", "time", "denied"],
)
async def test_nothing_is_committed_after_records_were_refused(
    fault: object, raised: type[Exception]
) -> None:
    brokers = Brokers(("Produce", fault))
    with pytest.raises(raised) as error:
        await (await producer_of(brokers)).transact(APPENDS, 9)
    assert raised is errors.ProducerFenced or error.value.args[0] in ("alerts", "state")
    assert brokers.ended == []


async def test_a_denied_topic_is_named() -> None:
    brokers = Brokers(("AddPartitionsToTxn", errors.TopicAuthorizationFailedError))
    with pytest.raises(errors.TopicAuthorizationFailedError) as error:
        await (await producer_of(brokers)).transact([], 0, [ALERTS])
    assert error.value.args == ({"alerts"},)


async def test_partitions_of_two_leaders_are_written_at_once() -> None:
    brokers = Brokers(("Produce", errors.NotLeaderForPartitionError))
    brokers.leaders = {STATE: 1, ALERTS: 2}
    producer = await producer_of(brokers)
    before = len(brokers.requests)
    await producer.transact(APPENDS, 9)
    produced = [node for name, node in brokers.requests[before:] if name == "Produce"]
    assert sorted(produced[:2]) == [1, 2]
    assert len(produced) == 3  # one of them again
    assert_written(brokers)


async def test_an_error_of_one_leader_is_raised_once_the_other_has_answered() -> None:
    brokers = Brokers(("Produce", errors.InvalidProducerEpoch))
    brokers.leaders = {STATE: 1, ALERTS: 2}
    producer = await producer_of(brokers)
    before = asyncio.all_tasks()
    with pytest.raises(errors.ProducerFenced):
        await producer.transact(APPENDS, 9)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("none", [None, -1])
async def test_a_partition_without_a_leader_is_waited_for(none: int | None) -> None:
    brokers = Brokers()
    brokers.leaders[STATE] = none
    writing = asyncio.create_task((await producer_of(brokers)).transact(APPENDS, 9))
    while not brokers.records:
        await asyncio.sleep(0)
    brokers.leaders[STATE] = 1
    await writing
    assert_written(brokers)


@pytest.mark.parametrize("quiet", [0.0, 2.0])
async def test_why_requests_are_repeated_for_long_is_logged_once_a_transaction(caplog, monkeypatch, quiet):
    monkeypatch.setattr(transactions, "REPEATED_QUIETLY", quiet)
    busy, moved = errors.CoordinatorLoadInProgressError, errors.NotLeaderForPartitionError
    faults = [*[("AddPartitionsToTxn", busy)] * 3, *[("Produce", moved), ("Produce", LOST)] * 3]
    faults += [("EndTxn", errors.ConcurrentTransactions)] * 3
    brokers = Brokers()
    producer = await producer_of(brokers)
    for number in range(1, 3):
        brokers.faults = list(faults)
        await producer.transact(APPENDS, 9)
        # two topics moved
        logged = [one for one in caplog.messages if "event=request_repeated" in one]
        assert len(logged) == (0 if quiet else 4 * number)
    assert ("[Error 14]" in caplog.text) is not bool(quiet)


async def test_a_topic_is_missing_only_where_a_broker_answers_so() -> None:
    answers = [False, False, True]

    class Client:
        async def _wait_on_metadata(self, _topic: str) -> None:
            raise errors.UnknownTopicOrPartitionError

        async def force_metadata_update(self) -> bool:
            return answers.pop(0)

    with pytest.raises(errors.UnknownTopicOrPartitionError) as error:
        await wait_for_topic(Client(), "state")
    assert error.value.args == ("state",)
    assert answers == []


async def test_a_transaction_that_is_aborted_or_only_joins_writes_nothing() -> None:
    brokers = Brokers()
    producer = await producer_of(brokers)
    await producer.transact([], 0, [ALERTS])
    await producer.transact(APPENDS[:1], 9, commit=False)
    assert brokers.ended == [True, False]
    assert [name for name, _ in brokers.requests].count("Produce") == 1


async def test_batches_of_a_partition_follow_one_another_and_sequence_numbers_begin_anew(monkeypatch) -> None:
    monkeypatch.setattr(transactions, "MAX_BATCH", 2_000)
    brokers = Brokers(("Produce", LOST))
    producer = await producer_of(brokers)
    producer._sequences[STATE] = (1 << 31) - 5
    records: list[tuple[bytes, bytes | None]] = [(b"%d" % number, bytes(500)) for number in range(12)]
    for round_ in range(1, 3):
        appended = await producer.transact(
            [NewRecords(STATE, records[:7]), NewRecords(STATE, records[7:])], 9
        )
        assert appended == {STATE: Appended(12 * round_ - 1, None)}
    assert brokers.records[STATE] == records * 2
    large = [(b"large", bytes(5_000))]
    await producer.transact([NewRecords(STATE, large)], 9)
    assert brokers.records[STATE] == [*records * 2, *large]


async def test_a_transaction_waits_for_the_end_of_the_one_before_and_longer_each_time(monkeypatch) -> None:
    brokers, pauses = Brokers(), list[float]()
    producer = await producer_of(brokers)
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(transactions, "MARKERS", 20.0)
    monkeypatch.setattr(transactions, "FIRST_PAUSE", 40.0)
    monkeypatch.setattr(transactions, "PAUSE", 100.0)
    monkeypatch.setattr(asyncio, "sleep", record)
    await producer.transact(APPENDS, 9)
    assert pauses == []
    brokers.faults = [("AddPartitionsToTxn", errors.ConcurrentTransactions)] * 4
    await producer.transact(APPENDS, 9)
    early, *repeated = pauses
    assert 19 < early <= 20
    assert repeated == [40, 60, 90, 100]
    assert_written(brokers, 2)
