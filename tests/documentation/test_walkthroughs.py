"""The README and the tutorial lead from nothing to an alert, on a real broker: their blocks are played in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stream_svt.application.config import load_config
from tests.documentation.pages import Code, blocks
from tests.support.process import COMMAND, Service, free_port
from tests.support.records import read, send, send_queries

pytestmark = pytest.mark.kafka

_NOT_PLAYED = re.compile(
    r"deploy/demo|tests/run|python3? -m (?:venv|stream_svt\.kafka\.embedded)|\. \.venv|cd |pip install|"
    r"stream-svt apply"
)
"""What needs the network, is the broker, or asks its reader; tests/kafka and tests/demo run these."""
_ENDLESS = re.compile(r"stream-svt watch(?!.* --limit)|python count_users")


class Walk:
    """A directory in which the blocks of a page are played, with the test's broker in place of the reader's."""

    def __init__(self, directory: Path, servers: str) -> None:
        self.here, self.servers, self.port = directory, servers, free_port()
        self.own = {"127.0.0.1:9092": servers, "127.0.0.1:6066": f"127.0.0.1:{self.port}"}
        self.printed = ""
        self.service: Service | None = None
        self.followed: list[tuple[subprocess.Popen[str], Path]] = []
        tools = directory / "bin"
        tools.mkdir()
        for name, words in {"stream-svt": COMMAND, "python": [sys.executable]}.items():
            code = "".join(f"'{word}' " for word in words)
            (tools / name).write_text(f'#!/bin/sh\nexec {code}"$@"\n')
            (tools / name).chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "STREAM_SVT_WEB_PORT": str(self.port),
            "STREAM_SVT_CONFIG": "monitors.yaml",
            "COLUMNS": "200",
            "HOME": str(directory),
        }

    def play(self, block: Code) -> None:
        """Write the file that a block is, run its commands, or compare what it shows as printed."""
        if block.name:
            (self.here / block.name).write_text(self.own_text(block.text))
        elif block.kind == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                if not _NOT_PLAYED.match(line):
                    self.run(self.own_text(line.split(" #")[0].strip()))
        elif block.kind == "python":
            path = self.here / f"block-{block.line}.py"
            path.write_text(self.own_text(block.text))
            self.run(f"python {path}")
        elif block.kind == "text":
            printed = set(map(_without_numbers, self.printed.splitlines()))
            assert [line for line in block.text.splitlines() if _without_numbers(line) not in printed] == []

    def run(self, line: str) -> None:
        """Run a command to its end; a worker and what follows alerts go on."""
        if started := re.match(r"stream-svt run -c (\S+)", line):
            self.stop()
            log, config = self.here / "worker.log", self.here / started[1]
            self.service = Service(config, self.port, log, env=self.environment, cwd=self.here)
            asyncio.run(self.service.ready())
        elif _ENDLESS.match(line) or "subscribe(" in self._program(line):
            log = self.here / f"followed-{len(self.followed)}"
            with log.open("w") as output:
                process = subprocess.Popen(line.split(), cwd=self.here, env=self.environment, stdout=output)
            self.followed.append((process, log))
        else:
            done = subprocess.run(
                ["bash", "-c", line],
                check=False,
                cwd=self.here,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            self.printed += done.stdout

    def stop(self) -> None:
        if self.service:
            assert asyncio.run(self.service.end()) == 0
            self.service = None

    def close(self) -> None:
        for process, _ in self.followed:
            process.terminate()
            process.wait(30)
        self.stop()

    def _program(self, line: str) -> str:
        path = Path(line.rsplit(maxsplit=1)[-1])
        return path.read_text() if path.suffix == ".py" and path.is_absolute() else ""

    def own_text(self, text: str) -> str:
        for theirs, own in self.own.items():
            text = text.replace(theirs, own)
        return text


def _without_numbers(line: str) -> str:
    return " ".join(re.sub(r"\d+(?:[.:]\d+)*", "0", line).split())


@pytest.fixture
def walk(tmp_path, broker) -> Iterator[Walk]:
    made = Walk(tmp_path, broker.bootstrap_servers)
    yield made
    made.close()


def test_the_tutorial_leads_to_an_alert_and_prints_what_it_shows(walk):
    for block in blocks(Path("docs/tutorial.md")):
        walk.play(block)
    assert "ALERT  visits-2026/town-117" in walk.printed


def test_the_readme_leads_to_alerts_and_its_pages_answer(walk):
    walk.own["prove -c monitors.yaml"] = "prove -c monitors.yaml --cases 9"  # 100 take long
    for block in blocks(Path("README.md")):
        walk.play(block)
    for block in blocks(Path("docs/status-page.md")):
        if block.kind == "python":
            walk.play(block)
    for number in range(30):  # a subscriber sees what is published once it reads
        high = {"id": f"high-{number}", "value": 100_000, "series": f"item-{number}"}
        asyncio.run(send_queries(walk.servers, "retail.counts", ("retail-2026", high), partitions=4))
        if all("item-" in log.read_text() for _, log in walk.followed):
            break
        time.sleep(2)
    else:
        pytest.fail(f"no alert came: {(walk.here / 'worker.log').read_text()[-2000:]}")
    assert len(walk.followed) == 2
    assert "No problem found. Tried: " in walk.printed
    assert "The ledgers balance" in walk.printed
    assert "ready, state sealed" in walk.printed
    for path, part in {
        "/": "<!doctype html>",
        "/metrics": "stream_svt_alerts_total",
        "/api/v1/status": "{",
    }.items():
        assert part in (walk.service.fetch(path) or "")
    walk.run("stream-svt schema > schema.json")
    schema = json.loads((walk.here / "schema.json").read_text())
    jsonschema.validate(yaml.safe_load((walk.here / "monitors.yaml").read_text()), schema)


def test_requests_of_a_librdkafka_client_lead_to_an_alert_on_the_page_with_many_users(walk):
    """And the counts are exact: of every page, zeros included, each user once."""
    folder = Path("examples/web_requests")
    for file in folder.glob("*.*"):
        (walk.here / file.name).write_text(walk.own_text(file.read_text()))
    walk.environment |= {"KAFKA": walk.servers}
    program = walk.here / "count_users.py"  # as it is, but for the time that a test may take
    text, pace = program.read_text(), "EVERY, LATENESS, HOUR = 10, 60, 3600"
    assert pace in text
    program.write_text(text.replace(pace, "EVERY, LATENESS, HOUR = 2, 6, 3600"))
    for block in blocks(folder / "README.md"):
        walk.play(block)
    assert re.search(r"ALERT  web-\d{4}-\d\d-\d\d//checkout  many-users", walk.printed)
    assert (
        "a value of 587 (87 above the threshold) at its first test 95% of the time, one of 578"
        in walk.printed
    )
    assert "for 2 whole runs: 10 alerts in all" in walk.printed
    assert "at most 1 run within 6h" in walk.printed
    counts = {"/": 200, "/search": 150, "/product": 100, "/cart": 20, "/checkout": 800}
    before = _asked(walk.servers)
    assert {one["series"]: one["value"] for one in before} == counts
    walk.followed[-1][0].kill()  # after a crash it counts the same users again, and goes on
    walk.run("python fake_requests.py")
    walk.run("python count_users.py")
    end = time.monotonic() + 60
    while len(asked := _asked(walk.servers)) == len(before):
        assert time.monotonic() < end
        time.sleep(0.5)
    assert {one["series"]: one["value"] for one in asked[len(before) :]} == counts
    assert not asyncio.run(read(walk.servers, "web-users.rejects", range(4)))


def _asked(servers: str) -> list[dict[str, Any]]:
    """Return the queries of the example about web requests; those of a day are on one partition."""
    return [json.loads(one.value) for one in asyncio.run(read(servers, "web.counts", range(4)))]


def test_an_operator_with_the_page_alone_goes_from_a_lost_state_to_a_successor_with_what_is_left(
    walk, topics
):
    """The page's commands word by word; the test damages the state, and names application and shard its own way."""
    name, high = topics.name("watch"), {"id": "high", "value": 100_000, "series": "item-1"}
    walk.own |= {"retail-watch": name, "retail.counts": topics.name("counts")}
    readme = [block for block in blocks(Path("README.md")) if block.name == "monitors.yaml"]
    walk.play(readme[0])
    walk.run("openssl rand -hex 32 > state.key; chmod 600 state.key")
    walk.run("stream-svt check -c monitors.yaml --create-topics")
    config = load_config(walk.here / "monitors.yaml")
    shard = config.home("retail-2026")
    walk.own["--shard 2"] = f"--shard {shard}"
    walk.run("stream-svt run -c monitors.yaml --apply")
    asyncio.run(send_queries(walk.servers, topics.name("counts"), ("retail-2026", high), partitions=4))
    walk.run("stream-svt watch -c monitors.yaml --from-beginning --limit 1")
    walk.stop()
    asyncio.run(send(walk.servers, config.topics.state, (shard, b"meta", b"somebody else's")))
    walk.run("stream-svt run -c monitors.yaml --apply")
    assert [one["cause"] for one in walk.service.status()["shards"] if one["state"] == "parked"] == [
        "state-unreadable"
    ]

    for block in blocks(Path("docs/lost-state.md")):
        walk.play(block)

    # The series that was reported stays muted.
    high |= {"id": "higher", "series": "item-2"}
    asyncio.run(send_queries(walk.servers, topics.name("counts"), ("retail-2026", high), partitions=4))
    walk.run("stream-svt watch -c next.yaml --from-beginning --limit 1")
    assert f"{name}-2" in walk.printed
    assert list(walk.here.glob(f"{name}-copies/audit-*"))
