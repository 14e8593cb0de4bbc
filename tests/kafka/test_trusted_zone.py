"""A worker's process, looked at from outside: what it shows, where it listens, and where its keys are not."""

from __future__ import annotations

import asyncio
import base64
import http.client
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from stream_svt.protocol.journal import META
from stream_svt.protocol.sealing import Place, Sealing
from stream_svt.service.topology import look
from stream_svt.service.web import EVENTS, PAGES
from stream_svt.service.worker import cluster_of
from tests.support.keys import write_secrets
from tests.support.process import COMMAND, Service, free_port
from tests.support.worker import HIGH, LOW, Scene

pytestmark = pytest.mark.kafka
MASTER, SHARED = bytes(range(32)), bytes(range(1, 33))
SECTIONS = """
sealing: {{key_command: [cat, sealing.key]}}
control: {{hmac_key_files: [shared.key]}}
web: {{port: {port}}}
"""
# What a careless environment may hold: none of it may open a page of the host's own, or change a section.
ENVIRONMENT = {
    "DEBUG": "1",
    **{
        f"APP_{name}": "1"
        for name in ("DEBUG", "WEB_STATS_ENABLED", "WEB_GRAPH_ENABLED", "WEB_METRICS_ENABLED")
    },
    **{f"APP_WEB_{name}_ENABLED": "1" for name in ("ROUTER", "TABLES")},
    "NODE_HOSTNAME": "0.0.0.0",  # noqa: S104  it must not be listened on
    "WEB_BIND": "0.0.0.0",  # noqa: S104  likewise
}

STATUS = {
    *("application", "version", "worker", "spec_hash", "ready", "fault", "sealed"),
    *("signatures_required", "datasets_declared", "shards", "monitors", "datasets", "datasets.monitors"),
    *("datasets_by_state", "datasets_summed_up"),
    *(f"datasets_by_state.{name}" for name in ("monitor", "states", "muted", "queued")),
    *("refused", "refused.topic", "refused.reasons"),
    *(
        f"shards.{name}"
        for name in ("shard", "state", "reason", "cause", "sealing_key_id", "sequence", "state_records")
    ),
    *(f"shards.{name}" for name in ("offsets", "lag", "committed_at")),
    *(f"monitors.{name}" for name in ("monitor", "topic", "mechanism", "threshold", "cutoff", "epsilon")),
    *(f"datasets.{name}" for name in ("dataset", "shard", "unit", "measure", "limit", "spent", "reserved")),
    *(
        f"datasets.monitors.{name}"
        for name in ("monitor", "state", "run", "run_tops", "tops", "runs", "halts")
    ),
    *(f"datasets.monitors.{name}" for name in ("spent", "run_left", "muted", "queued", "top_branch_only")),
}
"""Every field of the status page. Each is public, a released outcome, an account of charges or of refused records."""


