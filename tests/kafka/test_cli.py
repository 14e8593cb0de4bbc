"""The command line against real brokers: topics, permissions, a running worker and its books."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime

import pytest

from stream_svt.monitor.released import EventType
from tests.support import records
from tests.support.alerts import account_of, alert, encoded, lifecycle
from tests.support.command_line import Ended
from tests.support.keys import write_secrets
from tests.support.permissions import COUNTER, WORKER, allow_all
from tests.support.process import COMMAND
from tests.support.tls import PASSWORD, USERS
from tests.support.topics import create_topics
from tests.support.worker import HIGH, LOW

pytestmark = pytest.mark.kafka
SCENE = {"create": False, "datasets": "today, tomorrow"}


async def watched(*arguments: object) -> str:
    """Return what `watch` prints: a process of its own, for it listens to signals."""
    command = [*COMMAND, "watch", "--from-beginning", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def test_check_creates_missing_topics_and_looks_at_what_they_keep(stream_svt, scene):
    """And no command is sent before a shard has started."""
    config = scene.write(more="    append: {retry: {lifetime: 50}}\n")
    name = scene.application
    missing = await stream_svt("check", "-c", config)
    assert missing.code == 2
    (said,) = [line for line in missing.out.splitlines() if "6 topics do not exist" in line]
    for topic in ("counts", "alerts", "state", "rejects", "control", "config"):
        assert f"'{name}.{topic}'" in said
    assert f"'stream-svt check -c {config} --create-topics'" in said
    assert missing.err == "1 problem: see FAIL above.\n"
    created = await stream_svt("check", "-c", config, "--create-topics")
    assert created.code == 0, created
    assert f"created '{name}.state' with 2 partitions" in created.out
    again = await stream_svt("check", "-c", config)
    last = again.out.splitlines()[-1]
    assert again.code == 0, again
    assert last == (
        f"No problem found. Tried: READ {scene.queries}, READ {name}.config, READ {name}.control, READ {name}.state, "
        f"READ {name}.alerts, WRITE transactional id {name}-check, WRITE {name}.state, WRITE {name}.alerts, "
        f"WRITE {name}.rejects, READ group {name}. Not tried: WRITE transactional id {name}-0 to {name}-1 (it would "
        "fence a worker)."
    )
    assert "all 6 topics exist, with 2 partitions each" in again.out
    read = [await scene.read(topic, "read_uncommitted") for topic in ("state", "alerts", "rejects")]
    assert read == [[], [], []]
    empty = await stream_svt("lint", "-c", config)
    assert (empty.code, empty.out) == (0, f"{scene.queries}: 0 records, all as expected\n")
    ended = await stream_svt("control", "pause", "-c", config, "today", "--timeout", 0.5)
    assert ended.code == 1
    assert "today: not sent: shard 1 has not started yet" in ended.err
    await records.send(scene.servers, scene.queries, *[(0, None, b"x")] * 20)
    found = await stream_svt("lint", "-c", config, "--sample", 8)
    assert found.code == 1
    assert "8 of 8: refused, no-key: " in found.out
    await scene.delete_before("counts", 15)
    short = await stream_svt("check", "-c", config)
    assert short.code == 2
    assert f"50 offsets is longer than topic '{scene.queries}' keeps records: partitions 0" in short.out


async def test_check_names_each_missing_permission(stream_svt, scene, secure_broker, tmp_path):
    write_secrets(tmp_path, {"password": PASSWORD})
    servers, name = secure_broker.bootstrap_servers, scene.application
    administrator = scene.write(servers=servers)
    assert (await stream_svt("check", "-c", administrator, "--create-topics")).code == 0
    topics = [f".{topic}" for topic in ("counts", "state", "alerts", "rejects", "control", "config")]
    looking = [("describe_configs", "topic", topic) for topic in topics]
    transactions = ("write", "transactional_id", "-")
    granted = [grant for grant in WORKER if grant != transactions]
    guest, service = USERS[:2]
    await allow_all(servers, service, name, [*granted, *looking])
    await allow_all(servers, guest, name, [*(("describe", "topic", one) for one in topics), *looking])

    async def checked(user: str) -> Ended:
        config = tmp_path / f"{user}.yaml"
        config.write_text(secure_broker.with_login(administrator.read_text(), user))
        return await stream_svt("check", "-c", config)

    nothing = await checked(guest)
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
    almost = await checked(service)
    assert almost.code == 2
    assert almost.out.count("FAIL") == 1, almost.out
    await allow_all(servers, service, name, [transactions])
    ready = await checked(service)
    assert ready.code == 0, ready.out


SOURCE = """
application: {name}
kafka: {{bootstrap_servers: "{servers}"}}
topics: {{partitions: 2}}
sources: [{{name: visits, topic: {name}.clicks, unit: user, window: 1h, dataset: clicks}}]
datasets: [{{name: clicks, limit: {{epsilon: 4}}}}]
monitors:
  - {{name: busy, source: visits, measure: units, epsilon: 1, cutoff: 3, threshold: 500, expected_queries: 1000}}
