"""`stream-svt send` on a real broker: what it sends is tested, and what it says of a failure is what happened."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from stream_svt.errors import BrokerError
from stream_svt.kafka.clients import partition_counts
from tests.support.process import COMMAND
from tests.support.worker import HIGH, LOW, Scene, grown, until

pytestmark = pytest.mark.kafka
SCENE = {"partitions": 3, "partitioner": "crc32"}


def line(number: int, dataset: str = "a", value: object = LOW) -> bytes:
    return (
        json.dumps({"dataset": dataset, "id": f"q{number}", "series": f"s{number}", "value": value}).encode()
        + b"\n"
    )


async def start(scene: Scene, *options: str) -> Process:
    command = [*COMMAND, "send", "-c", str(scene.write()), *options]
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stderr=PIPE)


async def send(scene: Scene, lines: list[bytes], *options: str) -> tuple[int | None, str]:
    """Return exit code and standard error of the command for this input."""
    sending = await start(scene, *options)
    _, said = await asyncio.wait_for(sending.communicate(b"".join(lines)), 60)
    return sending.returncode, said.decode()


async def sent(scene: Scene) -> list[str]:
    """Return the ids on the query topic, sorted."""
    return sorted(
        (json.loads(one.value)["id"] for one in await scene.read("counts")), key=lambda one: int(one[1:])
    )


async def test_what_is_sent_is_tested_and_an_invalid_line_ends_it(scene: Scene) -> None:
    worker = await scene.start()
    names = ["a", "b", "c"]
    lines = [line(n, names[n % 3], HIGH if n < 3 else LOW) for n in range(5000)]
    lines[0] = b"\n" + lines[0]
    code, said = await send(scene, lines)
    assert (code, said) == (0, f"5000 records acknowledged on {scene.queries}; the next line is 5002.\n")
    await scene.settled(worker, 5000)
    assert {alert.dataset for alert in await scene.alerts()} == {"a", "b", "c"}
    assert not await scene.read("rejects")

    lines = [line(5000), line(5001, value="7"), line(5002)]
    code, said = await send(scene, lines)
    assert code == 1
    assert f"1 record acknowledged on {scene.queries}; the next line is 2.\n" in said
    assert "line 2 was not sent: 'value' is a string" in said
    code, said = await send(scene, lines, "--skip", "--from-line", "2")
    assert code == 1
    assert "line 2: 'value' is a string" in said
    assert f"1 record acknowledged on {scene.queries}, 1 line skipped; the next line is 4.\n" in said
    assert await sent(scene) == [f"q{n}" for n in range(5003) if n != 5001]


async def test_after_an_interruption_the_rest_is_sent_once_from_the_line_that_it_named(scene: Scene) -> None:
    sending = await start(scene)
    sending.stdin.write(b"".join(map(line, range(10))))
    await grown(lambda: scene.read("counts"), 10)
    sending.send_signal(signal.SIGINT)  # while it waits for more
    _, said = await asyncio.wait_for(sending.communicate(), 20)
    assert sending.returncode == 130
    assert said.decode().strip() == f"10 records acknowledged on {scene.queries}; the next line is 11."
    assert (await send(scene, [*map(line, range(15))], "--from-line", "11"))[0] == 0
    assert await sent(scene) == [f"q{n}" for n in range(15)]


async def test_while_the_broker_does_not_answer_it_says_what_was_acknowledged(scene: Scene, broker) -> None:
    command = [sys.executable, "-c", _IMPATIENT, "send", "-c", str(scene.write())]
    sending = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stderr=PIPE)
    sending.stdin.write(b"".join(map(line, range(10))))
    await grown(lambda: scene.read("counts"), 10)
    broker.process.send_signal(signal.SIGSTOP)
    try:
        _, said = await asyncio.wait_for(sending.communicate(b"".join(map(line, range(10, 14)))), 60)
    finally:
        broker.process.send_signal(signal.SIGCONT)
        await until(lambda: _exists(scene))  # its controller may have missed it
    assert sending.returncode == 3, said
    assert f"10 records acknowledged on {scene.queries}; the next line is 11." in said.decode()
    assert "Lines 11 to 14 were sent and not all acknowledged" in said.decode()
    assert "no answer from the broker in time" in said.decode()


async def _exists(scene: Scene) -> bool:
    with contextlib.suppress(BrokerError):
        return scene.queries in await partition_counts(scene.config().cluster(), "waiting for the broker")
    return False


_IMPATIENT = (
    "import sys; from stream_svt.operate import send; send.ACK_DEADLINE = 1.0; "
    "from stream_svt.cli import main; sys.exit(main())"
)
