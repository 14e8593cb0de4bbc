"""Where the commands of one page are played: a checkout, a broker, workers, and queries for them.

A page says ``127.0.0.1:9092`` and ``127.0.0.1:6066`` as its reader would; here those are the test's broker and a free
port. Absolute paths of a server (``/etc/..``) are directories of the stage. Nothing else of a text is changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.documentation.pages import ROOT
from tests.documentation.receiver import Receiver
from tests.support.process import free_port
from tests.support.records import send_queries
from tests.support.topics import administrator

BROKERS = ("127.0.0.1:9092", "localhost:9092")
PAGES_OF_A_WORKER = ("127.0.0.1:6066", "localhost:6066")
_SERVER_PATH = re.compile(r"(?<![\w.~/:$}-])/(?=(?:etc|run|var|srv|opt)/)")
_HOME_PATH = re.compile(r"(?<![\w/])~/")
_OF_TESTS = ("PYTEST_", "COV_", "COVERAGE_", "STREAM_SVT_")
_STUBS = {
    # A secret store that gives out a key.
    "vault": "#!/bin/sh\nprintf '%064d\\n' 7\n",
    "stream-svt": f'#!/bin/sh\nexec {sys.executable} -c "from stream_svt.cli import main; main()" "$@"\n',
    "pip": f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n',
    **dict.fromkeys(("python", "python3"), f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
}


class NoRule(AssertionError):
    """Nothing is known that could validate a document."""


class StepFailed(AssertionError):
    """A command of a page did not do what its reader expects."""


@dataclass
class Running:
    """A program that goes on until it is ended; ``said`` returns all it has printed."""

    text: str
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """Return what it has printed until now."""
        return self.log.read_text(errors="replace")

    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def end(self) -> int:
        """Ask it to stop and return its exit code."""
        if self.alive():
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise StepFailed(
                f"`{self.text}` did not end when it was asked to:\n{self.said()[-1500:]}"
            ) from None


@dataclass
class Stage:
    """One page's world.

    Attributes:
        directory: Holds everything; ``checkout`` in it is the working directory, which looks like the
            repository.
        servers: The broker, "" where the page needs none.
        lines: What its commands have printed, in order, each with whether its numbers are those of one run
            only.
        said: The last command of ours in a sentence.
        configuration: The file that the page last showed, or the one made for it.
        additions: Sections that the page has shown without a whole configuration.
        helps, checked: What programs say of their options, and configurations whose topics exist: asked and
            made once.
        need: Skips or fails where a program is not on this machine.
    """

    directory: Path
    servers: str = ""
    lines: list[tuple[str, bool]] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    workers: dict[Path, Running] = field(default_factory=dict)
    ports: dict[Path, int] = field(default_factory=dict)
    said: str = ""
    configuration: Path | None = None
    additions: dict[str, Any] = field(default_factory=dict)
    need: Callable[[str], object] = str
    helps: dict[str, str] = field(default_factory=dict)
    checked: set[Path] = field(default_factory=set)
    _topics: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.checkout = self.directory / "checkout"
        self.here = self.checkout
        self.port = free_port() if self.servers else 6066
        self._state = self.directory / "exported"
        self._place = self.directory / "place"
        self._bin = self.directory / "bin"
        for path in (self.checkout, self._bin, self.directory / "home"):
            path.mkdir(parents=True)
        _look_like_the_repository(self.checkout)
        for name, text in _STUBS.items():
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_OF_TESTS)},
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STREAM_SVT_WEB_PORT": str(self.port),
            "GIT_CONFIG_GLOBAL": str(self.directory / "gitconfig"),
            "COLUMNS": "200",
        }
        self.receiver = Receiver() if self.servers else None
        if self.servers:
            self.environment["STREAM_SVT_KAFKA_BOOTSTRAP_SERVERS"] = self.servers
            self._topics = set(asyncio.run(_topics(self.servers)))

    # Text

    def own(self, text: str) -> str:
        """Return a text of a page with this stage's addresses and directories."""
        for broker in BROKERS if self.servers else ():
            text = text.replace(broker, self.servers)
        for address in PAGES_OF_A_WORKER:
            text = text.replace(address, f"127.0.0.1:{self.port}")
        text = _SERVER_PATH.sub(f"{self.directory}/server/", text)
        text = _HOME_PATH.sub(f"{self.directory}/home/", text)
        return self.receiver.own(text) if self.receiver else text

    def write(self, name: str, text: str) -> Path:
        """Write a file that a page shows."""
        path = self.here / self.own(name)
        if path.is_symlink():
            path.unlink()  # the page's own version of a file of the repository
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.own(text))
        if path.suffix in {".yaml", ".yml"} and "application:" in text:
            self.configuration = path
        return path

    # Commands

    def bash(self, text: str, *, seconds: float = 120, noisy: bool = False) -> str:
        """Run a line as the page has it, in this stage's directory and with what was exported before.

        Raises:
            StepFailed: Another exit code than 0, or no end in time.
        """
        text = self.own(text)
        self._make_directories(text)
        script = (
            f'[ -e "{self._state}" ] && . "{self._state}"\n{text}\ncode=$?\n'
            f'export -p > "{self._state}"; pwd > "{self._place}"; exit $code\n'
        )
        try:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", script],
                cwd=self.here,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            raise StepFailed(f"`{text}` did not end within {seconds:g} s:\n{said[-1500:]}") from None
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            raise StepFailed(f"`{text}` ended with exit code {done.returncode}:\n{output[-1500:]}")
        self.here = Path(self._place.read_text().strip())
        self.lines += [(line, noisy) for line in output.splitlines()]
        return output

    @property
    def printed(self) -> str:
        """All that the page's commands have printed."""
        return "\n".join(line for line, _ in self.lines)

    def start(self, text: str, **environment: str) -> Running:
        """Start a line that goes on until the page ends."""
        text = self.own(text).rstrip("& ")
        log = self.directory / f"log-{uuid.uuid4().hex[:8]}"
        script = f'[ -e "{self._state}" ] && . "{self._state}"\n{_exported(environment)}exec {text}'
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.here,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Running(text, process, log)
        self.running.append(running)
        return running

    def until(self, condition: Callable[[], bool], what: str, running: Running, seconds: float = 120) -> None:
        """Wait for something that a running program brings about."""
        end = time.monotonic() + seconds
        while not condition():
            if not running.alive() or time.monotonic() > end:
                raise StepFailed(f"`{running.text}`: {what} did not happen:\n{running.said()[-1500:]}")
            time.sleep(0.1)

    # The application

    def worker(self, configuration: Path | None = None) -> Running:
        """Return a worker that runs with a configuration, a new one where none does, and wait until it is ready."""
        path = (configuration or self.application()).resolve()
        worker = self.workers.get(path)
        if worker is None or not worker.alive():
            if path not in self.checked:
                self.bash(f"stream-svt check -c '{path}' --create-topics")
                self.checked.add(path)
            port = self.port if not any(one.alive() for one in self.workers.values()) else free_port()
            key = path.with_name("alice.pem")
            signing = {"STREAM_SVT_SIGNING_KEY": str(key)} if "public_key_files" in path.read_text() else {}
            worker = self.start(
                f"stream-svt run --apply -c '{path}'", STREAM_SVT_WEB_PORT=str(port), **signing
            )
            self.workers[path], self.ports[path] = worker, port
            self.until(lambda: _answers(f"http://127.0.0.1:{port}/health/ready"), "being ready", worker)
        return worker

    def stop_workers(self) -> None:
        """Stop all workers, as an operator does; each must end in order."""
        for worker in self.workers.values():
            self.running.remove(worker)
            code = worker.end()
            if code:
                raise StepFailed(f"`{worker.text}` ended with exit code {code}:\n{worker.said()[-1500:]}")
        self.workers.clear()
        self.ports.clear()

    def application(self) -> Path:
        """Return the page's configuration; where it shows none, that of the README with its own additions."""
        if self.configuration is None:
            raise StepFailed("a command wants a configuration, and the page shows none")
        return self.configuration

    def feed(self, query: Mapping[str, Any] | None = None, configuration: Path | None = None) -> None:
        """Send one query far above the threshold of the first monitor, or the one given."""
        document = yaml.safe_load((configuration or self.application()).read_text())
        monitor, dataset = document["monitors"][0], document["datasets"][0]
        name = dataset.get("name") or dataset["names"][0]
        high = monitor.get("bounds", [0, 1_000_000])[1]
        unique = uuid.uuid4().hex[:8]
        record = query or {"id": unique, "value": high, "series": f"item-{unique}"}
        partitions = document.get("topics", {}).get("partitions", 4)
        asyncio.run(send_queries(self.servers, monitor["topic"], (name, record), partitions=partitions))

    def alerted(
        self, running: Running, *, ends: bool = False, fed: bool = True, seconds: float = 120
    ) -> None:
        """Send queries until a program that follows alerts has printed one; one that ends must do so in order."""
        end = time.monotonic() + seconds
        while running.alive() if ends else not running.said().strip():
            if time.monotonic() > end or not (ends or running.alive()):
                raise StepFailed(f"`{running.text}` printed no alert:\n{running.said()[-1500:]}")
            if fed:
                self.feed()
            time.sleep(0.5)
        if ends and running.process.wait():
            raise StepFailed(
                f"`{running.text}` ended with {running.process.returncode}:\n{running.said()[-1500:]}"
            )
        self.lines += [(line, True) for line in running.said().splitlines()]

    def fetch(self, url: str) -> str:
        """Return a page of a worker, given by the address that a page of the documentation has."""
        with urllib.request.urlopen(self.own(url), timeout=10) as answer:  # noqa: S310 - ours, on this machine
            text: str = answer.read().decode()
        self.lines += [(line, True) for line in text.splitlines()]
        return text

    def close(self) -> None:
        """End what was started, in order, and delete the topics that came into being."""
        try:
            self.stop_workers()
        finally:
            for running in self.running:
                running.end()
            if self.receiver:
                self.receiver.close()
            if self.servers:
                asyncio.run(_delete(self.servers, self._topics))

    def _make_directories(self, text: str) -> None:
        """Make the server's directories that a line names: on a reader's machine they exist."""
        for path in re.findall(rf"{re.escape(str(self.directory))}/(?:server|home)/[\w./-]+", text):
            Path(path).parent.mkdir(parents=True, exist_ok=True)


