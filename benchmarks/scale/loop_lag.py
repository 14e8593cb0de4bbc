"""How long a worker's event loop stands still, with 300,000 datasets on 4 shards.

One embedded broker, sealed state, one monitor, and an open run for each dataset. A heartbeat in the worker's process
notes how late each of its beats comes, while the worker starts, opens every run, is scraped and looked at, reads its
file again, is restarted, shares its shards with a second worker and gets them back, and ends.

`loop_lag_seconds` is the longest such delay, over all workers and phases; `loop_lag_busy_seconds` the same beside a
busy process on each core, and `loop_lag_group_losses` counts how often a worker lost its place in the group
meanwhile: a heartbeat that came too late for the brokers.

What holds the loop longer than `SHOWN` is printed with its stack, on standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.application import PARTITIONS, Application, Worker, wait_until
from benchmarks.command import say
from stream_svt.kafka.embedded import EmbeddedKafka

DATASETS = 300_000
BEAT = 0.01
SHOWN = 0.1
"""Seconds from which on a hold is printed with its stack."""
NOTED = 0.02
LOOKS = 3
_WORKER = "import sys; from benchmarks.scale.loop_lag import serve; sys.exit(serve(*sys.argv[1:]))"
LOST = ("not recognized", "generation id is not", "session expired", "poll expired", "event=fenced")
"""What a worker and its client log where the group went on without it; a rebalance that others cause is none."""


# In the worker's process


def serve(config: str, report: str) -> int:
    """Run a worker as a user starts it, with a heartbeat beside it that writes each late beat to a file."""
    import logging

    from stream_svt.application.config import load_config
    from stream_svt.hosting import faust_app

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    beats: list[asyncio.Task[None]] = []
    begin = faust_app.Monitoring.on_start

    async def on_start(self: faust_app.Monitoring) -> None:
        beats.append(asyncio.create_task(_beat(report)))
        await begin(self)

    faust_app.Monitoring.on_start = on_start  # type: ignore[method-assign]
    connection = load_config(Path(config), is_whole=False)
    return faust_app.run(connection)


async def _beat(report: str) -> None:
    watch = _Watch(threading.get_ident())
    watch.start()
    with open(report, "a", buffering=1) as output:  # noqa: ASYNC230, PTH123 - a line, now and then
        try:
            while True:
                await asyncio.sleep(BEAT)
                late = time.perf_counter() - watch.last - BEAT
                if late > NOTED:
                    output.write(f"{time.time():.3f} {late:.4f}\n")
                if late > SHOWN:
                    worked = time.process_time() - watch.worked
                    where = " | ".join(watch.seen) or "no other thread could look"
                    print(f"HOLD {late:.3f} s, {worked:.3f} s of them at work: {where}", file=sys.stderr)
                watch.seen = []
                watch.last, watch.worked = time.perf_counter(), time.process_time()
        finally:
            watch.ended.set()


class _Watch(threading.Thread):
    """Looks where the loop is when a beat is late, as soon as the interpreter lets another thread run."""

    def __init__(self, loop: int) -> None:
        super().__init__(name="loop watch", daemon=True)
        self.last, self.worked = time.perf_counter(), time.process_time()
        self.seen: list[str] = []
        self.ended = threading.Event()
        self._loop = loop

    def run(self) -> None:
        """Look until told to end."""
        while not self.ended.wait(SHOWN / 2):
            if time.perf_counter() - self.last > SHOWN and len(self.seen) < LOOKS:
                stack = traceback.extract_stack(sys._current_frames().get(self._loop))  # noqa: SLF001
                self.seen.append(
                    " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in stack[:-7:-1])
                )


# In the measuring process


@dataclass(slots=True)
class Lag:
    """Late beats of every worker: (Unix time, seconds); ``marks`` are when phases began."""

    marks: list[tuple[float, str]] = field(default_factory=list)
    reports: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def phase(self, name: str) -> None:
        """Begin a phase."""
        self.marks.append((time.time(), name))
        say(f"{name} ..")

    def worst(self) -> dict[str, float]:
        """Return the longest delay of each phase."""
        found = {name: 0.0 for _, name in self.marks}
        for report in self.reports:
            for line in report.read_text().splitlines():
                moment, late = map(float, line.split())
                begun = [name for at, name in self.marks if at <= moment - late] or [self.marks[0][1]]
                found[begun[-1]] = max(found[begun[-1]], late)
        return found

    def losses(self) -> int:
        """Return how often a worker lost its place in the group."""
        return sum(log.read_text(errors="replace").count(word) for log in self.logs for word in LOST)


@dataclass(kw_only=True)
class Stage(Application):
    """An application whose workers report late beats."""

    lag: Lag = field(default_factory=Lag)

    def apply(self, config: Path) -> None:
        """Apply a configuration."""
        command = "import sys; from stream_svt.cli import main; main(sys.argv[1:])"
        subprocess.run(
            [sys.executable, "-c", command, "apply", "-c", str(config), "--yes", "--wait", "0"], check=True
        )

    @contextlib.contextmanager
    def watched(self) -> Iterator[Worker]:
        """Run a worker whose late beats are noted."""
        report = self.directory / f"lag-{len(self.lag.reports)}"
        report.touch()
        self.lag.reports.append(report)
        with self.worker(_WORKER, str(report)) as worker:
            self.lag.logs.append(worker.log)
            if len(self.lag.logs) == 1:
                self.apply(worker.config)
            yield worker

    def add(self, worker: Worker) -> None:
        """Apply one more dataset."""
        with (self.directory / "datasets.txt").open("a") as names:
            names.write("\none-more\n")
        self.apply(worker.config)


def _watched(worker: Worker) -> None:
    """Scrape and look as dashboards and people do, those at the status page included."""
    for _ in range(3):
        worker.get("/metrics")
        worker.get("/api/v1/status")
        time.sleep(1.2)
    end = time.monotonic() + 8
    while time.monotonic() < end:
        worker.get("/api/v1/overview")
        time.sleep(0.2)


def play(stage: Stage) -> None:
    """Let workers live through everything that touches all datasets."""
    lag, count = stage.lag, len(stage.names)
    lag.phase("start")
    with stage.watched() as one:
        wait_until(lambda: one.has(PARTITIONS), "the worker has every shard")
        lag.phase("every run opens")
        stage.fill()
        wait_until(lambda: stage.read(one) == count, "every dataset has a ledger")
        lag.phase("pages")
        _watched(one)
        lag.phase("apply")
        stage.add(one)
        wait_until(lambda: "event=configuration_read version=2" in one.log.read_text(), "the version is read")
        wait_until(lambda: one.has(PARTITIONS) and stage.read(one) == count, "the shards are open again")
        lag.phase("end")
    lag.phase("restart")
    with stage.watched() as two:
        wait_until(lambda: two.has(PARTITIONS) and stage.read(two) == count, "every ledger is back")
        lag.phase("second worker")
        with stage.watched() as three:
            for worker in (two, three):
                wait_until(partial(worker.has, PARTITIONS // 2), "the shards are shared")
            lag.phase("second worker leaves")
        wait_until(lambda: two.has(PARTITIONS), "the first one has every shard again")
        lag.phase("last end")


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Keep every core busy with a process of its own."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


def _measured(servers: str, *, busy: bool) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as directory, _busy() if busy else contextlib.nullcontext():
        names = [f"d{number}" for number in range(DATASETS)]
        stage = Stage(servers=servers, directory=Path(directory), names=names)
        try:
            play(stage)
        finally:
            for log in stage.lag.logs:
                lines = log.read_text(errors="replace").splitlines()
                for line in lines:
                    if line.startswith("HOLD") or any(word in line for word in LOST):
                        say(line)
        worst = stage.lag.worst()
        for phase, seconds in worst.items():
            say(f"{'busy, ' if busy else ''}{phase}: {seconds:.3f} s")
        return max(worst.values()), stage.lag.losses()


def measure() -> dict[str, float]:
    """Return `loop_lag_seconds`, `loop_lag_busy_seconds` and `loop_lag_group_losses`."""
    with EmbeddedKafka() as kafka:
        quiet, _ = _measured(kafka.bootstrap_servers, busy=False)
        busy, losses = _measured(kafka.bootstrap_servers, busy=True)
    return {
        "loop_lag_seconds": quiet,
        "loop_lag_busy_seconds": busy,
        "loop_lag_group_losses": float(losses),
    }
