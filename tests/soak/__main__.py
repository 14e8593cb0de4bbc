"""The command line of all long tests but that of the alignment: ``tests/run soak NAME [OPTION...]``."""

from __future__ import annotations

import sys
from functools import partial

from stream_svt.service.embedded import EmbeddedKafka
from tests.simulation import soak as simulation
from tests.soak import blows, forward, fuzz, hour, report, taint
from tests.soak.stage import BROKER
from tests.support.cluster import ThreeBrokers
from tests.support.proxy import ProxiedKafka

KAFKA = partial(EmbeddedKafka, overrides=BROKER)
ON_BROKERS = {
    "kill": (KAFKA, blows.kills),
    "zombie": (KAFKA, blows.zombies),
    "proxy": (partial(ProxiedKafka, overrides=BROKER), blows.faults),
    "cluster": (lambda: ThreeBrokers(BROKER).running(), blows.losses),
    "forward": (KAFKA, forward.blows),
}
ELSEWHERE = {"hour": hour.main, "fuzz": fuzz.main, "taint": taint.main}
SHORT, FULL = blows.SHORT | {"forward": forward.SHORT}, blows.FULL | {"forward": forward.FULL}


def main(name: str, *arguments: str) -> int:
    """Play, print the closing line, and return 1 where a rule was broken."""
    if name in ELSEWHERE:
        return ELSEWHERE[name](arguments)
    if name in ON_BROKERS:
        brokers, play = ON_BROKERS[name]
        played = report.on_brokers(name, brokers, play)
        return report.run(name, play.__doc__, played, short=SHORT[name], full=FULL[name], arguments=arguments)
    return simulation.main(name, arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