def _look_like_the_repository(place: Path) -> None:
    """Fill a directory with links to the repository's files, and with an environment that is set up already."""
    for path in ROOT.iterdir():
        if path.name == "deploy":  # pages write into it
            shutil.copytree(path, place / path.name, ignore=shutil.ignore_patterns("__pycache__", "secrets"))
        elif path.name not in {".git", ".venv"}:
            (place / path.name).symlink_to(path)
    environment = place / ".venv"
    (environment / "bin").mkdir(parents=True)
    for path in Path(sys.prefix, "bin").iterdir():
        (environment / "bin" / path.name).symlink_to(path)
    for name in ("lib", "lib64", "include", "pyvenv.cfg"):
        if (source := Path(sys.prefix, name)).exists():
            (environment / name).symlink_to(source)
    # What deploy/venv.sh looks for before it installs anything.
    project = (ROOT / "pyproject.toml").read_bytes()
    checksum = subprocess.run(["cksum"], input=project, capture_output=True, check=True).stdout
    for extra in ("embedded", "benchmarks", "dev", "plot"):
        (environment / f".stream-svt-{extra}").write_bytes(checksum)


def _exported(environment: Mapping[str, str]) -> str:
    return "".join(f"export {name}={value}\n" for name, value in environment.items())


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - ours, on this machine
            return True
    except OSError:
        return False


async def _topics(servers: str) -> list[str]:
    async with administrator(servers) as admin:
        return list(await admin.list_topics())


async def _delete(servers: str, kept: set[str]) -> None:
    async with administrator(servers) as admin:
        if new := [
            name for name in await admin.list_topics() if name not in kept and not name.startswith("__")
        ]:
            await admin.delete_topics(new)
