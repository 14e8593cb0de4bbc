"""What the client's errors mean to an operator, that nothing of ours waits for ever, and odd names of headers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiokafka.client
import aiokafka.consumer.fetcher
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition, errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.protocol.metadata import MetadataRequest, MetadataRequest_v5
from aiokafka.record import memory_records
from aiokafka.record.default_records import (
    DefaultRecordBatch,
    _DefaultRecordBatchBuilderPy,
    _DefaultRecordBatchPy,
)
from aiokafka.structs import BrokerMetadata

from stream_svt.errors import BrokerError, MisuseError
from stream_svt.kafka import aiokafka_fixes
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import BrokerUnavailable, Cluster
from stream_svt.settings.fields import Named
from stream_svt.settings.sections import KafkaConfig
from tests.support.partition_reader import Reader
from tests.support.records import Odd


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (errors.ProducerFenced(), kafka.Fenced, "transactional id"),
        (TimeoutError(), BrokerUnavailable, "no answer"),
        (errors.OutOfOrderSequenceNumber(), BrokerUnavailable, "OutOfOrderSequenceNumber"),
        (errors.TopicAuthorizationFailedError("t"), kafka.Denied, "operation WRITE on resource TOPIC 't'"),
        (errors.TopicAuthorizationFailedError({"t"}), kafka.Denied, "operation WRITE on resource TOPIC 't'"),
        (errors.GroupAuthorizationFailedError("g"), kafka.Denied, "operation READ on resource GROUP 'g'"),
        (
            errors.TransactionalIdAuthorizationFailed("x-1"),
            kafka.Denied,
            "WRITE on resource TRANSACTIONAL_ID 'x-1'",
        ),
        (errors.UnknownTopicOrPartitionError("t"), kafka.TopicMissing, "--create-topics"),
        (errors.MessageSizeTooLargeError(), BrokerError, "max.message.bytes"),
        (errors.InvalidTimestampError(), BrokerUnavailable, "set this machine's clock"),
    ],
)
def test_errors_are_sorted_by_what_helps(error: Exception, kind: type[BrokerError], text: str) -> None:
    meaning = kafka.explain(error, "doing this", "WRITE")
    assert type(meaning) is kind
    assert str(meaning).startswith("doing this: ")
    assert text in str(meaning)


@pytest.mark.parametrize(
    ("cause", "kind", "text"),
    [
        (ssl.SSLCertVerificationError("self-signed"), kafka.LoginRefused, "kafka.ca_file"),
        (errors.SaslAuthenticationFailed("Invalid credentials"), kafka.LoginRefused, "password file"),
        (errors.IllegalSaslStateError(), kafka.LoginRefused, "takes no login: set kafka.security_protocol"),
        (ConnectionRefusedError(111, "Connect call failed"), BrokerUnavailable, "Errno 111"),
        (TimeoutError(), BrokerUnavailable, "Unable to bootstrap"),
    ],
)
async def test_the_cause_of_a_failed_connection_is_told_once(monkeypatch, caplog, cause, kind, text):
    async def create_conn(*_: object, **__: object) -> None:
        raise cause

    monkeypatch.setattr(aiokafka_fixes, "create_conn", create_conn)
    aiokafka_fixes.apply_fixes()
    for _ in range(2):  # an older failure is not the cause of a lost connection
        with pytest.raises(BrokerError, match=text) as meaning:
            async with kafka.started(Cluster({}).reader(), "starting"):
                pass
        assert type(meaning.value) is kind
        with pytest.raises(BrokerUnavailable, match="closed"):
            async with kafka.deadline(1.0, "transaction"):
                raise errors.KafkaConnectionError("Connection at broker:9092 closed")


async def test_an_address_that_refused_a_connection_is_not_asked_again_at_once(monkeypatch):
    refuses, slept = [True], []
    monkeypatch.setattr(aiokafka_fixes, "_refused_at", {})

    async def create_conn(*_: object, **__: object) -> SimpleNamespace:
        if refuses[0]:
            raise ConnectionRefusedError
        return SimpleNamespace()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(aiokafka_fixes, "create_conn", create_conn)
    monkeypatch.setattr(aiokafka_fixes.asyncio, "sleep", sleep)
    ours = dict(Cluster({}).arguments) | {"on_close": print}
    for host, sleeps in (("a", 0), ("b", 0), ("a", 1)):
        with pytest.raises(ConnectionRefusedError):
            await aiokafka_fixes._connect(host, 1, **ours)
        assert len(slept) == sleeps
    refuses[0] = False
    await aiokafka_fixes._connect("a", 1, **ours)
    await aiokafka_fixes._connect("a", 1, **ours)
    assert len(slept) == 2
    assert isinstance(aiokafka_fixes.connection_error(0.0), ConnectionRefusedError)  # and forget it
    assert 0 < min(slept) <= max(slept) <= 0.1


@pytest.mark.parametrize(
    ("module", "name"), [(aiokafka.client, "create_conn"), (aiokafka.consumer.fetcher, "MemoryRecords")]
)
def test_a_client_without_the_tuned_attribute_is_refused(monkeypatch, module: Any, name: str) -> None:
    monkeypatch.delattr(module, name)
    with pytest.raises(MisuseError, match=f"has no {module.__name__.partition('.')[2]}.{name}"):
        aiokafka_fixes.apply_fixes()


async def test_only_connections_of_this_package_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(AIOKafkaConnection, "connect", lambda _: asyncio.sleep(0))

    async def send(_: object, request: object, *__: object) -> SimpleNamespace:
        sent.append(request)
        return SimpleNamespace(topics=[])

    monkeypatch.setattr(AIOKafkaConnection, "send", send)
    aiokafka_fixes.apply_fixes()
    create = aiokafka.client.create_conn
    of_a_program = await create("broker", 9092, security_protocol="PLAINTEXT", on_close=print)
    assert type(of_a_program) is AIOKafkaConnection
    for topics in (["counts"], [], None):
        ours = await create("broker", 9092, **dict(Cluster({}).arguments), on_close=print)
        for connection, creates in ((of_a_program, True), (ours, False)):
            await connection.send(MetadataRequest(topics))
            asked = sent.pop().build(MetadataRequest_v5)
            assert (asked.topics, asked.allow_auto_topic_creation) == (topics, creates)


@pytest.mark.loopback
async def test_what_befell_a_programs_own_clients_explains_no_failure_of_ours() -> None:
    aiokafka_fixes.apply_fixes()
    own = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(errors.KafkaConnectionError):
        await own.start()
    await own.stop()
    assert aiokafka_fixes.connection_error(0.0) is None


async def test_a_call_that_does_not_return_ends_at_its_deadline() -> None:
    with pytest.raises(BrokerUnavailable, match="asking: no answer"):
        async with kafka.deadline(0.01, "asking"):
            await asyncio.sleep(10)


async def test_whoever_watches_a_task_is_told_of_calls_that_return_and_of_no_other() -> None:
    answers: list[str] = []

    async def watched() -> None:
        kafka.on_answer.set(lambda: answers.append("answer"))
        async with kafka.deadline(1.0, "asking"):
            pass
        with pytest.raises(BrokerUnavailable):
            async with kafka.deadline(1.0, "asking"):
                raise errors.KafkaConnectionError("x")

    await asyncio.create_task(watched())
    async with kafka.deadline(1.0, "asking, in a task that nobody watches"):
        pass
    assert answers == ["answer"]


async def test_reading_slowly_or_for_a_slow_caller_goes_on_until_the_position_stands_still(monkeypatch):
    """A client whose broker is gone after it returned the end of the partition returns nothing, without end."""
    monkeypatch.setattr(kafka, "CALL_DEADLINE", 0.3)
    found: list[int] = []

    async def read() -> None:
        reader = Reader(range(12), piece=1, stands=9, seconds=0.1)
        async for record in kafka.read_partition(reader, TopicPartition("alerts", 3), None, "auditing"):
            found.append(record.value)
            if record.value == 3:
                await asyncio.sleep(0.5)

    with pytest.raises(BrokerUnavailable, match="auditing: offset 9 of 12 of partition 3: no answer"):
        await asyncio.wait_for(read(), 20)
    assert found == list(range(9))


PLACE = TopicPartition("state", 0)


class Connection:
    """A connection that stays open until it is closed; over TLS, the broker may take long to agree to the end."""

    def __init__(self, *, agrees: bool = True) -> None:
        self.open = True
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if agrees:
            self._closed.set_result(None)

    def connected(self) -> bool:
        return self.open

    def close(self, reason: object = None, exc: object = None) -> asyncio.Future[None]:
        self.open = False
        return self._closed


async def _reading(
    send: Callable[..., Awaitable[object]], *, agrees: bool = True
) -> tuple[AIOKafkaConsumer, Connection]:
    """Return a reader that fetches a partition, from brokers that answer each request with ``send``."""
    consumer, connection = Cluster({}).reader(), Connection(agrees=agrees)
    client = consumer._client

    async def bootstrap() -> None:
        client.cluster._brokers = {1: BrokerMetadata(1, "broker", 9092, None)}
        client._conns[(1, 0)] = connection
        client._sync_task = asyncio.create_task(client._md_synchronizer())

    async def update(cluster: object, topics: object) -> bool:
        await asyncio.sleep(0.01)
        return True

    client.bootstrap, client._metadata_update, client.send = bootstrap, update, send
    client.cluster.leader_for_partition = lambda partition: 1
    await consumer.start()
    consumer.assign([PLACE])
    consumer.seek(PLACE, 0)
    await asyncio.sleep(0.05)
    return consumer, connection


async def _silence(*_: object, **__: object) -> None:
    await asyncio.sleep(1000)


async def _lost(*_: object, **__: object) -> None:
    await asyncio.sleep(0.001)
    raise errors.KafkaConnectionError("gone")


async def _trips(*_: object, **__: object) -> None:
    await asyncio.sleep(0.001)
    raise KeyError("an answer that the client does not expect")


@pytest.mark.parametrize(
    ("send", "close", "agrees"),
    [
        (_silence, None, True),
        (_silence, None, False),
        (_lost, None, True),
        (_trips, None, True),
        (_silence, _silence, True),
        (_silence, _lost, True),
    ],
)
async def test_a_consumer_that_is_stopped_leaves_no_task_and_no_connection(send, close, agrees):
    """One whose broker is gone, or whose fetching or stopping ends in an error, closes no connections itself."""
    before = asyncio.all_tasks()
    for _ in range(3):
        consumer, connection = await _reading(send, agrees=agrees)
        consumer._coordinator.close = close or consumer._coordinator.close
        await asyncio.wait_for(kafka.stop_quietly(consumer, 0.1), 2)
        assert not connection.open
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before


async def _stubborn() -> None:
    for _ in range(40):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("stop", [_silence, _stubborn])
async def test_a_producer_that_hangs_leaves_no_task_and_holds_nobody_up(monkeypatch, stop) -> None:
    monkeypatch.setattr(kafka, "DISCARD_DEADLINE", 0.05)
    loop, connection = asyncio.get_running_loop(), Connection()
    sending, began = asyncio.create_task(_silence()), loop.time()

    async def close() -> None:
        connection.close()

    sender, client = SimpleNamespace(sender_task=sending), SimpleNamespace(close=close)
    await kafka.stop_quietly(SimpleNamespace(stop=stop, client=client, _sender=sender), 0.05)
    assert loop.time() - began < 2
    assert sending.done()
    assert not connection.open


async def test_a_client_whose_start_is_cancelled_leaves_no_connection(monkeypatch):
    aiokafka_fixes.apply_fixes()
    connection, asked = Connection(), asyncio.Event()

    async def silent(request: object) -> None:
        asked.set()
        await _silence()

    async def create_conn(*_: object, **__: object) -> Connection:
        return connection

    connection.send = silent  # type: ignore[attr-defined]
    monkeypatch.setattr(aiokafka_fixes, "create_conn", create_conn)
    consumer = Cluster({}).reader()
    starting = asyncio.create_task(consumer.start())
    await asyncio.wait_for(asked.wait(), 2)
    starting.cancel()
    await asyncio.wait([starting])
    await kafka.stop_quietly(consumer)
    assert not connection.open


def test_credentials_stay_out_of_the_representation() -> None:
    assert "hunter2" not in repr(Cluster({"sasl_plain_password": "hunter2"}))
    assert "hunter2" not in repr(Named("file", "hunter2"))


def test_a_transaction_is_given_up_before_the_broker_would() -> None:
    for one in (12, 15, 900):
        assert Cluster({}, KafkaConfig(transaction_timeout=f"{one}s")).commit_deadline < one


# --- header names that are no text


def batch(*names: str, codec: int = 0, first: int = 0) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, 0, 1 << 20)
    for offset, name in enumerate(names):
        builder.append(
            offset, None, key=b"a", value=b"%d" % offset, headers=[(name, b"\xff"), ("empty", None)]
        )
    return first.to_bytes(8, "big") + bytes(builder.build())[8:]


def read(content: bytes, offset: int = 0) -> list[tuple[object, ...]]:
    """Read an answer as a consumer does that fetched from an offset."""
    aiokafka_fixes.read_every_header_name()
    batches = aiokafka.consumer.fetcher.MemoryRecords(content)
    records = PartitionRecords(PLACE, batches, [], offset, None, None, True, 1)
    found = [(record.offset, record.key, record.value, *record.headers) for record in records]
    assert records.next_fetch_offset > max((one[0] for one in found), default=-1)
    return found


@pytest.mark.parametrize("compiled", [DefaultRecordBatch, _DefaultRecordBatchPy])
@pytest.mark.parametrize("codec", range(5))
def test_odd_names_have_replacement_characters_and_nothing_else_changes(monkeypatch, codec, compiled):
    monkeypatch.setattr(memory_records, "DefaultRecordBatch", compiled)
    names = ["good", Odd("x"), "later", Odd("x"), "good"]
    content = batch(*names, codec=codec) + batch("next", codec=codec, first=5)
    shown = ["\ufffd\ufffd" if isinstance(name, Odd) else name for name in names]
    wanted = [
        (offset, b"a", b"%d" % (offset % 5), (name, b"\xff"), ("empty", None))
        for offset, name in enumerate([*shown, "next"])
    ]
    assert read(content) == wanted
    assert read(content, offset=3) == wanted[3:]


@pytest.mark.parametrize("compiled", [DefaultRecordBatch, _DefaultRecordBatchPy])
def test_what_is_corrupt_is_no_odd_name(monkeypatch, compiled: type) -> None:
    monkeypatch.setattr(memory_records, "DefaultRecordBatch", compiled)
    flipped = bytearray(batch("good", Odd("x")))
    flipped[-30] ^= 0x40
    with pytest.raises(errors.CorruptRecordException):
        read(bytes(flipped))
