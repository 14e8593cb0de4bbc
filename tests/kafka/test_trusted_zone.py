"""Marked values go through every path of a worker, crash included; afterwards nothing of the trusted zone shows.

The worker's process is looked at from outside: what it shows, where it listens, and where marks and keys are not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

import msgspec
import pytest

from stream_svt.kafka.clients import cluster_id_of
from stream_svt.monitor.state.accounts import DatasetAccount
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.state_records import META
from stream_svt.web import OVERVIEW, PAGES
from tests.support.keys import write_secrets
from tests.support.process import COMMAND, Service, applied
from tests.support.worker import Scene

pytestmark = pytest.mark.kafka
SCENE = {"partitions": 1, "datasets": "a, b", "limit": 7}
MASTER, SHARED = bytes(range(32)), bytes(range(1, 33))
THRESHOLD = 50_000_000_000_000
SENSITIVITY = 1_000_000
"""Noise is some multiples of it, so that the last six digits of a top say nothing by themselves."""
SECTIONS = """
sealing: {keys: [[cat, sealing.key]]}
control: {keys: [shared.key]}
"""
VARIANTS = (
    "name: adaptive\n    mechanism: adaptive",
    "name: patient\n    append: {retry: {attempts: 3, lifetime: 100, capacity: 50, every: 5}}",
)
# What a careless environment may hold: none of it may open a page of the host's own, or change a section.
ENVIRONMENT = {
    "DEBUG": "1",
    "APP_DEBUG": "1",
    **{f"APP_WEB_{name}_ENABLED": "1" for name in ("STATS", "GRAPH", "METRICS", "ROUTER", "TABLES")},
    "NODE_HOSTNAME": "0.0.0.0",  # noqa: S104  it must not be listened on
    "WEB_BIND": "0.0.0.0",  # noqa: S104  likewise
}


class Marks:
    """Values of fourteen digits that nothing else can be, as many as are asked for."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self.given: list[str] = []

    def low(self) -> int:
        return self._give(1, 2)

    def high(self) -> int:
        return self._give(8, 9)

    def _give(self, first: int, last: int) -> int:
        mark = self._chance.randint(first * 10**13, last * 10**13)
        self.given.append(str(mark))
        return mark

    def hidden(self) -> dict[str, list[bytes]]:
        """Return how each value, or a text with it, might be written down."""
        return {mark: _forms_of_mark(mark) for mark in self.given}


def _forms_of_mark(mark: str) -> list[bytes]:
    number = int(mark)
    return [
        mark.encode(),
        f"{number:,}".encode(),
        f"{mark[0]}.{mark[1:]}".rstrip("0").encode(),
        f"{number:x}".encode(),
        f"{number:X}".encode(),
        base64.b64encode(mark.encode())[:-4],
        number.to_bytes(8, "big").lstrip(b"\0"),
        number.to_bytes(8, "little").rstrip(b"\0"),
    ]


def forms_of_secret(secret: bytes) -> list[bytes]:
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


def found(hidden: dict[str, list[bytes]], said: dict[str, bytes]) -> list[str]:
    """Return where something hidden is, in whatever form."""
    return [
        f"{what} is in {where}"
        for what, forms in hidden.items()
        for where, text in said.items()
        if any(form in text for form in forms)
    ]


def hostile(marks: Marks) -> list[tuple[bytes | None, bytes, list[tuple[str, bytes]]]]:
    """Return records that are refused, each with a mark where a careless message would quote it."""

    def text(**fields: Any) -> bytes:
        return json.dumps(fields).encode()

    arrow = [("content-type", b"application/vnd.apache.arrow.stream")]
    key = b"a"
    return [
        (key, b'{"id": "q", "value": %d' % marks.low(), []),
        (key, b"%d" % marks.low(), []),
        (key, b"[%d]" % marks.low(), []),
        (key, b"\xff%d" % marks.low(), []),
        (key, text(value=marks.low()), []),
        (key, text(id=marks.low(), value=marks.low()), []),
        (key, text(id="q", value=marks.low(), series=[marks.low()]), []),
        (key, text(id="q", value=marks.low(), set=[marks.low()]), []),
        (key, text(id="q", value=marks.low(), threshold=f"{marks.low()}?"), []),
        (key, text(id="q", value=marks.low(), monitor=f"m{marks.low()}"), []),
        (key, text(id="q", value=marks.low(), time=f"{marks.low()}?"), []),
        (key, b"ARROW1%d" % marks.low(), arrow),
        (key, text(id="q", value=marks.low()), [("content-type", b"text/%d" % marks.low())]),
        (b"unknown-%d" % marks.low(), text(id="q", value=marks.low()), []),
        (None, text(id="q", value=marks.low()), []),
        (key, text(id="q", value=marks.low()) + b" " * 1_000_000, []),
    ]


