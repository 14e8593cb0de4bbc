"""The command line against real brokers: topics, permissions, a running worker and its books."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from stream_svt.monitor.released import EventType
from stream_svt.service.embedded import EmbeddedKafka
from stream_svt.service.wire import home
from tests.support.alerts import account, alert, encoded, lifecycle
from tests.support.command_line import CommandLine
from tests.support.permissions import allow
from tests.support.process import free_port
from tests.support.topics import Topics, create_topics

pytestmark = pytest.mark.kafka

TEMPLATE = """\
application: {application}
kafka: {kafka}
topics: {{partitions: {partitions}}}
web: {{port: {port}}}
commit: {{interval: 100ms}}
datasets: [{{names: [today, tomorrow], limit: 4, unit: one basket}}]
monitors:
  - name: hot
    topic: {application}.counts
    epsilon: 1
    cutoff: 10
    sensitivity: 1
    monotonic: true
    bounds: [0, 100000]
    threshold: 500
    expected_queries: 1000000
    {more}
"""


@pytest.fixture
def stream_svt(capfd) -> CommandLine:
    return CommandLine(capfd)


@pytest.fixture
def written(tmp_path, broker):
    """Write a configuration with topics of its own and return its path."""

    def write(
        *, partitions: int = 2, more: str = "", kafka: str | None = None, application: str | None = None
    ) -> Path:
        path = tmp_path / "shop.yaml"
        text = TEMPLATE.format(
            application=application or Topics("").name("shop"),
            kafka=kafka or f'{{bootstrap_servers: "{broker.bootstrap_servers}"}}',
            partitions=partitions,
            port=free_port(),
            more=more,
        )
        path.write_text(text)
        return path

    return write


def application_of(config: Path) -> str:
    return config.read_text().split()[1]


def test_check_names_missing_topics_creates_them_and_is_then_content(stream_svt, written, broker):
    config = written()
    name = application_of(config)
    missing = stream_svt("check", "-c", config)
    assert missing.code == 2
    (said,) = [line for line in missing.out.splitlines() if "5 topics do not exist" in line]
    for topic in ("counts", "alerts", "state", "rejects", "control"):
        assert f"'{name}.{topic}'" in said
    assert f"'stream-svt check -c {config} --create-topics'" in said
    assert missing.err == "1 problem: see FAIL above.\n"
    created = stream_svt("check", "-c", config, "--create-topics")
    assert created.code == 0, created
    assert f"created '{name}.state' with 2 partitions" in created.out
    again = stream_svt("check", "-c", config)
    assert (again.code, again.out.endswith("Ready to run.\n")) == (0, True), again
    assert "all 5 topics exist, with 2 partitions each" in again.out
    assert "reading, writing, transactions and the group are allowed" in again.out
    assert asyncio.run(
        _ends(broker.bootstrap_servers, [f"{name}.{t}" for t in ("state", "alerts", "rejects")])
    ) == {0}


async def _ends(servers: str, topics: list[str]) -> set[int]:
    """Return the end offsets of partitions 0 of some topics, uncommitted records and markers included."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    await consumer.start()
    try:
        return set((await consumer.end_offsets([TopicPartition(topic, 0) for topic in topics])).values())
    finally:
        await consumer.stop()


def test_check_finds_a_wrong_partition_count(stream_svt, written, broker):
    config = written()
    name = application_of(config)
    asyncio.run(create_topics(broker.bootstrap_servers, {f"{name}.counts": 3}))
    ended = stream_svt("check", "-c", config, "--create-topics")
    assert ended.code == 2
    assert f"topic '{name}.counts' has 3 partitions, topics.partitions says 2" in ended.out


def test_check_finds_topics_set_up_wrongly(stream_svt, written, broker):
    config = written(more="resample_every: 1h")
    name = application_of(config)
    asyncio.run(create_topics(broker.bootstrap_servers, {f"{name}.counts": 2, f"{name}.state": 2}))
    ended = stream_svt("check", "-c", config, "--create-topics")
    assert ended.code == 2
    assert f"topic '{name}.counts' has message.timestamp.type=CreateTime, expected LogAppendTime" in ended.out
    assert f"topic '{name}.state' has cleanup.policy=delete, expected compact" in ended.out


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_query_topic_is_refused_by_check_and_by_a_worker(stream_svt, written, broker, policy):
    """Compaction keeps the newest query of a dataset: a takeover would miss those an owner before it tested."""
    config = written()
    name = application_of(config)
    asyncio.run(create_topics(broker.bootstrap_servers, {f"{name}.counts": 2}, {"cleanup.policy": policy}))
    checked = stream_svt("check", "-c", config, "--create-topics")
    assert checked.code == 2
    said = f"topic '{name}.counts' has cleanup.policy={policy}, expected delete"
    assert said in checked.out
    started = subprocess.run(
        [sys.executable, "-c", "from stream_svt.cli import main; main()", "run", "-c", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode == 2
    assert said in started.stderr + started.stdout


def test_check_finds_a_retry_lifetime_beyond_what_the_topic_keeps(stream_svt, written, broker):
    config = written(more="append: {retry: {lifetime: 50}}", partitions=1)
    name = application_of(config)
    assert stream_svt("check", "-c", config, "--create-topics").code == 0
    asyncio.run(_lose_records(broker.bootstrap_servers, f"{name}.counts"))
    ended = stream_svt("check", "-c", config)
    assert ended.code == 2
    assert f"50 offsets is longer than topic '{name}.counts' keeps records: partitions 0" in ended.out
    config.write_text(config.read_text().replace("lifetime: 50", "lifetime: 30d"))
    timed = stream_svt("check", "-c", config)
    assert timed.code == 2
    assert "is longer than topic" in timed.out


async def _lose_records(servers: str, topic: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    for _ in range(20):
        await producer.send_and_wait(topic, b"x", partition=0)
    await producer.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=15)})
    await admin.close()


