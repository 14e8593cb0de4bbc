"""Workers killed with SIGKILL at random moments, while others join and leave: ``tests/run soak kill [--count N]``."""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path

from stream_svt.service.embedded import EmbeddedKafka
from tests.soak import report
from tests.soak.stage import BROKER, PARTITIONS, SESSION, Outcome, Stage
from tests.support.log_reader import read_partition

SHORT, FULL = 5, 200


async def kills(kafka: EmbeddedKafka, application: str, directory: Path, count: int, seed: int) -> Outcome:
    """Kill so many workers; every fifth time one more joins and another leaves in order."""
    stage = Stage(kafka.bootstrap_servers, [kafka.data_dir], application, directory, seed=seed)
    chance, owning = stage.chance, 0
    calm: list[tuple[float, list[int]]] = []
    async with stage.on():
        stage.feed()
        stage.start()
        stage.start()
        await stage.owned()
        settled = True
        for number in range(count):
            if number % 5 == 2:
                stage.start()
                await stage.owned()
                await stage.leave(chance.choice(stage.workers))
            await asyncio.sleep(1.5 * chance.random())
            owners = await stage.owners()
            victim = chance.choice(list(owners.values()) or stage.workers)
            shards = [shard for shard, owner in owners.items() if owner is victim]
            killed = time.time()
            await stage.kill(victim)
            stage.outcome.count += 1
            owning += bool(shards)
            stage.start()
            before, settled = settled, chance.random() < 0.75
            if settled:
                await stage.caught_up()
                if before:  # else members of the group are missed that never joined
                    calm.append((killed, shards))
            else:  # the next one comes in the middle of the takeover
                await asyncio.sleep(3.0 * chance.random())
        await stage.caught_up()
    tenures = {
        number: _tenures(kafka.data_dir, f"{application}.state", number) for number in range(PARTITIONS)
    }
    gaps = [
        next((began for began in tenures[shard] if began > killed), math.inf) - killed
        for killed, shards in calm
        for shard in shards
    ]
    stage.outcome.notes.append(f"{owning} of the killed owned a shard, {len(stage.past)} workers in all")
    if gaps:
        late = sum(gap > SESSION + 2 for gap in gaps)
        stage.outcome.notes.append(
            f"from SIGKILL to the new owner's first transaction: median {statistics.median(gaps):.1f} s, longest "
            f"{max(gaps):.1f} s, {late} of {len(gaps)} above the session timeout ({SESSION:g} s) and 2 s more"
        )
    return stage.outcome


def _tenures(data_dir: Path, topic: str, partition: int) -> list[float]:
    """Return when each producer of a partition wrote its first record, in seconds since 1970."""
    first: dict[tuple[int, int], float] = {}
    for record in read_partition(data_dir, topic, partition):
        if record.marker is None:
            first.setdefault((record.producer_id, record.producer_epoch), record.timestamp / 1000)
    return sorted(first.values())


if __name__ == "__main__":
    play = report.on_brokers("kill", partial(EmbeddedKafka, overrides=BROKER), kills)
    sys.exit(report.run("kill", __doc__, play, short=SHORT, full=FULL))