def odd(marks: Marks) -> list[bytes]:
    """Return queries that are tested, whatever their value looks like: it is never a reason to refuse."""
    values = [
        b"%d.%d" % (marks.low(), marks.low()),
        b'"%d"' % marks.low(),
        b"-%d" % marks.low(),
        b"%de-3" % marks.low(),
        b"1%d%d" % (marks.low(), marks.low()),
        b'{"hidden": %d}' % marks.low(),
        b"[%d, null]" % marks.low(),
        b'"%d and words"' % marks.low(),
    ]
    return [b'{"id": "o%d", "value": %s}' % query for query in enumerate(values)]


class Run:
    """One application with a worker's process, and all that it said."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        write_secrets(scene.directory, {"sealing.key": MASTER.hex(), "shared.key": SHARED.hex()})
        values = {"threshold": THRESHOLD, "most": 10**14 - 1, "sensitivity": SENSITIVITY}
        monitor = scene.text(**values).partition("monitors:\n")[2]
        others = "".join(monitor.replace("name: hot", variant) for variant in VARIANTS)
        self.config = scene.write(**values, more=others + SECTIONS)
        self.config.write_text(self.config.read_text().replace("cutoff: 3", "cutoff: 2"))
        self.sent = 0
        self.key = ("--signing-key", str(scene.directory / "shared.key"))

    def start(self) -> Service:
        """Start a worker with every kind of secret, at its most talkative."""
        options = ("--log-level", "debug", *self.key)
        where = self.scene.directory
        return self.scene.serve(*options, file=self.config, env=ENVIRONMENT, cwd=where, applies=False)

    async def query(self, dataset: str, *values: int) -> None:
        for value in values:
            number = self.sent + 1
            record = json.dumps({"id": f"q{number}", "value": value, "series": f"s{number % 7}"})
            await self.raw(dataset.encode(), record.encode())

    async def raw(self, key: bytes | None, value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        self.sent += 1
        queries = self.scene.queries
        await self.scene.producer.send_and_wait(queries, value, key=key, partition=0, headers=headers)

    async def read_by(self, worker: Service) -> None:
        """Wait until everything sent is read and committed."""
        await worker.until(lambda: worker.offsets(self.scene.queries) == self.sent)

    async def said(self, worker: Service) -> dict[str, bytes]:
        """Return all that is released: pages, log, topics with what was aborted, the command line, the process."""
        said = {path: await asyncio.to_thread(_page, worker, path) for path in (*PAGES, OVERVIEW)}
        assert b'"events":[{' in said[OVERVIEW]
        said["the log"] = worker.output.encode()
        for name in ("environ", "cmdline"):
            said[f"/proc/PID/{name}"] = _of_kernel(worker, name).read_bytes()
        for topic in ("alerts", "rejects"):
            records = await self.scene.read(topic, "read_uncommitted")
            said[topic] = b"\n".join(
                part
                for record in records
                for part in (record.key, record.value, *(value for _, value in record.headers))
                if part is not None
            )
        for command in (["check"], ["status"], ["audit"], ["audit", "--state"]):
            done = await asyncio.to_thread(
                subprocess.run,
                [*COMMAND, command[0], "-c", str(self.config), *command[1:]],
                capture_output=True,
                check=False,
                timeout=60,
                cwd=self.config.parent,
            )
            said[" ".join(command)] = done.stdout + done.stderr
        assert all(said.values()), {where: len(text) for where, text in said.items()}
        return said

    async def secrets(self) -> dict[str, list[bytes]]:
        """Return the keys, and the secrets of the sealed state, opened as only the service can."""
        scene = self.scene
        cluster = await cluster_id_of(scene.config().cluster())
        context = RecordContext(cluster, scene.application, f"{scene.application}.state", 0)
        sealing = Sealing(context, [MASTER], bytes)
        found: list[tuple[str, bytes]] = []
        for record in await scene.read("state"):
            if record.value is None:
                continue
            if record.key == META:
                meta = msgspec.msgpack.decode(sealing.open(record.key, record.value).content)
                found += [(name, meta[name]) for name in ("noise_key", "digest_key")]
            elif record.key.startswith(b"d/"):
                content = sealing.open(record.key, record.value).content
                runs = msgspec.msgpack.decode(content, type=DatasetAccount).run_states.values()
                found += [("a run's noise and salt", run.secrets) for run in runs if any(run.secrets)]
        secrets = {(name, secret) for name, secret in found if len(secret) >= 16}
        assert {name for name, _ in secrets} == {"noise_key", "digest_key", "a run's noise and salt"}
        secrets |= {("the sealing key", MASTER), ("the shared key", SHARED)}
        return {f"{name} {secret.hex()}": forms_of_secret(secret) for name, secret in secrets}


async def drive(run: Run, marks: Marks) -> dict[str, bytes]:
    """Send marked values through every path, kill the worker in the middle, and return all it said."""
    await asyncio.to_thread(applied, run.config, "--wait", "0", *run.key)
    worker = run.start()
    await worker.ready()
    for dataset in ("a", "b"):
        await run.query(dataset, *(marks.low() for _ in range(30)), marks.high())
    await run.query("a", *(marks.high() for _ in range(4)))  # both branches, halts, resamples
    for record in hostile(marks):
        await run.raw(*record)
    await run.read_by(worker)
    await run.query("b", *(marks.low() for _ in range(20)), marks.high())
    await worker.end(SIGKILL)
    for value in odd(marks):
        await run.raw(b"b", value)
    await run.query("b", *(marks.low() for _ in range(20)))
    worker = run.start()
    await worker.ready()
    await run.read_by(worker)
    run.config.write_text(run.config.read_text().replace("threshold: 5000", "threshold: 5001"))
    await asyncio.to_thread(applied, run.config, *run.key)  # the version is read in a process of its own
    await worker.until(lambda: worker.said("event=configuration_read version=2"))
    await run.query("a", *(marks.high() for _ in range(30)))  # until the budget is spent
    await run.read_by(worker)
    await worker.until(lambda: "exhausted" in (worker.fetch("/api/v1/status") or ""))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(_no_page_of_the_host_is_open, worker)
    _listens_on_loopback_only(worker)
    return await run.said(worker)


def _page(worker: Service, path: str) -> bytes:
    return (worker.fetch(path) or "").encode()


def _no_page_of_the_host_is_open(worker: Service) -> None:
    for name in ("router", "table", "performance", "graph", "assignment", "stats", "api/v1", "api"):
        assert _page(worker, f"/{name}/") == b"404: Not Found", name
    assert b"<title>stream_svt status</title>" in _page(worker, "/")  # and not the host's own page


def _listens_on_loopback_only(worker: Service) -> None:
    """Every listening socket of the process is on 127.0.0.1 or ::1, whatever its environment says."""
    files = set()
    for fd in _of_kernel(worker, "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files.add(str(fd.readlink()))
    tables = [_of_kernel(worker, f"net/{table}").read_text() for table in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table.splitlines()[1:]]
    listening = [one[1] for one in sockets if one[3] == "0A" and f"socket:[{one[9]}]" in files]
    assert listening == [f"0100007F:{int(worker.url.rpartition(':')[2]):04X}"]


def _of_kernel(worker: Service, name: str) -> Path:
    return Path(f"/proc/{worker.process.pid}/{name}")


async def test_no_mark_and_no_secret_is_in_anything_released(scene: Scene) -> None:
    """That other values look the same in all of it is proved on neighbours: `tests/soak/taint.py`."""
    marks, run = Marks("marked-one"), Run(scene)
    said = await drive(run, marks)
    assert found(marks.hidden() | await run.secrets(), said) == []
    assert {alert.monitor for alert in await scene.alerts()} == {"hot", "adaptive", "patient"}
    kinds = {event.type for event in await scene.events()}
    assert any("exhausted" in kind for kind in kinds)
    assert any("halted" in kind for kind in kinds)
    assert len(set(re.findall(rb'"reason":"([a-z-]+)"', said["rejects"]))) >= 12, said["rejects"]


def test_what_is_hidden_is_found_in_whatever_form_it_was_let_out() -> None:
    marks = Marks("any")
    mark = marks.low()
    texts = (f"value {mark} is odd", f"{mark:,}", f"{mark:.13e}", f"0x{mark:x}", f"{float(mark)!r}")
    packed = (mark.to_bytes(8, "big"), mark.to_bytes(6, "little"), base64.b64encode(str(mark).encode()))
    for leaked in (*map(str.encode, texts), *packed):
        assert found(marks.hidden(), {"the log": leaked}), leaked
    assert not found(marks.hidden(), {"the log": str(mark + 1).encode()})
    for leaked in (b"key=" + MASTER.hex().encode(), repr(MASTER).encode(), base64.b64encode(MASTER), MASTER):
        assert found({"key": forms_of_secret(MASTER)}, {"the log": leaked}), leaked