@pytest.fixture(scope="module")
def guarded_broker():
    """A broker with users who may do only what they were allowed."""
    with EmbeddedKafka(users={"service": "right", "guest": "welcome"}) as kafka:
        yield kafka


def _login(guarded: EmbeddedKafka, tmp_path: Path, user: str, password: str) -> str:
    secret = tmp_path / "password"
    secret.write_text(password + "\n")
    secret.chmod(0o600)
    return (
        f'{{bootstrap_servers: "{guarded.sasl_bootstrap_servers}", security_protocol: SASL_PLAINTEXT, '
        f"sasl_mechanism: PLAIN, username: {user}, password_file: {secret}}}"
    )


def test_a_login_where_none_is_taken_is_said_to_be_that(stream_svt, written, broker, tmp_path):
    (tmp_path / "password").write_text("any")
    login = (
        f'{{bootstrap_servers: "{broker.bootstrap_servers}", security_protocol: SASL_PLAINTEXT, '
        "sasl_mechanism: PLAIN, username: service, password_file: password}"
    )
    ended = stream_svt("check", "-c", written(kafka=login))
    assert ended.code == 3
    assert "this listener takes no login: set kafka.security_protocol to PLAINTEXT or SSL" in ended.err
    assert "password" not in ended.err


@pytest.mark.parametrize("command", ["check", "watch", "audit"])
def test_a_wrong_password_is_a_refused_login(stream_svt, written, guarded_broker, tmp_path, command):
    config = written(kafka=_login(guarded_broker, tmp_path, "service", "wrong"))
    ended = stream_svt(command, "-c", config)
    assert ended.code == 3
    assert "refused the login" in ended.err
    assert "password" in ended.err
    assert "wrong" not in ended.err


def test_check_names_each_missing_permission(stream_svt, written, guarded_broker, tmp_path):
    servers = guarded_broker.bootstrap_servers
    name = Topics("").name("shop")
    administrator = written(kafka=f'{{bootstrap_servers: "{servers}"}}', application=name)
    assert stream_svt("check", "-c", administrator, "--create-topics").code == 0
    grants = [
        ("read", "topic", f"{name}.counts"),
        ("read", "topic", f"{name}.control"),
        ("read", "topic", f"{name}.state"),
        ("read", "topic", f"{name}.alerts"),
        ("write", "topic", f"{name}.state"),
        ("write", "topic", f"{name}.alerts"),
        ("write", "topic", f"{name}.rejects"),
        ("read", "group", name),
        *(
            ("describe_configs", "topic", f"{name}.{topic}")
            for topic in ("counts", "state", "alerts", "rejects", "control")
        ),
    ]

    async def grant() -> None:
        for operation, resource, resource_name in grants:
            await allow(servers, "service", operation, resource, resource_name)
        for topic in ("counts", "state", "alerts", "rejects", "control"):
            await allow(servers, "guest", "describe", "topic", f"{name}.{topic}")
            await allow(servers, "guest", "describe_configs", "topic", f"{name}.{topic}")

    asyncio.run(grant())
    guest = stream_svt(
        "check", "-c", written(kafka=_login(guarded_broker, tmp_path, "guest", "welcome"), application=name)
    )
    assert guest.code == 2
    needed = [
        *(f"{doing.upper()} on resource TOPIC '{on}'" for doing, kind, on in grants[:7] if kind == "topic"),
        f"READ on resource GROUP '{name}'",
        "WRITE on resource TRANSACTIONAL_ID",
    ]
    assert len(needed) == 9
    for operation in needed:
        assert f"permission is missing: operation {operation}" in guest.out, operation
    assert guest.out.count("permission is missing") == 9, guest.out
    almost = stream_svt(
        "check", "-c", written(kafka=_login(guarded_broker, tmp_path, "service", "right"), application=name)
    )
    assert almost.code == 2
    assert almost.out.count("FAIL") == 1, almost.out
    asyncio.run(allow(servers, "service", "write", "transactional_id", f"{name}-", prefixed=True))
    ready = stream_svt(
        "check", "-c", written(kafka=_login(guarded_broker, tmp_path, "service", "right"), application=name)
    )
    assert ready.code == 0, ready.out


