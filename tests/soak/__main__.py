"""The command line of all long tests but that of the alignment: ``tests/run soak NAME [OPTION...]``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from functools import partial

from stream_svt.kafka.embedded import EmbeddedKafka
from tests.simulation import soak as simulation
from tests.soak import blows, counter, forward, fuzz, hour, report, taint
from tests.support.cluster import ThreeBrokers
from tests.support.proxy import ProxiedKafka
from tests.support.topics import BROKER


@contextlib.asynccontextmanager
async def one_broker(kind: type[EmbeddedKafka] = EmbeddedKafka, **more: str) -> AsyncIterator[EmbeddedKafka]:
    with kind(overrides=BROKER | more) as kafka:
        yield kafka


ON_BROKERS = {
    "kill": (one_broker, blows.kills),
    "zombie": (one_broker, blows.zombies),
    "proxy": (partial(one_broker, ProxiedKafka), blows.faults),
    "cluster": (lambda: ThreeBrokers().running(), blows.losses),
    "counter": (partial(one_broker, ProxiedKafka), counter.counters),
    "counter-cluster": (lambda: ThreeBrokers().running(), counter.on_cluster),
    "forward": (one_broker, forward.blows),
    "hour": (partial(one_broker, **hour.COMPACTING), hour.hour),
}
"""What runs the brokers, and what plays on them."""
SHORT = blows.SHORT | counter.SHORT | {"forward": forward.SHORT, "hour": 60}
FULL = blows.FULL | counter.FULL | {"forward": forward.FULL}
UNITS = {"hour": "minutes", "counter": "faults", "counter-cluster": "faults"}
IN_MEMORY = {"fuzz": fuzz, "taint": taint}


def main(name: str, *arguments: str) -> int:
    """Play, print the closing line, and return 1 where a rule was broken."""
    if name in ON_BROKERS:
        brokers, play = ON_BROKERS[name]
        played, unit = report.on_brokers(name, brokers, play), UNITS.get(name, "count")
        sizes = {"short": SHORT[name], "full": FULL.get(name), "unit": unit}
        return report.run(name, play.__doc__, played, arguments=arguments, **sizes)
    if name in IN_MEMORY:
        module = IN_MEMORY[name]
        short = module.DEFAULT_COUNT
        return report.run(name, module.__doc__, module.play, short=short, first=0, arguments=arguments)
    return simulation.main(name, arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
