"""A worker in somebody's own asyncio program, and in their Faust app."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stream_svt
from stream_svt.application.config import load_config
from stream_svt.cli.configuring import apply_file
from stream_svt.errors import ConfigError, MisuseError, StreamSvtError
from stream_svt.hosting import hosted
from stream_svt.kafka.clients import members
from tests.support.process import Process
from tests.support.worker import HIGH, LOW, Scene

pytestmark = pytest.mark.kafka
SCENE = {"limit": 50}
EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = {"embed_asyncio.py": [], "embed_faust.py": ["worker", "-l", "warn", "--without-web"]}


def _program(example: str, scene: Scene, config: Path) -> Process:
    env = os.environ | {
        "CONFIG": str(config),
        "KAFKA": scene.servers,
        "ALERTS": f"{scene.application}.alerts",
        "PYTHONPATH": str(EXAMPLES.parent),
    }
    command = [sys.executable, "-u", str(EXAMPLES / example), *COMMANDS[example]]
    scene.services.append(Process(command, 0, scene.directory / "log", cwd=scene.directory, env=env))
    return scene.services[-1]


@pytest.mark.parametrize("example", COMMANDS)
async def test_a_worker_in_a_program_takes_over_from_a_killed_one_alerts_and_leaves_in_order(
    example, scene, broker
):
    service = scene.serve()
    await service.ready()
    for dataset in "abc":
        await scene.send(dataset, HIGH, LOW)
    await service.until(lambda: service.offsets() == 6)
    program = _program(example, scene, service.config)
    await program.until(lambda: program.said("ready with shards ["))
    await service.end(signal.SIGKILL)
    for dataset in "abc":
        await scene.send(dataset, HIGH, LOW, HIGH)
    await scene.alerted(9)
    await program.until(lambda: program.said("gap ") >= 6)
    assert await program.end() == 0
    assert program.said("left the group") == 1
    assert await members(scene.config().cluster(), scene.application, "looking") == []
    found = await scene.judged(broker)
    assert (found.violations, len(found.alerts), found.queries) == ([], 9, 15)


@pytest.fixture
async def applied_file(scene: Scene) -> Path:
    """A configuration that is applied; no worker runs."""
    file = scene.write()
    await asyncio.to_thread(apply_file, file)
    return file


async def test_it_starts_once_shows_its_state_and_changes_nothing_of_the_process(scene, applied_file):
    def process() -> tuple[object, ...]:
        root, client = logging.getLogger(), logging.getLogger("aiokafka")
        handlers = [(one, list(one.filters)) for one in root.handlers]
        signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
        collector = (gc.get_threshold(), list(gc.callbacks))
        loop = (type(asyncio.get_event_loop_policy()), asyncio.get_running_loop().get_exception_handler())
        return root.level, handlers, client.level, client.handlers, signals, collector, loop

    worker = stream_svt.Worker(str(applied_file), web=True)
    with pytest.raises(MisuseError, match="not started"):
        _ = worker.status
    before, frozen = process(), gc.get_freeze_count()
    async with worker:
        await scene.send("a", HIGH)
        await scene.alerted()
        assert process() == before
        assert [line.state for line in worker.status.shards] == ["running", "running"]
        assert b"stream_svt_alerts_total" in await worker.metrics()
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.ports[applied_file])
        writer.write(b"GET /health/ready HTTP/1.0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.0 200 OK")
        writer.close()
        with pytest.raises(MisuseError, match="started before"):
            await worker.start()
    assert process() == before
    assert gc.get_freeze_count() <= frozen  # those of others may be freed
    await worker.wait()
    await worker.stop()
    assert await members(scene.config().cluster(), scene.application, "looking") == []


async def test_a_mistake_in_the_configuration_is_raised_on_entering_with_the_text_of_run(
    scene, applied_file, tmp_path
):
    busy, other = tmp_path / "busy.yaml", tmp_path / "other.yaml"
    text = applied_file.read_text()
    other.write_text(text.replace("partitions: 2", "partitions: 5"))
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as taken:
        busy.write_text(re.sub(r"web: .*", f"web: {{port: {taken.sockets[0].getsockname()[1]}}}", text))
        mistakes: dict[str, Callable[[], stream_svt.Worker]] = {
            "nothing.yaml": lambda: stream_svt.Worker(tmp_path / "nothing.yaml"),
            "has 2 partitions, topics.partitions says 5": lambda: stream_svt.Worker(load_config(other)),
            "web.port: cannot listen on 127.0.0.1": lambda: stream_svt.Worker(busy, web=True),
        }
        for words, make in mistakes.items():
            with pytest.raises(ConfigError, match=re.escape(words)):
                async with make():
                    pytest.fail("entered")


@pytest.mark.usefixtures("applied_file")
async def test_a_worker_that_cannot_start_ends_the_faust_app_around_it(scene: Scene) -> None:
    program = _program("embed_faust.py", scene, scene.write(partitions=5))
    assert await program.ended() != 0
    assert "has 2 partitions, topics.partitions says 5" in program.output
    assert program.said("left the group") == 1


async def test_two_applications_run_in_one_loop_and_two_workers_of_one_share_its_shards(
    scene, scenes, applied_file
):
    other = await scenes(application=f"{scene.application}-other")
    file = other.write()
    await asyncio.to_thread(apply_file, file)
    async with stream_svt.Worker(applied_file) as first, stream_svt.Worker(file) as second:
        for one, worker in ((scene, first), (other, second)):
            await one.send("a", HIGH)
            assert worker.status.application == one.application
            await one.alerted()
        async with stream_svt.Worker(file) as third:
            await second.ready()
            assert [len(one.status.shards) for one in (second, third)] == [1, 1]


async def test_a_loop_blocked_for_longer_than_the_session_loses_and_doubles_nothing(
    scene, applied_file, broker
):
    async with stream_svt.Worker(applied_file) as worker:
        await scene.send("a", HIGH)
        await scene.send("b", HIGH)
        time.sleep(3.0)  # noqa: ASYNC251  what a session of two seconds does not survive
        await scene.send("a", LOW, HIGH)
        await scene.alerted(3)
        await worker.ready()
    found = await scene.judged(broker)
    assert (found.violations, len(found.alerts), found.queries) == ([], 3, 4)


async def test_a_cancelled_program_leaves_in_order_even_when_it_is_cancelled_again(scene, applied_file):
    entered = asyncio.Event()

    async def program() -> None:
        async with stream_svt.Worker(applied_file) as worker:
            entered.set()
            await worker.wait()

    running = asyncio.create_task(program())
    await asyncio.wait_for(entered.wait(), 30)
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await members(scene.config().cluster(), scene.application, "looking") == []


async def test_a_worker_without_an_applied_configuration_waits_and_can_be_given_up(scene, monkeypatch):
    monkeypatch.setattr("stream_svt.worker.worker.VERSION_WITHIN", 0.1)
    worker = stream_svt.Worker(scene.write())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await worker.__aenter__()
    assert "stream-svt apply" in worker.status.fault.reason
    with pytest.raises(StreamSvtError, match="stopped"):
        await worker.ready()


async def test_a_late_stop_is_an_error(applied_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = hosted.Worker.stop

    async def late(self: hosted.Worker) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await stop(self)

    worker = stream_svt.Worker(applied_file)
    await worker.start()
    monkeypatch.setattr(hosted.Worker, "stop", late)
    monkeypatch.setattr(hosted, "STOP_DEADLINE", 0.1)
    with pytest.raises(StreamSvtError, match="not stopped within"):
        await worker.stop()
