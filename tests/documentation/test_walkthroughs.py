"""The README and the tutorial lead from nothing to an alert, on a real broker: their blocks are played in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pyarrow as pa
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
_ENDLESS = re.compile(r"stream-svt watch(?!.* --limit)|python \S*fake_requests")
_WINDOWS = re.compile(r"( +)window: 1m\b.*\n +lateness: 10s\n")
_QUICK = r"\1window: 10s\n\1lateness: 1s\n\1every: 1s\n\1settle: 1s\n"
"""Windows of the pages' sources, and shorter ones for a test."""


class Walk:
    """A directory in which the blocks of a page are played, with the test's broker in place of the reader's."""

    def __init__(self, directory: Path, servers: str) -> None:
        self.here, self.servers, self.port = directory, servers, _two_free_ports()
        self.own = {"127.0.0.1:9092": servers, "127.0.0.1:6066": f"127.0.0.1:{self.port}"}
        self.printed = ""
        self.service: Service | None = None
        self.followed: list[tuple[str, subprocess.Popen[str], Path]] = []
        (directory / "examples").symlink_to(Path("examples").absolute())
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
            "KAFKA": servers,
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
        if started := re.match(r"stream-svt run -c (\S+)(?: --apply)?(.*)", line):
            self.stop()
            log, config = self.here / "worker.log", self.here / started[1]
            options = started[2].split()
            self.service = Service(config, self.port, log, *options, env=self.environment, cwd=self.here)
            asyncio.run(self.service.ready())
        elif _ENDLESS.match(line) or "subscribe(" in self._program(line):
            log = self.here / f"followed-{len(self.followed)}"
            with log.open("w") as output:
                process = subprocess.Popen(line.split(), cwd=self.here, env=self.environment, stdout=output)
            self.followed.append((line, process, log))
            if "fake_requests.py" in line:  # its topic exists then
                self.wait_for(line, "requests sent")
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

    def wait_for(self, command: str, text: str) -> None:
        """Wait until what follows alerts, or sends, has printed a text; its command contains the given one."""
        [log] = [log for line, _, log in self.followed if command in line]
        end = time.monotonic() + 60
        while text not in log.read_text():
            worker = (self.here / "worker.log").read_text()[-2000:] if self.service else ""
            assert time.monotonic() < end, f"{log.read_text()}{worker}"
            time.sleep(0.2)

    def stop(self) -> None:
        if self.service:
            assert asyncio.run(self.service.end()) == 0
            self.service = None

    def close(self) -> None:
        for _, process, _ in self.followed:
            process.terminate()
            process.wait(30)
        self.stop()

    def _program(self, line: str) -> str:
        path = Path(line.rsplit(maxsplit=1)[-1])
        return path.read_text() if path.suffix == ".py" and path.is_absolute() else ""

    def own_text(self, text: str) -> str:
        for theirs, own in self.own.items():
            text = text.replace(theirs, own)
        return _WINDOWS.sub(_QUICK, text)


def _two_free_ports() -> int:
    """Return a port for a worker that is free, as is the one after the next, for the counter beside it."""
    while True:
        port = free_port()
        with socket.socket() as beside, contextlib.suppress(OSError):
            beside.bind(("127.0.0.1", port + 2))
            return port


def _without_numbers(line: str) -> str:
    return " ".join(re.sub(r"\d+(?:[.:,]\d+)*", "0", line).split())


@pytest.fixture
def walk(tmp_path, broker) -> Iterator[Walk]:
    made = Walk(tmp_path, broker.bootstrap_servers)
    yield made
    made.close()


def test_the_tutorial_leads_to_alerts_and_prints_what_it_shows(walk):
    for block in blocks(Path("docs/tutorial.md")):
        walk.play(block)
    assert "ALERT  web-2026//checkout" in walk.printed


def test_the_readme_leads_to_alerts_and_its_pages_answer(walk):
    walk.own["prove -c monitors.yaml"] = "prove -c monitors.yaml --cases 9"  # 100 take long
    for block in blocks(Path("README.md")):
        if block.name == "answers.yaml":  # its worker takes the place of the first one
            walk.wait_for("watch", "/checkout  many-users")
        walk.play(block)
    for block in blocks(Path("docs/status-page.md")):
        if block.kind == "python":
            walk.play(block)
    walk.wait_for("/block-", "/checkout")
    walk.run("stream-svt watch -c answers.yaml --from-beginning --limit 1")
    assert "ALERT  retail-2026/item-40  hot-items" in walk.printed
    assert walk.printed.count("No problem found. Tried: ") == 3
    [sampled] = re.findall(
        r"(\d+) of the newest (\d+) events of topic 'web.requests' would count", walk.printed
    )
    assert sampled[0] == sampled[1] != "0"
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
    for name in ("monitors.yaml", "answers.yaml"):
        jsonschema.validate(
            json.loads(json.dumps(yaml.safe_load((walk.here / name).read_text()), default=str)), schema
        )


def test_raw_web_requests_lead_to_an_alert_on_the_page_with_many_users_and_to_exact_counts(walk):
    """Each user counts once for a page and a window; pages without one are asked, too."""
    folder = Path("examples/web_requests")
    for file in folder.glob("*.*"):
        (walk.here / file.name).write_text(walk.own_text(file.read_text()))
    for block in blocks(folder / "README.md"):
        walk.play(block)
    assert re.search(r"ALERT  web-\d{4}-\d\d-\d\d//checkout  many-users", walk.printed)
    assert "topic 'web.requests' has the brokers' timestamps" in walk.printed
    users = {"/": 200, "/search": 150, "/product": 100, "/cart": 20, "/checkout": 800}
    end = time.monotonic() + 60
    while len(asked := _visitors(walk.servers)) < 3:
        assert time.monotonic() < end
        time.sleep(0.5)
    assert [
        one for one in asked[1:] if one != users
    ] == []  # the programs may have started within the first window
    assert asked[0].keys() == users.keys()
    assert not asyncio.run(read(walk.servers, "web.rejects", range(4)))


def _visitors(servers: str) -> list[dict[str, int]]:
    """Return the visitors of each page, of every window that was asked; those of a day are on one partition."""
    records = asyncio.run(read(servers, "web.requests.counts", range(4)))
    tables = [
        pa.ipc.open_stream(one.value).read_all() for one in records if ("measure", b"visitors") in one.headers
    ]
    rows = [[row for row in table.to_pylist() if not row["closed"]] for table in tables]
    return [{row["series"]: row["value"] for row in each} for each in rows]


def test_an_operator_with_the_page_alone_goes_from_a_lost_state_to_a_successor_with_what_is_left(
    walk, topics
):
    """The page's commands word by word; the test damages the state, and names application and shard its own way."""
    name, high = topics.name("watch"), {"id": "high", "value": 100_000, "series": "item-1"}
    walk.own |= {"retail-watch": name, "retail.counts": topics.name("counts")}
    [answers] = [block for block in blocks(Path("README.md")) if block.name == "answers.yaml"]
    (walk.here / "monitors.yaml").write_text(walk.own_text(answers.text))
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