def test_audit_and_watch_need_nothing_but_the_alert_topic(stream_svt, broker, topics):
    declared = lifecycle("declared", run=0, monitor="", books=account(charge=0, spent=0))
    started = lifecycle("first", books=account(charge=0.1, spent=0.1, reserved=0.5))
    top = alert(top=1, books=account(charge=0.2, spent=0.3))
    events = [
        encoded(1, declared, kind=EventType.DECLARED),
        encoded(2, started, kind=EventType.RUN_STARTED),
        encoded(3, top),
    ]

    async def publish(topic: str, records: list[bytes]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.start()
        for record in records:
            await producer.send_and_wait(topic, record, partition=0)
        await producer.stop()

    good, bad = asyncio.run(topics("good")), asyncio.run(topics("bad"))
    asyncio.run(publish(good, events))
    asyncio.run(publish(bad, [events[0], events[2]]))
    where = ("--bootstrap-servers", broker.bootstrap_servers, "--topic")
    balanced = stream_svt("audit", *where, good)
    assert balanced.code == 0
    assert "shop: epsilon 0.3 of 4 spent, 1 alert, 3 events" in balanced.out
    assert "The books balance: 3 events" in balanced.out
    unbalanced = stream_svt("audit", *where, bad)
    assert unbalanced.code == 1
    assert "event number 3, expected 2" in unbalanced.err
    result = json.loads(stream_svt("audit", *where, bad, "--json").out)
    assert (result["balances"], result["alerts"]) == (False, 1)
    missing = stream_svt("audit", *where, topics.name("none"))
    assert (missing.code, "does not exist" in missing.err) == (3, True)
    lines = stream_svt("watch", *where, good, "--from-beginning", "--lifecycle", "--limit", 3, "--json").out
    assert [json.loads(line)["sequence"] for line in lines.splitlines()] == [1, 2, 3]
    words = stream_svt("watch", *where, good, "--from-beginning", "--limit", 1, "--uncommitted").out
    assert "ALERT  shop/milk  hot  gap 12" in words


def test_a_command_no_worker_answers_is_one_and_stays_on_the_topic(stream_svt, written):
    config = written()
    assert stream_svt("check", "-c", config, "--create-topics").code == 0
    ended = stream_svt("control", "pause", "-c", config, "today", "--timeout", 0.5)
    assert ended.code == 1
    assert "no answer in time; pause is on the control topic" in ended.err


def test_a_worker_runs_obeys_reports_and_its_books_balance(stream_svt, written, broker, tmp_path):
    config = written()
    assert stream_svt("check", "-c", config, "--create-topics").code == 0
    log = (tmp_path / "worker.log").open("wb")
    command = [sys.executable, "-c", "from stream_svt.cli import main; main()", "run", "-c", str(config)]
    worker = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(Path.cwd())}
    )
    try:
        _obey(stream_svt, config, broker)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
        log.close()
        print((tmp_path / "worker.log").read_text()[-5000:])


def _obey(stream_svt: CommandLine, config: Path, broker: EmbeddedKafka) -> None:
    give_up = time.monotonic() + 60
    while not stream_svt("status", "-c", config).out.count("running") >= 2:
        assert time.monotonic() < give_up, "the worker did not become ready"
        time.sleep(0.3)
    topic = f"{application_of(config)}.counts"

    async def ask() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.start()
        for name in ("today", "tomorrow"):
            for number in range(20):
                query = {
                    "id": f"{name}-{number}",
                    "value": 5000 if number < 12 else 3,
                    "series": f"item-{number}",
                }
                key = name.encode()
                await producer.send_and_wait(
                    topic, json.dumps(query).encode(), key=key, partition=home(key, 2)
                )
        await producer.stop()

    asyncio.run(ask())
    watched = stream_svt("watch", "-c", config, "--from-beginning", "--limit", 24, "--json")
    alerts = [json.loads(line)["data"] for line in watched.out.splitlines()]
    assert {alert["dataset"] for alert in alerts} == {"today", "tomorrow"}
    assert all(alert["gap"] >= 0 for alert in alerts)
    paused = stream_svt("control", "pause", "-c", config, "today")
    assert (paused.code, "today: accepted" in paused.out) == (0, True), paused
    assert stream_svt("control", "resume", "-c", config, "today", "--monitor", "hot").code == 0
    refused = stream_svt("control", "resume", "-c", config, "today")
    assert (refused.code, "is not paused" in refused.err) == (1, True)
    assert stream_svt("control", "resample", "-c", config, "--all").code == 0
    assert stream_svt("control", "close", "-c", config, "tomorrow").code == 0
    raised = stream_svt("control", "raise-budget", "-c", config, "today", "--limit", "11/2", "--yes")
    assert (raised.code, "raised from epsilon 4 to 5.5" in raised.out) == (0, True)
    lower = stream_svt("control", "raise-budget", "-c", config, "today", "--limit", "1", "--yes")
    assert lower.code == 1
    assert stream_svt("control", "accept-loss", "-c", config).code == 1
    audited = stream_svt("audit", "-c", config)
    assert audited.code == 0, audited
    assert "of 5.5 spent" in audited.out
    assert "The books balance" in audited.out
