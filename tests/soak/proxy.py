"""Lost and late transactions between worker and broker: ``tests/run soak proxy [--count N]``."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.soak import report
from tests.soak.stage import BROKER, Outcome, Stage
from tests.support.proxy import Api, Fault, ProxiedKafka, Proxy, Strike

SHORT, FULL = 4, 50
BRIEF = 1.0
LONGEST = 16.0
"""Seconds that a request or a reply is late at most: longer than the worker waits and a transaction may last."""


def strikes(chance: random.Random) -> Iterator[Strike]:
    """Yield faults: first those that are soon over, then all of them again and again, late by anything."""
    yield Strike(Api.END_TXN, Fault.REPLY_LOST)
    yield Strike(Api.PRODUCE, Fault.REQUEST_LOST)
    yield Strike(Api.END_TXN, Fault.REQUEST_ASTRAY, BRIEF)
    yield Strike(Api.PRODUCE, Fault.REPLY_LATE, BRIEF)
    for fault, api in itertools.cycle(itertools.product(Fault, Api)):
        yield Strike(api, fault, chance.uniform(0.2, LONGEST))


async def faults(kafka: ProxiedKafka, application: str, directory: Path, count: int, seed: int) -> Outcome:
    """Let so many requests or replies get lost or come late, one after the other."""
    async with Proxy(kafka.front_port, kafka.behind_port).running() as proxy:
        stage = Stage(
            kafka.bootstrap_servers,
            [kafka.data_dir],
            application,
            directory,
            through=proxy.address,
            scarce=10,
            seed=seed,
        )
        struck: list[str] = []
        async with stage.on():
            stage.feed()
            stage.start()
            await stage.owned()
            for strike in itertools.islice(strikes(stage.chance), count):
                await asyncio.sleep(0.5 * stage.chance.random())
                proxy.arm(strike)
                async with asyncio.timeout(60):
                    await strike.done.wait()
                stage.outcome.count += 1
                struck.append(str(strike))
                # What the client does about it comes later than the fault: a commit shows that it is over.
                await stage.caught_up()
    retried, fenced = stage.said("event=shard_retry"), stage.said("event=fenced")
    stage.outcome.notes += [f"{retried} tenures ended unanswered, {fenced} fenced", *struck]
    return stage.outcome


if __name__ == "__main__":
    play = report.on_brokers("proxy", partial(ProxiedKafka, overrides=BROKER), faults)
    sys.exit(report.run("proxy", __doc__, play, short=SHORT, full=FULL))
