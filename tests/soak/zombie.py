"""Owners that stand still until another took over, and go on: ``tests/run soak zombie [--count N]``."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from functools import partial
from pathlib import Path

from stream_svt.service.embedded import EmbeddedKafka
from tests.soak import report
from tests.soak.stage import BROKER, Outcome, Stage

SHORT, FULL = 2, 20
BEYOND_TRANSACTION = 16.0
"""Seconds that some stand still: the broker has given their transaction up by then."""

RATE = 1500
"""Queries a second: many, so that an owner is often stopped in the middle of a transaction."""


async def zombies(kafka: EmbeddedKafka, application: str, directory: Path, count: int, seed: int) -> Outcome:
    """Stop so many owners with SIGSTOP, wait for their heirs, and let them go on with SIGCONT."""
    stage = Stage(kafka.bootstrap_servers, [kafka.data_dir], application, directory, rate=RATE, seed=seed)
    chance = stage.chance
    async with stage.on():
        stage.feed()
        stage.start()
        stage.start()
        await stage.owned()
        for number in range(count):
            await asyncio.sleep(chance.random())
            # One that went on a moment ago may not yet know that its shard is somebody else's.
            while not (owners := await stage.owners()):
                await asyncio.sleep(0.1)
            zombie = chance.choice(list(owners.values()))
            began = time.monotonic()
            zombie.process.send_signal(signal.SIGSTOP)
            try:
                await stage.caught_up([worker for worker in stage.workers if worker is not zombie])
                hold = (
                    BEYOND_TRANSACTION - (time.monotonic() - began)
                    if number % 10 == 9
                    else 2 * chance.random()
                )
                await asyncio.sleep(max(hold, 0))
            finally:
                zombie.process.send_signal(signal.SIGCONT)
            stage.outcome.count += 1
            await stage.caught_up()
    fenced, parked = stage.said("event=fenced"), stage.said("event=not_member")
    stage.outcome.notes.append(f"{fenced} tenures ended fenced, {parked} of them as no member")
    return stage.outcome


if __name__ == "__main__":
    play = report.on_brokers("zombie", partial(EmbeddedKafka, overrides=BROKER), zombies)
    sys.exit(report.run("zombie", __doc__, play, short=SHORT, full=FULL))
