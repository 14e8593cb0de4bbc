"""The forwarder on a real broker: every event is delivered, in order, whatever its receivers and its process do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from stream_svt.forward.delivery import DESTINATION_HEADER, POSITION_HEADER, REASON_HEADER
from stream_svt.monitor.released import EventType
from tests.soak import forward as soak
from tests.support import records
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.forwarding import FAST, KEY, OLD_KEY, Receiver, Stage
from tests.support.permissions import allow
from tests.support.process import Process, free_port
from tests.support.prometheus import Alertmanager
from tests.support.tls import PASSWORD
from tests.support.topics import create_topics, delete_before
from tests.support.worker import until

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def stages(topics, tmp_path) -> AsyncIterator[Callable[[str], Awaitable[Stage]]]:
    """Put topics on brokers; the forwarders of their events end with the test."""
    made: list[Stage] = []

    async def make(servers: str) -> Stage:
        made.append(Stage(servers, topics.name("onward"), tmp_path))
        await create_topics(servers, {made[-1].topic: 2})
        return made[-1]

    yield make
    for process in (one for stage in made for one in stage.running):
        await process.end(signal.SIGKILL)


@pytest.fixture
async def stage(stages, broker) -> Stage:
    return await stages(broker.bootstrap_servers)


@pytest.mark.debian
async def test_every_committed_event_reaches_alertmanager_and_a_webhook_in_order(stage, debian_program):
    """An aborted copy, a forged record, an event that is refused, a halt that the next run ends."""
    program, amtool = debian_program("prometheus-alertmanager"), debian_program("amtool")
    rules = stage.directory / "am.yml"
    rules.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    parked = f"{stage.topic}-parked"
    await create_topics(stage.servers, {parked: 2})
    tickets = Receiver(
        lambda request, event: web.Response(status=422) if event["data"].get("series") == "never" else None
    )
    async with tickets.listening():
        with Alertmanager(program, rules, stage.directory) as pager:
            stage.configure(
                "name: pager, on_refused: park, types: ['*'], "
                f"alertmanager: {{urls: ['{pager.url}'], labels: {{team: privacy}}}}",
                f"name: tickets, on_refused: park, {FAST}, "
                f"webhook: {{url: '{tickets.url}/T0KEN', key_files: [hook.key, old.key]}}",
            )
            forwarder = await stage.begin()
            aborted = (0, b"a", encoded(999, alert(series="aborted")))
            await stage.publish(aborted, commit=False)
            halted = lifecycle("cutoff", dataset="a", run=1)
            exhausted = lifecycle("budget", dataset="b", run=1)
            started = lifecycle("resampled", dataset="a", run=2)
            await stage.publish(
                *(stage.event("abcd"[number % 4]) for number in range(24)),
                stage.event("a", halted, kind=EventType.RUN_HALTED),
                stage.event("b", exhausted, kind=EventType.EXHAUSTED),
                stage.event("c", alert(dataset="c", series="never")),
                (1, b"a", b"forged"),
            )
            never = stage.sent["c"].pop()
            await stage.publish(stage.event("a", started, kind=EventType.RUN_STARTED), stage.event("d"))
            stage.sent["a"].pop()  # not among the types that a webhook gets without asking
            done = {("pager", "delivered"): 27, ("tickets", "delivered"): 27, ("tickets", "parked"): 2}
            await forwarder.until(
                lambda: all(forwarder.metric("events_total", *one) == done[one] for one in done)
            )
            taken = [body for body in tickets.bodies if body != never]
            assert soak.judged(stage.sent, taken) == []
            assert len(set(taken)) == 27

            # What was refused is kept as it was, with where from and why.
            kept = await records.read(stage.servers, parked, range(2))
            assert Counter((one.value, dict(one.headers)[DESTINATION_HEADER]) for one in kept) == Counter(
                {(never, b"tickets"): 1, (b"forged", b"tickets"): 1, (b"forged", b"pager"): 1}
            )
            (one,) = [one for one in kept if one.value == never]
            assert one.key == b"c"
            assert dict(one.headers)[REASON_HEADER] == b"status 422"
            assert dict(one.headers)[POSITION_HEADER].startswith(f"{stage.topic}/1/".encode())

            # What people see in Alertmanager.
            await forwarder.until(lambda: forwarder.metric("standing_alerts", "pager") == 1)
            shown = {
                (found["labels"]["alertname"], found["labels"]["dataset"], found["labels"].get("series"))
                for found in pager.alerts()
            }
            assert ("AboveThreshold", "a", "s1") in shown
            assert ("MonitorExhausted", "b", None) in shown
            assert not any(series == "aborted" for _, _, series in shown)
            asked = await asyncio.create_subprocess_exec(
                amtool, f"--alertmanager.url={pager.url}", "alert", "query", "series=s1", "team=privacy",
                "-o", "extended", stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            said = (await asked.communicate())[0].decode()
            assert 'gap="12"' in said
            assert 'estimate="562"' in said

            # Released, and no secret of ours.
            everything = forwarder.log + (forwarder.fetch("/metrics") or "")
            for secret in ("T0KEN", KEY.hex(), OLD_KEY.hex()):
                assert secret not in everything
            assert await forwarder.end() == 0


@pytest.mark.debian
async def test_a_condition_stands_over_restarts_until_its_end_and_a_forwarder_begins_now(
    stage, debian_program
):
    """Old alerts are not posted; what stands is, by whoever has the partition, and it expires if none does."""
    rules = stage.directory / "am.yml"
    rules.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    lasting, passing = lifecycle("budget", dataset="a", run=1), lifecycle("max-runs", dataset="b", run=1)
    await stage.publish(
        *(stage.event("ab"[number % 2]) for number in range(40)),
        stage.event("a", lasting, kind=EventType.EXHAUSTED),
        stage.event("b", passing, kind=EventType.LIMITED),
        stage.event("b", lifecycle("resampled", dataset="b", run=2), kind=EventType.RUN_STARTED),
    )
    with Alertmanager(debian_program("prometheus-alertmanager"), rules, stage.directory) as pager:
        stage.configure(f"name: pager, alertmanager: {{urls: ['{pager.url}'], renew: 1s}}")
        path = stage.directory / "forward.yaml"
        path.write_text(path.read_text().replace("start_at: earliest", "start_at: latest"))

        def shown() -> set[tuple[str, str]]:
            return {(one["labels"]["alertname"], one["labels"]["dataset"]) for one in pager.alerts()}

        forwarder = await stage.begin()
        await forwarder.until(lambda: shown() == {("MonitorExhausted", "a")})
        assert forwarder.metric("standing_alerts", "pager") == 1
        await stage.publish(stage.event("b"))
        await forwarder.until(lambda: ("AboveThreshold", "b") in shown())
        (first,) = [one for one in pager.alerts() if one["labels"]["alertname"] == "MonitorExhausted"]
        await asyncio.sleep(7)  # longer than an alert lasts that is not renewed
        (renewed,) = [one for one in pager.alerts() if one["labels"]["alertname"] == "MonitorExhausted"]
        assert renewed["startsAt"] == first["startsAt"]
        assert renewed["endsAt"] > first["endsAt"]
        # A second forwarder gets one of the two partitions; then the first one dies.
        second = await stage.begin()
        await second.until(lambda: forwarder.metric("partitions", "pager") == 1)
        await forwarder.end(signal.SIGKILL)
        await second.until(lambda: second.metric("partitions", "pager") == 2)
        await second.until(lambda: second.metric("standing_alerts", "pager") == 1)
        assert ("MonitorExhausted", "a") in shown()
        await stage.publish(
            stage.event("a", lifecycle("command", dataset="a", monitor=""), kind=EventType.BUDGET_RAISED)
        )
        await second.until(lambda: ("MonitorExhausted", "a") not in shown())
        await stage.publish(stage.event("a", lasting, kind=EventType.EXHAUSTED))
        await second.until(lambda: ("MonitorExhausted", "a") in shown())
        assert await second.end() == 0
        await until(lambda: ("MonitorExhausted", "a") not in shown())  # nobody renews it


async def test_a_receiver_that_fails_holds_up_neither_alerts_nor_what_stands(stage) -> None:
    """Alertmanager answers requests with conditions, or those with alerts, with errors only."""
    broken = {"MonitorPaused"}

    def fails(request, event):
        names = {one["labels"]["alertname"] for one in event}
        return web.Response(status=500) if names & broken else None

    pager = Receiver(fails)
    async with pager.listening():
        stage.configure(f"name: pager, {FAST}, alertmanager: {{urls: ['{pager.url}'], renew: 1s}}")
        forwarder = await stage.begin()
        await stage.publish(stage.event("a", lifecycle("command", dataset="a"), kind=EventType.PAUSED))
        await stage.publish(stage.event("a"))

        def taken() -> set[str]:
            return {one["labels"]["alertname"] for event in pager.taken for one in event}

        await forwarder.until(lambda: taken() == {"AboveThreshold"})
        await forwarder.until(lambda: "event=forward_standing_failed" in forwarder.log)
        broken.clear()
        await forwarder.until(lambda: "MonitorPaused" in taken())
        broken.add("AboveThreshold")
        pager.taken.clear()
        await stage.publish(stage.event("a"))
        await forwarder.until(lambda: "event=forward_failed" in forwarder.log)
        await stage.publish(stage.event("b", lifecycle("budget", dataset="b"), kind=EventType.EXHAUSTED))
        await forwarder.until(lambda: "MonitorExhausted" in taken())


async def test_killing_forwarders_again_and_again_loses_nothing_and_keeps_the_order(broker, topics, tmp_path):
    """The soak in its short form, on a broker that stays."""
    outcome = await soak.blows(broker, topics.name("soak"), tmp_path, soak.SHORT, 1, restarts=False)
    assert (outcome.violations, outcome.count) == ([], soak.SHORT)


async def test_a_destination_that_is_refused_stops_alone_and_says_so(stage) -> None:
    refusing = Receiver(lambda request, event: web.Response(status=400))
    willing = Receiver()
    async with refusing.listening(), willing.listening():
        stage.configure(
            f"name: strict, webhook: {{url: '{refusing.url}'}}",
            f"name: willing, webhook: {{url: '{willing.url}'}}",
        )
        forwarder = await stage.begin()
        await stage.publish(stage.event("a"), stage.event("b"))
        await forwarder.until(lambda: len(willing.taken) == 2)
        await forwarder.until(
            lambda: "destination strict: stopped" in (forwarder.fetch("/health/ready") or "")
        )
        assert forwarder.fetch("/health/live") == "live\n"
        assert forwarder.metric("stopped", "strict") == 1
        assert forwarder.metric("stopped", "willing") == 0
        assert "event=forward_stopped destination=strict" in forwarder.log
        await stage.publish(stage.event("c"))
        await forwarder.until(lambda: len(willing.taken) == 3)
        # Nothing is left to read, and the brokers say so again and again.
        assert time.time() - forwarder.metric("last_poll_timestamp_seconds", "willing") < 10
        assert len(refusing.bodies) <= 2
        assert await forwarder.end() == 1
        # Mended, it goes on where it stood: nothing was passed over.
        refusing.answer = lambda request, event: None
        again = await stage.begin()
        await again.until(lambda: len(refusing.taken) == 3)


async def test_a_new_group_begins_at_the_oldest_event_and_goes_on_there_unless_retention_took_its_place(
    stage,
):
    """What retention took is missed loudly, and given up on request only."""
    receiver = Receiver()
    async with receiver.listening():
        await stage.publish(stage.event("a"))
        stage.configure(f"name: hook, {FAST}, webhook: {{url: '{receiver.url}'}}")
        forwarder = await stage.begin()
        await forwarder.until(lambda: len(receiver.taken) == 1)
        await forwarder.end()
        await stage.publish(stage.event("b"))
        again = await stage.begin()
        await again.until(lambda: len(receiver.taken) == 2)
        assert [event["id"] for event in receiver.taken] == ["a-1", "b-2"]

        receiver.answer = lambda request, event: web.Response(status=500)
        await stage.publish(*(stage.event("a") for _ in range(4)))
        await again.until(lambda: len(receiver.bodies) > 2)
        await again.end()
        await delete_before(stage.servers, stage.topic, 4, partition=1)  # of four, two are left
        stopped = stage.start()
        assert await stopped.ended() == 4
        assert "no longer has offset" in stopped.log
        assert "--accept-loss" in stopped.log
        receiver.answer = lambda request, event: None
        last = await stage.begin("--accept-loss")
        await last.until(lambda: len(receiver.taken) == 4)
        assert [event["id"] for event in receiver.taken[2:]] == ["a-5", "a-6"]


async def test_the_example_receiver_prints_each_alert_once_and_a_test_costs_no_budget(stage) -> None:
    port = free_port()
    command = [sys.executable, "-u", str(ROOT / "examples" / "webhook_receiver.py")]
    env = os.environ | {"KEYS": str(stage.directory / "hook.key"), "PORT": str(port)}
    receiver = Process(command, port, stage.directory / "receiver", env=env)
    stage.running.append(receiver)
    stage.configure(
        f"name: hook, {FAST}, webhook: {{url: 'http://127.0.0.1:{port}/', key_files: [hook.key]}}"
    )
    checked, tested = stage.start("--check"), stage.start("--test")
    assert await checked.ended() == 0
    assert "Ready to forward" in checked.log
    assert await tested.ended() == 0
    assert "hook: accepted (status 204)" in tested.log
    forwarder = await stage.begin()
    await stage.publish(stage.event("a", alert(dataset="a", series="milk")))
    await receiver.until(lambda: receiver.output == "'a' 'milk': gap 12, not certified\n", 20)
    await forwarder.end()
    stage.configure("name: hook, on_refused: park, webhook: {url: 'http://127.0.0.1:1/'}")
    unparked, failed = stage.start("--check"), stage.start("--test")
    assert await unparked.ended() == 2
    assert "park_topic" in unparked.log
    assert await failed.ended() == 1


async def test_over_tls_with_a_login_the_documented_permissions_are_enough_and_each_is_named(
    stages, secure_broker
):
    """Negative control: without the right to its groups it ends, and says which right is missing."""
    stage = await stages(secure_broker.bootstrap_servers)
    servers, topic, directory = stage.servers, stage.topic, stage.directory
    await create_topics(servers, {f"{topic}-parked": 1})
    receiver = Receiver(lambda request, event: web.Response(status=422) if event["sequence"] == 2 else None)
    async with receiver.listening():
        stage.configure(f"name: hook, on_refused: park, webhook: {{url: '{receiver.url}'}}")
        config = directory / "forward.yaml"
        config.write_text(secure_broker.secured(config.read_text(), directory, mechanism="SCRAM-SHA-512"))
        await stage.publish(*(stage.event(name) for name in ("a", "b", "c")))
        for operation, resource, name in (("read", "topic", topic), ("write", "topic", f"{topic}-parked")):
            await allow(servers, "svt", operation, resource, name)
        denied, checked = stage.start(), stage.start("--check")
        for one in (denied, checked):
            assert await one.ended() == 3
            assert f"operation READ on resource GROUP '{topic}.hook'" in one.log
        await allow(servers, "svt", "read", "group", f"{topic}.", prefixed=True)
        forwarder = await stage.begin()
        await forwarder.until(lambda: len(receiver.taken) == 2)
        await forwarder.until(lambda: forwarder.metric("events_total", "hook", "parked") == 1)
        assert await forwarder.end() == 0
        assert PASSWORD not in denied.log + forwarder.log
