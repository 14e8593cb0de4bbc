"""The command line against real brokers: topics, permissions, a running worker and its books."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
from datetime import UTC, datetime
from itertools import count

import pytest

from stream_svt.monitor.released import EventType
from tests.support import records
from tests.support.alerts import account_of, alert, encoded, lifecycle
from tests.support.command_line import CommandLine, Ended
from tests.support.keys import write_secrets
from tests.support.permissions import WORKER, allow_all
from tests.support.tls import PASSWORD, USERS
from tests.support.worker import HIGH, LOW, Scene

pytestmark = pytest.mark.kafka


@pytest.fixture
def stream_svt(capfd) -> CommandLine:
    return CommandLine(capfd)


@pytest.fixture
def scene(broker, topics, tmp_path) -> Scene:
    """An application whose topics do not exist."""
    name = topics.name("shop")
    return Scene(broker.bootstrap_servers, name, datasets="today, tomorrow", directory=tmp_path)


def test_check_creates_missing_topics_and_looks_at_what_they_keep(stream_svt, scene):
    """And no command is sent before a shard has started."""
    config = scene.write(more="    append: {retry: {lifetime: 50}}\n")
    name = scene.application
    missing = stream_svt("check", "-c", config)
    assert missing.code == 2
    (said,) = [line for line in missing.out.splitlines() if "6 topics do not exist" in line]
    for topic in ("counts", "alerts", "state", "rejects", "control", "config"):
        assert f"'{name}.{topic}'" in said
    assert f"'stream-svt check -c {config} --create-topics'" in said
    assert missing.err == "1 problem: see FAIL above.\n"
    created = stream_svt("check", "-c", config, "--create-topics")
    assert created.code == 0, created
    assert f"created '{name}.state' with 2 partitions" in created.out
    again = stream_svt("check", "-c", config)
    last = again.out.splitlines()[-1]
    assert again.code == 0, again
    assert last == (
        f"No problem found. Tried: READ {scene.queries}, READ {name}.config, READ {name}.control, READ {name}.state, "
        f"READ {name}.alerts, WRITE transactional id {name}-check, WRITE {name}.state, WRITE {name}.alerts, "
        f"WRITE {name}.rejects, READ group {name}. Not tried: WRITE transactional id {name}-0 to {name}-1 (it would "
        "fence a worker)."
    )
    assert "all 6 topics exist, with 2 partitions each" in again.out
    read = [asyncio.run(scene.read(topic, "read_uncommitted")) for topic in ("state", "alerts", "rejects")]
    assert read == [[], [], []]
    empty = stream_svt("lint", "-c", config)
    assert (empty.code, empty.out) == (0, f"{scene.queries}: 0 records, all as expected\n")
    ended = stream_svt("control", "pause", "-c", config, "today", "--timeout", 0.5)
    assert ended.code == 1
    assert "today: not sent: shard 1 has not started yet" in ended.err
    asyncio.run(records.send(scene.servers, scene.queries, *[(0, None, b"x")] * 20))
    found = stream_svt("lint", "-c", config, "--sample", 8)
    assert found.code == 1
    assert "8 of 8: refused, no-key: " in found.out
    asyncio.run(scene.delete_before("counts", 15))
    short = stream_svt("check", "-c", config)
    assert short.code == 2
    assert f"50 offsets is longer than topic '{scene.queries}' keeps records: partitions 0" in short.out


def test_check_names_each_missing_permission(stream_svt, scene, secure_broker, tmp_path):
    write_secrets(tmp_path, {"password": PASSWORD})
    servers, name = secure_broker.bootstrap_servers, scene.application
    administrator = scene.write(servers=servers)
    assert stream_svt("check", "-c", administrator, "--create-topics").code == 0
    topics = [f".{topic}" for topic in ("counts", "state", "alerts", "rejects", "control", "config")]
    looking = [("describe_configs", "topic", topic) for topic in topics]
    transactions = ("write", "transactional_id", "-")
    granted = [grant for grant in WORKER if grant != transactions]
    guest, service = USERS[:2]

    async def grant() -> None:
        await allow_all(servers, service, name, [*granted, *looking])
        await allow_all(servers, guest, name, [*(("describe", "topic", one) for one in topics), *looking])

    asyncio.run(grant())

    def checked(user: str) -> Ended:
        config = tmp_path / f"{user}.yaml"
        config.write_text(secure_broker.with_login(administrator.read_text(), user))
        return stream_svt("check", "-c", config)

    nothing = checked(guest)
    assert nothing.code == 2
    missing = "permission is missing: operation"
    writes = [grant for grant in granted if grant[0] == "write"]
    for operation, resource, rest in granted:
        if (operation, resource, rest) in writes:
            assert f"WRITE {name}{rest} (no transaction can begin)" in nothing.out
            continue
        assert f"{missing} {operation.upper()} on resource {resource.upper()} '{name}{rest}'" in nothing.out
    assert f"{missing} WRITE on resource TRANSACTIONAL_ID" in nothing.out
    assert nothing.out.count("permission is missing") == len(WORKER) - len(writes) == 7, nothing.out
    almost = checked(service)
    assert almost.code == 2
    assert almost.out.count("FAIL") == 1, almost.out
    asyncio.run(allow_all(servers, service, name, [transactions]))
    ready = checked(service)
    assert ready.code == 0, ready.out


def test_audit_and_watch_need_nothing_but_the_alert_topic(stream_svt, broker, topics):
    declared = lifecycle("declared", run=0, monitor="", account=account_of(charge=0, spent=0))
    events = [
        encoded(1, declared, kind=EventType.DECLARED),
        encoded(2, lifecycle("first", account=account_of(charge=0.1, spent=0.1, reserved=0.5))),
        encoded(3, alert(number=1, account=account_of(charge=0.2, spent=0.3))),
    ]
    topic = asyncio.run(topics("good"))
    asyncio.run(records.send(broker.bootstrap_servers, topic, *((0, None, event) for event in events)))
    where = ("--bootstrap-servers", broker.bootstrap_servers, "--topic")
    balanced = stream_svt("audit", *where, topic)
    assert balanced.code == 0
    assert "shop: epsilon 0.3 of 4 spent, 1 alert, 3 events" in balanced.out
    missing = stream_svt("audit", *where, topics.name("none"))
    assert (missing.code, "does not exist" in missing.err) == (3, True)
    lines = stream_svt("watch", *where, topic, "--from-beginning", "--lifecycle", "--limit", 3, "--json").out
    assert [json.loads(line)["sequence"] for line in lines.splitlines()] == [1, 2, 3]


def test_a_worker_runs_obeys_reports_and_its_books_balance(stream_svt, scene, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody answers what it asks
    config = scene.write()
    assert stream_svt("check", "-c", config, "--create-topics").code == 0
    worker = scene.serve(file=config)
    try:
        asyncio.run(worker.until(lambda: stream_svt("status", "-c", config).out.count("running") >= 2))
        queries = [
            (name, {"id": f"{name}-{n}", "value": HIGH if n < 6 else LOW, "series": f"item-{n}"})
            for name in ("today", "tomorrow")
            for n in range(20)
        ]
        asyncio.run(records.send_queries(scene.servers, scene.queries, *queries, partitions=2))
        watched = stream_svt("watch", "-c", config, "--from-beginning", "--limit", 12, "--json")
        alerts = [json.loads(line)["data"] for line in watched.out.splitlines()]
        assert {alert["dataset"] for alert in alerts} == {"today", "tomorrow"}
        assert all(alert["gap"] >= 0 for alert in alerts)
        paused = stream_svt("control", "pause", "-c", config, "today")
        assert (paused.code, "today: accepted" in paused.out) == (0, True), paused
        assert stream_svt("control", "resume", "-c", config, "today", "--monitor", "hot").code == 0
        refused = stream_svt("control", "resume", "-c", config, "today")
        assert (refused.code, "is not paused" in refused.err) == (1, True)
        assert stream_svt("control", "resample", "-c", config, "--all", "--yes").code == 0
        assert stream_svt("control", "close", "-c", config, "tomorrow").code == 0
        asked = stream_svt("control", "raise-budget", "-c", config, "today", "tomorrow", "--limit", 6)
        assert asked.code == 1
        assert "today (unit: one basket): epsilon " in asked.err
        assert "  limit 4 -> 6: one basket may lose up to epsilon 6 here, instead of 4" in asked.err
        assert "2 datasets on 2 shards: everyone in the data loses the difference" in asked.err
        asked = stream_svt("control", "close-application", "-c", config, "--successor", "next")
        assert "tomorrow (unit: one basket): epsilon " in asked.err
        assert "2 datasets on 2 shards: open runs end" in asked.err
        raised = stream_svt("control", "raise-budget", "-c", config, "today", "--limit", "11/2", "--yes")
        assert (raised.code, "raised from epsilon 4 to 5.5" in raised.out) == (0, True)
        lower = stream_svt("control", "raise-budget", "-c", config, "today", "--limit", "1", "--yes")
        assert lower.code == 1
        lost = ("--shard", 0, "--topic", scene.queries, "--offset", 7)
        nothing = stream_svt("control", "accept-loss", "-c", config, *lost, "--yes")
        assert nothing.code == 1
        assert "shard 0: refused: the shard does not wait for offset 7" in nothing.err
        whole = stream_svt("status", "-c", config, "--json")
        found = json.loads(whole.out)
        assert [
            (len(found["workers"]), found["declared"]),
            [one["dataset"] for one in found["datasets"]],
        ] == [
            (1, 2),
            ["today", "tomorrow"],
        ]
        assert all(shard["events"] > 0 and shard["command"] > 0 for shard in found["shards"])
        assert {shard["version"] for shard in found["shards"]} == {1}
        table = stream_svt("status", "-c", config).out
        assert f"{scene.application}: 1 worker in the group\n" in table
        assert table.count("│ running ") == 2, table
        assert "│ stopped since 20" in table
        assert "stopped: its run has ended" in table
        assert "2 datasets: epsilon " in table
        audited = stream_svt("audit", "-c", config)
        assert audited.code == 0, audited
        assert "of 5.5 spent" in audited.out
        assert "The ledgers balance" in audited.out
        assert asyncio.run(worker.end()) == 0
    finally:
        asyncio.run(worker.end(signal.SIGKILL))


def test_an_operator_pauses_until_a_time_mutes_a_series_and_raises_a_budget(stream_svt, scene):
    config = scene.write(max_runs="1 per 1h")
    assert stream_svt("check", "-c", config, "--create-topics").code == 0
    worker, numbers = scene.serve(file=config), count(1)

    def control(action: str, *options: object) -> Ended:
        return stream_svt("control", action, "-c", config, "today", *options)

    def ask(*queries: tuple[str, int]) -> None:
        sent = [
            ("today", {"id": f"q{next(numbers)}", "value": value, "series": name}) for name, value in queries
        ]
        asyncio.run(records.send_queries(scene.servers, scene.queries, *sent, partitions=2))

    def monitor() -> dict:
        status = worker.status() or {"datasets": []}
        found = {one["dataset"]: one["monitors"][0] for one in status["datasets"]}
        return found.get("today", {"state": "", "alerts": 0})

    def wait(**wanted: object) -> None:
        try:
            asyncio.run(worker.until(lambda: monitor().items() >= wanted.items(), 30))
        except AssertionError:
            assert monitor().items() >= wanted.items(), worker.log

    def alerted() -> list[str]:
        return [alert.series for alert in asyncio.run(scene.alerts())]

    try:
        asyncio.run(worker.ready())
        ask(("tea", LOW))
        wait(state="running")
        # The end is a time that reply, event, status and metric agree on.
        paused = control("pause", "--for", "10s")
        said = re.search(r"today: accepted: pause until (.+ UTC) carried out for hot on today", paused.out)
        assert (paused.code, said is not None) == (0, True), paused
        wait(state="paused")
        ask(("tea", HIGH))
        end = datetime.strptime(said[1], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC).timestamp()
        assert monitor()["until"] // 1000 == end
        assert (
            f"paused since {datetime.fromtimestamp(end, UTC):%Y-}" in stream_svt("status", "-c", config).out
        )
        assert f"until {said[1]}" in stream_svt("status", "-c", config).out
        metric = (
            r'monitor_state_until_timestamp_seconds\{.*dataset="today",monitor="hot",state="paused"\} (.+)'
        )
        assert int(float(re.search(metric, worker.fetch("/metrics"))[1])) == end
        watched = stream_svt("watch", "-c", config, "--from-beginning", "--lifecycle", "--limit", 10).out
        assert f"monitor.paused  today  hot  command  until={said[1]}" in watched
        # The query within the pause raises no alert, the first one behind its end does.
        asyncio.run(worker.until(lambda: datetime.now(UTC).timestamp() > end + 2))
        wait(state="paused", alerts=0)
        assert alerted() == []
        ask(("tea", HIGH))
        wait(state="running", alerts=1)
        # A muted series raises none, while the others do; unmuted it does again.
        muted = control("mute", "--series", "tea", "--for", "1h")
        assert re.match(
            r"today: accepted: mute of series 'tea' until .* UTC carried out for hot", muted.out
        ), muted
        assert control("mute", "--series", "tea", "--for", "2h").code == 0
        ask(("tea", HIGH), ("milk", HIGH))
        wait(alerts=2, muted=1)
        assert alerted() == ["tea", "milk"]
        assert control("unmute", "--series", "tea").out == (
            "today: accepted: unmute of series 'tea' carried out for hot on today\n"
        )
        again = control("unmute", "--series", "tea")
        assert (again.code, "has not muted series 'tea'; nothing was changed" in again.err) == (1, True)
        every = stream_svt("control", "mute", "-c", config, "--all", "--series", "rye", "--for", "1h")
        assert re.search(
            r"mute of series 'rye' until .* UTC carried out on 1 dataset, refused on 0", every.out
        )
        ask(("tea", HIGH), ("bran", LOW))
        wait(state="limited", alerts=3)
        assert alerted() == ["tea", "milk", "tea"]
        # A raise ends the limit of runs, and the reply names all that still prevents a test.
        assert control("pause").code == 0
        assert control("close").code == 0
        raised = control("raise-budget", "--limit", 5, "--yes").out
        assert raised.endswith(
            "raised from epsilon 4 to 5; hot is paused ('control resume' ends that), after which it is stopped: "
            "'control resample' begins a run\n"
        )
        assert control("resume").code == control("resample").code == 0
        ask(("rice", HIGH), ("oats", HIGH), ("corn", HIGH), ("bran", LOW))
        wait(state="limited", alerts=6)
        raised = control("raise-budget", "--limit", 6, "--yes").out
        assert raised.endswith("raised from epsilon 5 to 6; hot begins a run with its next query\n")
        ask(("figs", HIGH))
        wait(state="running", alerts=7)
        assert asyncio.run(worker.end()) == 0
    finally:
        asyncio.run(worker.end(signal.SIGKILL))