class Process(Service):
    """A worker started from the command line in a directory of its own, and what it says."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        self.scene, self.directory = scene, directory
        self.port = free_port()
        config = directory / "shop.yaml"
        config.write_text(scene.text() + SECTIONS.format(port=self.port))
        options = ("--log-level", "debug", "--signing-key", "shared.key")
        super().__init__(config, self.port, directory / "log", *options, env=ENVIRONMENT, cwd=directory)

    def request(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def of_kernel(self, name: str) -> bytes:
        return Path(f"/proc/{self.process.pid}/{name}").read_bytes()


@pytest.fixture
async def process(broker, topics, tmp_path) -> AsyncIterator[Process]:
    """A worker with every kind of secret, at its most talkative, that has released an alert."""
    write_secrets(tmp_path, {"sealing.key": MASTER.hex(), "shared.key": SHARED.hex()})
    async with Scene(
        broker.bootstrap_servers, topics.name("shop"), partitions=1, datasets="a"
    ).on_stage() as scene:
        process = Process(scene, tmp_path)
        try:
            await process.until(lambda: process.said("event=shard_replayed"))
            await scene.send("a", LOW, HIGH, LOW)
            await process.until(lambda: process.status()["shards"][0]["offsets"].get(scene.queries) == 3)
            yield process
        finally:
            await process.end()


async def test_a_worker_shows_nothing_of_the_trusted_zone_and_keeps_its_keys_to_itself(
    process: Process,
) -> None:
    """One test, for the process takes seconds to start."""
    await asyncio.to_thread(_pages_are_read_only, process)
    _listens_on_loopback_only(process)
    assert set(_fields(process.status())) == STATUS
    said = await _all_that_is_said(process)
    for name, secret in [*_keys(), *await _state_secrets(process)]:
        for form in _forms(secret):
            for where, text in said.items():
                assert form not in text, f"{name} shows in {where}"


def _pages_are_read_only(process: Process) -> None:
    for path in PAGES:
        assert process.request(path)[0] == 200
        assert process.request(path, "HEAD") == (200, b"")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "ANYTHING"):
            assert process.request(path, method)[0] in {400, 405, 501}, (path, method)
    for path in (
        "/router/",
        "/table/",
        "/performance/",
        "/graph/",
        "/assignment/",
        "/stats/",
        "/api/v1/",
        "/api/",
    ):
        assert process.request(path)[0] == 404, path
    assert b"<title>stream_svt status</title>" in process.request("/")[1]  # and not the host's own page
    assert process.request(EVENTS, "HEAD") == (200, b"")
    assert process.request(EVENTS, "POST")[0] == 405


def _listens_on_loopback_only(process: Process) -> None:
    """Every listening socket of the process is on 127.0.0.1 or ::1, whatever its environment says."""
    fds = Path(f"/proc/{process.process.pid}/fd").iterdir()
    inodes = {match[1] for fd in fds if (match := re.fullmatch(r"socket:\[(\d+)\]", _target(fd)))}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process.process.pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                listening.append(parts[1])
    assert listening == [f"0100007F:{process.port:04X}"]


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except FileNotFoundError:
        return ""  # closed meanwhile


def _fields(node: object, path: str = "") -> Iterator[str]:
    """Yield the names of all fields, joined; names that the configuration chose are left out."""
    if isinstance(node, list):
        for value in node:
            yield from _fields(value, path)
    if isinstance(node, dict) and not path.endswith((".offsets", ".lag", ".states")):
        for key, value in node.items():
            inner = f"{path}.{key}".lstrip(".")
            yield inner
            yield from _fields(value, inner)


async def _all_that_is_said(process: Process) -> dict[str, bytes]:
    said = {path: process.request(path)[1] for path in PAGES}
    said[EVENTS] = await asyncio.to_thread(_event_stream, process)
    said["the log"] = (process.directory / "log").read_bytes()
    for name in ("environ", "cmdline"):
        said[f"/proc/PID/{name}"] = process.of_kernel(name)
    for name in ("alerts", "rejects"):
        said[name] = b"\n".join(record.value for record in await process.scene.read(name))
    config = str(process.directory / "shop.yaml")
    for more in (["check", "-c", config], ["status", "-c", config], ["audit", "-c", config]):
        done = await asyncio.to_thread(
            subprocess.run,
            [*COMMAND, *more],
            capture_output=True,
            check=False,
            timeout=60,
            cwd=process.directory,
        )
        said[f"stream-svt {more[0]}"] = done.stdout + done.stderr
    assert all(said[name] for name in said if name != "rejects"), said
    return said


def _event_stream(process: Process) -> bytes:
    """Read what a viewer of the status page is told, up to the end of what was released."""
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=20)
    try:
        connection.request("GET", EVENTS)
        answer, said = connection.getresponse(), b""
        while b"event: present" not in said:
            said += answer.readline()
        assert b"event: released" in said
        return said
    finally:
        connection.close()


def _keys() -> list[tuple[str, bytes]]:
    return [("the sealing key", MASTER), ("the shared key", SHARED)]


async def _state_secrets(process: Process) -> list[tuple[str, bytes]]:
    """Open the sealed state as only the service can, and return the secrets in it."""
    scene = process.scene
    config = scene.config()
    topology = await look(config, cluster_of(config))
    sealing = Sealing(
        Place(topology.cluster_id, scene.application, f"{scene.application}.state", 0), [MASTER], bytes
    )
    found: list[tuple[str, bytes]] = []
    for record in await scene.read("state"):
        if record.value is None:
            continue
        if record.key == META:
            meta = msgspec.msgpack.decode(sealing.open(record.key, record.value).content)
            found += [(name, meta[name]) for name in ("noise_key", "digest_key")]
        elif record.key.startswith(b"d/"):
            *_, slots, _ = msgspec.msgpack.decode(sealing.open(record.key, record.value).content)
            found += [("a run's noise and salt", slot[5]) for slot in slots.values() if any(slot[5])]
    secrets = dict.fromkeys((name, secret) for name, secret in found if len(secret) >= 16)
    assert {name for name, _ in secrets} == {"noise_key", "digest_key", "a run's noise and salt"}
    return list(secrets)


def _forms(secret: bytes) -> list[bytes]:
    """Return how a secret might be written down."""
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
        repr(secret)[2:-1].encode(),
        repr(list(secret))[1:-1].encode(),
    ]