"""


async def test_check_names_each_permission_that_a_counter_lacks(stream_svt, scene, secure_broker, tmp_path):
    """A worker's user sees neither raw events nor the counter's log, and need not."""
    write_secrets(tmp_path, {"password": PASSWORD})
    servers, name = secure_broker.bootstrap_servers, scene.application
    await create_topics(servers, {f"{name}.clicks": 3})
    administrator = tmp_path / "administrator.yaml"
    write_secrets(tmp_path, {"state.key": "00" * 32})
    administrator.write_text(SOURCE.format(name=name, servers=servers) + "sealing: {keys: [state.key]}\n")
    created = await stream_svt("check", "-c", administrator, "--create-topics")
    assert created.code == 0, created
    assert f"created '{name}.sources' with 8 partitions" in created.out
    seen = [f".{topic}" for topic in ("clicks", "sources", "visits.counts")]
    looking = [("describe_configs", "topic", topic) for topic in seen]
    guest, service, worker = USERS[:3]
    describing = [("describe", "topic", topic) for topic in (*seen, ".config")]
    await allow_all(servers, guest, name, [*describing, *looking])
    await allow_all(servers, service, name, [*COUNTER, *looking])
    of_worker = [(*rest, one.replace(".counts", ".visits.counts")) for *rest, one in WORKER]
    await allow_all(servers, worker, name, of_worker)

    async def checked(user: str, *options: str) -> Ended:
        config = tmp_path / f"{user}.yaml"
        config.write_text(secure_broker.with_login(administrator.read_text(), user))
        return await stream_svt("check", "-c", config, *options)

    nothing = await checked(guest, "--counter")
    assert nothing.code == 2
    for operation, resource, rest in COUNTER:
        if (operation, resource) == ("write", "topic"):
            assert f"WRITE {name}{rest} (no transaction can begin)" in nothing.out
        else:
            what = f"operation {operation.upper()} on resource {resource.upper()} '{name}{rest}"
            assert f"permission is missing: {what}" in nothing.out
    assert nothing.out.count("permission is missing") == len(COUNTER) - 2
    (tmp_path / "state.key").unlink()  # a counter has no use for it
    ready = await checked(service, "--counter")
    assert ready.code == 0, ready.out
    assert "sealed" not in ready.out
    assert f"DELETE {name}.sources" in ready.out
    write_secrets(tmp_path, {"state.key": "00" * 32})
    apart = await checked(worker)
    assert (apart.code, "'stream-svt check --counter' checks as its user" in apart.out) == (0, True), (
        apart.out
    )
    assert (await checked(worker, "--counter")).code == 2
    assert await records.read(servers, f"{name}.sources", isolation="read_uncommitted") == []


async def test_audit_and_watch_need_nothing_but_the_alert_topic(stream_svt, broker, topics):
    declared = lifecycle("declared", run=0, monitor="", account=account_of(charge=0, spent=0))
    events = [
        encoded(1, declared, kind=EventType.DECLARED),
        encoded(2, lifecycle("first", account=account_of(charge=0.1, spent=0.1, reserved=0.5))),
        encoded(3, alert(number=1, account=account_of(charge=0.2, spent=0.3))),
    ]
    topic = await topics("good")
    await records.send(broker.bootstrap_servers, topic, *((0, None, event) for event in events))
    where = ("--bootstrap-servers", broker.bootstrap_servers, "--topic")
    balanced = await stream_svt("audit", *where, topic)
    assert balanced.code == 0
    assert "shop: epsilon 0.3 of 4 spent, 1 alert, 3 events" in balanced.out
    missing = await stream_svt("audit", *where, topics.name("none"))
    assert (missing.code, "does not exist" in missing.err) == (3, True)
    lines = await watched(*where, topic, "--lifecycle", "--limit", 3, "--json")
    assert [json.loads(line)["sequence"] for line in lines.splitlines()] == [1, 2, 3]


async def test_a_worker_runs_obeys_reports_and_its_books_balance(stream_svt, scene):
    config = scene.write()

    async def run(command: str, *options: object) -> Ended:
        return await stream_svt(*command.split(), "-c", config, *options)

    assert (await run("check", "--create-topics")).code == 0
    worker = scene.serve(file=config)
    await worker.ready()
    for name in ("today", "tomorrow"):
        await scene.send(name, *[HIGH] * 6, *[LOW] * 14)
    lines = await watched("-c", config, "--limit", 12, "--json")
    events = [json.loads(line) for line in lines.splitlines()]
    alerts = [event["data"] for event in events]
    explained = await run("explain", events[5]["id"])
    assert explained.out.startswith(f"Alert {events[5]['id']} of "), explained
    assert "\n  Odds     a value would be reported" in explained.out  # the digest is that of the file
    unknown = await run("explain", f"{scene.application}/today/hot/1/999")
    assert (unknown.code, "has no event" in unknown.err) == (1, True), unknown
    assert {alert["dataset"] for alert in alerts} == {"today", "tomorrow"}
    assert all(alert["gap"] >= 0 for alert in alerts)
    paused = await run("control pause", "today")
    assert (paused.code, "today: accepted" in paused.out) == (0, True), paused
    assert (await run("control resume", "today", "--monitor", "hot")).code == 0
    refused = await run("control resume", "today")
    assert (refused.code, "is not paused" in refused.err) == (1, True)
    assert (await run("control resample", "--all", "--yes")).code == 0
    assert (await run("control close", "tomorrow")).code == 0
    asked = await run("control raise-budget", "today", "tomorrow", "--limit", 6)
    assert asked.code == 1
    assert "today (unit: one basket): epsilon " in asked.err
    assert "  limit 4 -> 6: one basket may lose up to epsilon 6 here, instead of 4" in asked.err
    assert "2 datasets on 2 shards: everyone in the data loses the difference" in asked.err
    asked = await run("control close-application", "--successor", "next")
    assert "tomorrow (unit: one basket): epsilon " in asked.err
    assert "2 datasets on 2 shards: open runs end" in asked.err
    raised = await run("control raise-budget", "today", "--limit", "11/2", "--yes")
    assert (raised.code, "raised from epsilon 4 to 5.5" in raised.out) == (0, True)
    lower = await run("control raise-budget", "today", "--limit", "1", "--yes")
    assert lower.code == 1
    lost = ("--shard", 0, "--topic", scene.queries, "--offset", 7)
    nothing = await run("control accept-loss", *lost, "--yes")
    assert nothing.code == 1
    assert "shard 0: refused: the shard does not wait for offset 7" in nothing.err
    whole = await run("status", "--json")
    found = json.loads(whole.out)
    assert (len(found["workers"]), found["declared"]) == (1, 2)
    assert [one["dataset"] for one in found["datasets"]] == ["today", "tomorrow"]
    assert all(shard["events"] > 0 and shard["command"] > 0 for shard in found["shards"])
    assert {shard["version"] for shard in found["shards"]} == {1}
    table = (await run("status")).out
    assert f"{scene.application}: 1 worker in the group\n" in table
    assert table.count("│ running ") == 2, table
    assert "│ stopped since 20" in table
    assert (
        "stopped: its run has raised its last alert (detect, on_halt: stop), or an operator closed it"
        in table
    )
    assert "2 datasets: epsilon " in table
    audited = await run("audit")
    assert audited.code == 0, audited
    assert "of 5.5 spent" in audited.out
    assert "The ledgers balance" in audited.out
    assert await worker.end() == 0


async def test_an_operator_pauses_until_a_time_mutes_a_series_and_raises_a_budget(stream_svt, scene):
    config = scene.write(max_runs="1 per 1h")
    assert (await stream_svt("check", "-c", config, "--create-topics")).code == 0
    worker = scene.serve(file=config)

    async def control(action: str, *options: object) -> Ended:
        return await stream_svt("control", action, "-c", config, "today", *options)

    async def ask(*queries: tuple[str, int]) -> None:
        for name, value in queries:
            await scene.send("today", value, series=name)

    def monitor() -> dict:
        status = worker.status() or {"datasets": []}
        return {one["dataset"]: one["monitors"][0] for one in status["datasets"]}.get("today", {})

    async def wait(**wanted: object) -> None:
        await worker.until(lambda: monitor().items() >= wanted.items(), 30)

    async def alerted() -> list[str]:
        return [alert.series for alert in await scene.alerts()]

    await worker.ready()
    await ask(("tea", LOW))
    await wait(state="running")
    # The end is a time that reply, event, status and metric agree on.
    paused = await control("pause", "--for", "10s")
    said = re.search(r"today: accepted: pause until (.+ UTC) carried out for hot on today", paused.out)
    assert (paused.code, said is not None) == (0, True), paused
    await wait(state="paused")
    await ask(("tea", HIGH))
    end = datetime.strptime(said[1], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC).timestamp()
    assert monitor()["until"] // 1000 == end
    table = (await stream_svt("status", "-c", config)).out
    assert f"paused since {datetime.fromtimestamp(end, UTC):%Y-}" in table
    assert f"until {said[1]}" in table
    metric = r'monitor_state_until_timestamp_seconds\{.*dataset="today",monitor="hot",state="paused"\} (.+)'
    assert int(float(re.search(metric, worker.fetch("/metrics"))[1])) == end
    lines = await watched("-c", config, "--lifecycle", "--limit", 10)
    assert f"monitor.paused  today  hot  command  until={said[1]}" in lines
    # The query within the pause raises no alert, the first one behind its end does.
    await worker.until(lambda: datetime.now(UTC).timestamp() > end + 2)
    await wait(state="paused", alerts=0)
    assert await alerted() == []
    await ask(("tea", HIGH))
    await wait(state="running", alerts=1)
    # A muted series raises none, while the others do; unmuted it does again.
    muted = await control("mute", "--series", "tea", "--for", "1h")
    assert re.match(r"today: accepted: mute of series 'tea' until .* UTC carried out for hot", muted.out)
    assert (await control("mute", "--series", "tea", "--for", "2h")).code == 0
    await ask(("tea", HIGH), ("milk", HIGH))
    await wait(alerts=2, muted=1)
    assert await alerted() == ["tea", "milk"]
    assert (await control("unmute", "--series", "tea")).out == (
        "today: accepted: unmute of series 'tea' carried out for hot on today\n"
    )
    again = await control("unmute", "--series", "tea")
    assert (again.code, "has not muted series 'tea'; nothing was changed" in again.err) == (1, True)
    every = await stream_svt("control", "mute", "-c", config, "--all", "--series", "rye", "--for", "1h")
    assert re.search(r"mute of series 'rye' until .* UTC carried out on 1 dataset, refused on 0", every.out)
    await ask(("tea", HIGH), ("bran", LOW))
    await wait(state="limited", alerts=3)
    assert await alerted() == ["tea", "milk", "tea"]
    # A raise ends the limit of runs.
    raised = (await control("raise-budget", "--limit", 6, "--yes")).out
    assert raised.endswith("raised from epsilon 4 to 6; hot begins a run with its next query\n")
    await ask(("figs", HIGH))
    await wait(state="running", alerts=4)
    assert await worker.end() == 0
