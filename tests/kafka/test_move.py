"""An application that moves in the middle of a day, by the commands of docs/operations.md, on a real broker."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stream_svt.monitor.released import Alert, EventType
from tests.documentation.pages import blocks
from tests.support.closing import KEY
from tests.support.keys import write_secrets
from tests.support.process import Service, free_port
from tests.support.worker import HIGH, Scene

pytestmark = pytest.mark.kafka

PAGE = Path("docs/operations.md")
OLD = """application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topics: {{partitions: 2}}
commit: {{interval: 100ms}}
sealing: {{keys: [key]}}
web: {{port: {port}}}
datasets:
  - {{generate: "web-{{date}}", from: 2026-01-01, lateness: 2h, limit: 200, unit: one request}}
  - {{name: shop, limit: 200, unit: one basket}}
monitors:
  - name: hot
    topic: {application}.counts
    epsilon: 1
    cutoff: 3
    sensitivity: 1
    monotonic: true
    bounds: [0, 100000]
    threshold: 5000
    expected_queries: 10000
    max_runs: off
    mute: 1d
"""


class Move:
    """A directory with the files of the page, and the workers that its commands start."""

    def __init__(self, scene: Scene, port: int) -> None:
        self.scene = scene
        self.here = scene.directory
        self.successor = f"{scene.application}-2"
        self.services = scene.services
        write_secrets(self.here, {"key": KEY.hex()})
        text = OLD.format(application=scene.application, servers=scene.servers, port=port)
        (self.here / "old.yaml").write_text(text)
        self.port = port

    async def play(self, text: str) -> str:
        """Run the commands of a block, and return what they print; a worker goes on running."""
        said = ""
        for line in text.replace("retail-watch-2", self.successor).splitlines():
            command = line.strip()
            if command.startswith("stream-svt run "):
                await self.run(command)
            else:
                said += await self._shell(command)
        return said

    async def run(self, command: str) -> Service:
        config = self.here / command.split()[3]
        log = config.with_suffix(".log")
        service = Service(config, self.port, log, applies="--apply" in command, cwd=self.here)
        self.services.append(service)
        await service.ready()
        return service

    async def _shell(self, command: str) -> str:
        paths = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_shell(
            command, cwd=self.here, env=paths, stdout=pipe, stderr=pipe
        )
        async with asyncio.timeout(200):
            out, err = await process.communicate()
        assert process.returncode == 0, f"{command}\n{out.decode()}{err.decode()}"
        return out.decode() + err.decode()


@pytest.fixture
async def move(scenes) -> Move:
    return Move(await scenes(create=False), free_port())


async def _away_from_midnight() -> str:
    """Return the name of today's dataset; a day that ends during the test would be another one."""
    now = datetime.now(UTC)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    if (midnight - now).total_seconds() < 180:
        await asyncio.sleep((midnight - now).total_seconds() + 1)
    return f"web-{datetime.now(UTC).date()}"


async def _send_on(scene: Scene, datasets: list[str]) -> None:
    """Send queries that become alerts, each of a series of its own, until cancelled."""
    while True:
        for dataset in datasets:
            await scene.send(dataset, HIGH)
        await asyncio.sleep(0.2)


@pytest.mark.timeout(590)
async def test_an_application_moves_in_the_middle_of_a_day_and_only_the_restart_goes_unwatched(
    move: Move, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every query is tested once, by one of the two; what was muted stays muted; the day's limit holds for both."""
    scene, datasets = move.scene, [await _away_from_midnight(), "shop"]
    first, start, compare = (block.text for block in blocks(PAGE) if " new.yaml" in block.text)
    await move.play("stream-svt check -c old.yaml --create-topics\nstream-svt run -c old.yaml --apply")
    [old] = move.services
    await _send_muted(scene, datasets)
    await old.until(lambda: old.offsets(scene.queries) >= 8)
    sending = asyncio.create_task(_send_on(scene, datasets))
    await asyncio.sleep(1)

    said = await move.play(first)
    assert await old.end() == 0
    await move.play(start)
    watched_again = time.time()
    await _send_muted(scene, datasets)
    sending.cancel()
    await asyncio.wait([sending])
    new = move.services[-1]
    sent = sum((await scene.ends("counts")).values())
    await new.until(lambda: new.offsets(scene.queries) >= sent)
    compared = await move.play(compare)

    before, after = await scene.events(), await Scene(scene.servers, move.successor).events()
    stopped = min(event.time.timestamp() for event in before if event.type == EventType.APPLICATION_CLOSED)
    with capsys.disabled():
        print(f"\nNothing was watched for {watched_again - stopped:.1f} s, while the application restarted.")
    alerts = [event.data for event in [*before, *after] if isinstance(event.data, Alert)]
    told = Counter((data.position.partition, data.position.offset) for data in alerts)
    assert set(told.values()) == {1}
    assert len(told) == sent - 8, "all but the second queries of the muted series"
    assert Counter(
        data.dataset for data in alerts if (data.series or "").startswith("muted")
    ) == dict.fromkeys(datasets, 4)
    assert len([event for event in after if event.type == EventType.ALERT]) > 20
    begun = [event.data for event in after if event.type == EventType.DECLARED]
    assert sorted(data.dataset for data in begun) == sorted(datasets)
    assert all(data.account.spent == data.detail["spent_before"] > 0 for data in begun)
    for words in (  # soon after midnight the day before goes on, too
        f"generator 'web-{{date}}': continues .*'{datasets[0]}': epsilon",
        f"topic '{scene.queries}': continues on this cluster at offset",
        f"[23] datasets from its file; .*{datasets[0]} in the period in progress",
        f"topic '{scene.queries}' continues where it was left",
    ):
        assert re.search(words, said), said
    assert len(re.findall(r"[1-9]\d* series muted", said)) == 2, said
    assert "The ledgers balance" in compared


async def _send_muted(scene: Scene, datasets: list[str]) -> None:
    for number in range(4):
        for dataset in datasets:
            await scene.send(dataset, HIGH, series=f"muted-{number}")
