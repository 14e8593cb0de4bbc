"""What opening every run at once takes: 20,000 datasets x 40 monitors on one partition, one query each.

One embedded broker and one worker, started as a user starts it, its configuration in a file, its state sealed and
empty. 20,000 queries come, one a dataset, and all 40 monitors read them: 800,000 runs are opened, charged and
announced. ``open_done`` is 1 where all of them are committed within 180 s; the process may have no more memory than
``open_peak_rss_mib`` says: the most it had resident until then (VmHWM). ``open_us`` is the time from the
first query on, for each run. Then the worker is started again. What it has resident at most,
less what it had without queries and what `costs.json` says that datasets and runs take, is ``restart_state_copies``
times the state.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from benchmarks.application import Application, monitor, wait, wait_until
from benchmarks.command import say
from benchmarks.costs import DATA
from stream_svt.kafka.embedded import EmbeddedKafka

DATASETS, MONITORS = 20_000, 40
SECONDS = 180.0


def measure() -> dict[str, float]:
    """Return `open_done`, `open_peak_rss_mib`, `open_us` and `restart_state_copies`."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        application = Application(
            servers=kafka.bootstrap_servers,
            directory=Path(directory),
            names=[f"dataset-{number:06}" for number in range(DATASETS)],
            partitions=1,
            monitors=[monitor(f"monitor-{number:02}", threshold=5000 + number) for number in range(MONITORS)],
        )
        with application.worker() as worker:
            wait_until(lambda: worker.has(1), "the shard is open")
            idle, empty = worker.cpu(), worker.peak_mib()
            began = time.monotonic()
            application.fill()
            read = wait(lambda: worker.ended or application.read(worker) == DATASETS, SECONDS)
            done = read and not worker.ended
            took = time.monotonic() - began
            peak, used = (0.0, 0.0) if worker.ended else (worker.peak_mib(), worker.cpu() - idle)
            say(
                f"{'done' if done else 'not done'} after {took:.1f} s, {used:.1f} s at work, {peak:.0f} MiB at most"
            )
            if worker.ended:
                say(worker.log.read_text()[-2000:])
        with application.worker() as worker:
            wait_until(lambda: worker.has(1) and application.read(worker) == DATASETS, "the state is back")
            restarted = worker.peak_mib()
    each = json.loads(DATA.read_text(encoding="utf-8"))["figures"]
    memory, state = (
        DATASETS * (each[f"{kind}_dataset_bytes"] + MONITORS * each[f"{kind}_run_bytes"])
        for kind in ("memory", "state")
    )
    memory -= DATASETS * each["memory_name_bytes"]  # names are declared before any query
    say(
        f"{empty:.0f} MiB without queries, {restarted:.0f} MiB after a restart, {state / 2**20:.0f} MiB of state"
    )
    return {
        "open_done": float(done),
        "open_peak_rss_mib": peak,
        "open_us": 1e6 * took / (DATASETS * MONITORS),
        "restart_state_copies": (2**20 * (restarted - empty) - memory) / state,
    }
