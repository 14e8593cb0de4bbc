"""How long the sound shards of an application are open while one damaged record lies in the state of another.

One embedded broker, an application of four shards with a ledger in each, two workers as a user starts them, and
queries coming in all the time. One record of shard 0's state was changed while no worker ran. From the moment at which
both workers are ready, the status of both is sampled for 40 seconds, and in the middle one worker ends. A sound shard
is open while either worker says that it replays or runs it; what nobody answers is closed.

`isolation_open_share`
    Mean share of that time in which the three sound shards are open; the worker is stopped in order (SIGTERM), with the
    default session timeout and heartbeat.
`isolation_open_share_kill9`
    The same, the worker being killed (SIGKILL), with a session timeout of 2 s, for which Kafka waits by design.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.application import Application, Worker, wait
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.kafka.partitioning import Partitioning

SHARDS = 4
BROKEN = 0
SECONDS = 40.0
SAMPLE = 0.05
DATASETS = [f"d{number}" for number in range(64)]
OPEN = {"replaying", "running"}


def _states(worker: Worker) -> dict[int, str]:
    """Return the state of each shard owned; nothing while the page does not answer."""
    page = worker.ask("/api/v1/worker", seconds=2)
    return {shard["shard"]: shard["state"] for shard in json.loads(page)["shards"]} if page else {}


class Samples:
    """What one worker said last, asked again and again on a thread of its own."""

    def __init__(self, worker: Worker) -> None:
        self.states: dict[int, str] = {}
        self._worker, self._over = worker, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._over.wait(SAMPLE):
            self.states = _states(self._worker)

    def end(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join()


def _await(workers: Sequence[Worker], wanted: dict[int, set[str]]) -> None:
    """Wait until each shard is in one of these states, and each worker owns some."""
    said: list[dict[int, str]] = []

    def reached() -> bool:
        said[:] = map(_states, workers)
        union = {shard: state for states in said for shard, state in states.items()}
        return all(said) and all(union.get(shard) in states for shard, states in wanted.items())

    came = wait(reached)
    logs = "\n".join(worker.log.read_text()[-2000:] for worker in workers)
    assert came, f"never came: {wanted}, but {said}:\n{logs}"


async def _damage(servers: str, topic: str) -> None:
    """Change one byte of a dataset's newest record on the broken shard's partition."""
    place = TopicPartition(topic, BROKEN)
    name = next(name for name in DATASETS if Partitioning(SHARDS, "murmur2").of(name.encode()) == BROKEN)
    newest = b""
    reader = AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with reader:
        reader.assign([place])
        end = (await reader.end_offsets([place]))[place]
        await reader.seek_to_beginning(place)
        while await reader.position(place) < end:
            for record in (await reader.getmany(place, timeout_ms=200)).get(place, []):
                if record.key == f"d/{name}".encode() and record.value:
                    newest = record.value
    assert newest, "the shard has stored its dataset"
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        changed = newest[:-1] + bytes([newest[-1] ^ 1])
        await producer.send_and_wait(topic, changed, key=f"d/{name}".encode(), partition=BROKEN)


def open_share(servers: str, directory: Path, sent: signal.Signals, **kafka: str) -> float:
    """Return the mean share of the time in which the sound shards are open; ``kafka`` adds to that section."""
    application = Application(
        servers=servers,
        directory=directory,
        names=DATASETS,
        partitions=SHARDS,
        sections={"kafka": kafka},
    )
    sound = {shard: OPEN for shard in range(SHARDS) if shard != BROKEN}
    with application.worker() as first:
        application.fill()
        _await([first], {shard: {"running"} for shard in range(SHARDS)})
        time.sleep(3.0)  # until what was read is committed
    asyncio.run(_damage(servers, f"{application.name}.state"))
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(application.worker()) for _ in range(2)]
        _await(workers, {**sound, BROKEN: {"parked"}})
        samples = [Samples(worker) for worker in workers]
        time.sleep(1.0)
        try:
            share = _sampled(application, samples, workers[0].process, sent)
        finally:
            for one in samples:
                one.end()
        states = _states(workers[1])
        assert states.get(BROKEN) == "parked", f"the broken shard is parked: {states}"
        assert not workers[1].ended, "no worker ends by itself"
    return share


def _sampled(
    application: Application,
    samples: Sequence[Samples],
    victim: subprocess.Popen[bytes],
    sent: signal.Signals,
) -> float:
    opened = total = 0.0
    began = before = time.monotonic()
    filling = threading.Thread(target=lambda: None)
    filling.start()
    told = False
    while before - began < SECONDS:
        time.sleep(SAMPLE)
        now = time.monotonic()
        for shard in range(SHARDS):
            if shard != BROKEN:
                total += now - before
                opened += (now - before) * any(one.states.get(shard) in OPEN for one in samples)
        before = now
        if not told and now - began > SECONDS / 2:
            victim.send_signal(sent)
            told = True
        if not filling.is_alive():
            filling = threading.Thread(target=application.fill)
            filling.start()
    filling.join()
    return opened / total


def measure() -> dict[str, float]:
    """Return both shares."""
    short = {"session_timeout": "2s", "heartbeat_interval": "500ms"}
    with (
        EmbeddedKafka(overrides={"group.min.session.timeout.ms": "500"}) as kafka,
        tempfile.TemporaryDirectory() as directory,
    ):
        servers, place = kafka.bootstrap_servers, Path(directory)
        return {
            "isolation_open_share": open_share(servers, place, signal.SIGTERM),
            "isolation_open_share_kill9": open_share(servers, place, signal.SIGKILL, **short),
        }
