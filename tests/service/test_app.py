"""What the process does around a worker: the signal to read its file again, and the last word where it gives up."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_svt.cli import app as command_line
from stream_svt.errors import BrokerError, ConfigError, Problem
from stream_svt.service import app as module
from stream_svt.service import group as groups
from stream_svt.service.app import Monitoring, _in_file
from stream_svt.service.config import parse_config
from stream_svt.service.kafka import DISCARD_DEADLINE
from stream_svt.service.shard import CUT_SHORT
from tests.service.test_metrics import SPEC
from tests.support.process import COMMAND, free_port

LIMIT = Problem(0, "datasets.a.limit", "is journaled as epsilon 3")


def test_what_is_wrong_with_the_file_is_said_with_its_name():
    nameless = _in_file(ConfigError([LIMIT]), "shop.yaml")
    assert str(nameless) == "shop.yaml: 1 problem\n  datasets.a.limit: is journaled as epsilon 3"
    assert nameless.exit_code == 2


def test_an_error_that_names_its_place_is_left_as_it_is():
    for error in (ConfigError([LIMIT], "other workers"), BrokerError("not reachable")):
        assert _in_file(error, "shop.yaml") is error


class Worker:
    """Notes what it is reloaded with."""

    def __init__(self) -> None:
        self.reloads: list[str] = []

    async def reload(self, config: str, spec_hash: str) -> None:
        self.reloads.append(config)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (ConfigError([LIMIT], "shop.yaml"), "is journaled as epsilon 3"),
        (FileNotFoundError(2, "No such file", "shop.yaml"), "No such file"),
        (ValueError("value 4711"), "unexpected ValueError"),
    ],
    ids=repr,
)
async def test_a_reload_that_fails_is_told_and_the_next_one_is_done(
    caplog, refusal: Exception, said: str
) -> None:
    outcomes: list[str | Exception] = [refusal, "second"]

    async def reread() -> SimpleNamespace:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return SimpleNamespace(config=outcome, spec_hash="hash")

    worker = Worker()
    monitoring = Monitoring(worker, reread, asyncio.get_running_loop())
    reloading = asyncio.create_task(monitoring._reload(reread))
    for _ in range(2):
        monitoring._again.set()
        await asyncio.sleep(0.01)
    reloading.cancel()
    assert worker.reloads == ["second"]
    assert "event=reload_refused" in caplog.text
    assert said in caplog.text
    assert "4711" not in caplog.text


@pytest.fixture
def deadly() -> Iterator[None]:
    """SIGHUP kills, as it does in a process that did not say otherwise."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("deadly")
def test_the_signal_to_reload_is_ignored_from_the_first_moment_of_a_run(monkeypatch) -> None:
    handlers: list[object] = []

    def note() -> None:
        handlers.append(signal.getsignal(signal.SIGHUP))
        raise ConfigError([LIMIT])

    monkeypatch.setattr(module, "quiet_libraries", note)
    with pytest.raises(ConfigError):
        module.run(parse_config(SPEC))
    assert handlers == [signal.SIG_IGN]


@pytest.mark.usefixtures("deadly")
def test_the_signal_to_reload_is_ignored_before_the_file_is_read(monkeypatch, tmp_path: Path) -> None:
    handlers: list[object] = []

    def note(path: Path) -> None:
        handlers.append(signal.getsignal(signal.SIGHUP))
        raise ConfigError([LIMIT])

    monkeypatch.setattr("stream_svt.cli.running.load", note)
    monkeypatch.setattr("stream_svt.cli.running.log_to_stderr", lambda level: None)
    file = tmp_path / "shop.yaml"
    file.write_text(SPEC)
    with pytest.raises(ConfigError):
        command_line.main(["run", "-c", str(file)], standalone_mode=False)
    assert handlers == [signal.SIG_IGN]


_WITHOUT_A_FILE = """
import sys
from stream_svt.service.app import run
from stream_svt.service.config import parse_config
print("begins", flush=True)
sys.exit(run(parse_config(sys.stdin.read())))
"""


@pytest.mark.loopback
@pytest.mark.parametrize("rereads", [True, False])
def test_the_signal_to_reload_ends_no_worker_whenever_it_comes(tmp_path: Path, rereads: bool) -> None:
    """While it starts, while it waits for brokers, and where there is no file that could be read again."""
    text = SPEC + "kafka: {bootstrap_servers: ['127.0.0.1:9']}\n"
    text += f"web: {{host: 127.0.0.1, port: {free_port()}}}\n"
    file, log = tmp_path / "shop.yaml", tmp_path / "log"
    file.write_text(text)
    command = [*COMMAND, "run", "-c", str(file)] if rereads else [sys.executable, "-c", _WITHOUT_A_FILE]
    with file.open() as source, log.open("wb") as output:
        process = subprocess.Popen(command, stdin=source, stdout=output, stderr=output)
    try:
        waiting = "event=worker_outside_group"
        end = time.monotonic() + 60
        ignores = False
        while time.monotonic() < end and process.poll() is None and waiting not in log.read_text():
            # The interpreter and the packages take a while, and nothing of ours runs before.
            ignores = ignores or _ignores(process.pid)
            if ignores:
                process.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        for _ in range(5):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.1)
        assert process.poll() is None, log.read_text()
        assert waiting in log.read_text()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def _ignores(pid: int) -> bool:
    """Tell whether a process ignores SIGHUP or has a handler for it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn:", "SigCgt:"))]
    return any(mask & (1 << (signal.SIGHUP - 1)) for mask in masks)


def test_the_parts_of_a_stop_fit_into_it() -> None:
    parts = (groups.STOP_PATIENCE, CUT_SHORT, groups.LAST_HINT, DISCARD_DEADLINE, groups.GOODBYE)
    assert sum(parts) < module.STOP_DEADLINE


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_that_takes_too_long_is_told_and_no_success(monkeypatch, caplog, in_time: bool) -> None:
    monkeypatch.setattr(module, "STOP_DEADLINE", 0.05)

    async def stop() -> None:
        await asyncio.sleep(0 if in_time else 60)

    monitoring = module.Monitoring(SimpleNamespace(stop=stop), None, asyncio.get_running_loop())
    await monitoring.on_stop()
    assert ("event=stop_timeout" in caplog.text) is not in_time
    assert monitoring.stopped_in_time is in_time
    for code in (None, 0):
        assert module._ended(code, in_time) == (module.OK if in_time else module.FAILED)
    assert module._ended(3, in_time) == 3
