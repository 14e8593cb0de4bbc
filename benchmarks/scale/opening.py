"""What opening every run at once takes: 20,000 datasets x 40 monitors on one partition, one query each.

One embedded broker and one worker, started as a user starts it, its configuration in a file, its state sealed and
empty. 20,000 queries wait, one a dataset, and all 40 monitors read them: 800,000 runs are opened, charged and
announced. ``open_done`` is 1 where all of them are committed within 180 s of the worker's start; the process may have
no more memory than ``open_peak_rss_mib`` says: the most it had resident until then (VmHWM).
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.application import Application, monitor, wait
from benchmarks.command import say
from stream_svt.service.embedded import EmbeddedKafka

DATASETS, MONITORS = 20_000, 40
SECONDS = 180.0


def measure() -> dict[str, float]:
    """Return `open_done` and `open_peak_rss_mib`."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        application = Application(
            servers=kafka.bootstrap_servers,
            directory=Path(directory),
            names=[f"dataset-{number:06}" for number in range(DATASETS)],
            partitions=1,
            monitors=[monitor(f"monitor-{number:02}", threshold=5000 + number) for number in range(MONITORS)],
        )
        application.fill()
        began = time.monotonic()
        with application.worker() as worker:
            read = wait(lambda: worker.ended or application.read(worker) == DATASETS, SECONDS)
            done = read and not worker.ended
            took = time.monotonic() - began
            peak = 0.0 if worker.ended else worker.peak_mib()
            [shard] = [{}] if worker.ended else worker.shards()
            say(
                f"{'done' if done else 'not done'} after {took:.1f} s, {peak:.0f} MiB at most; {shard.get('offsets')}"
            )
            if worker.ended:
                say(worker.log.read_text()[-2000:])
    return {"open_done": float(done), "open_peak_rss_mib": peak}
