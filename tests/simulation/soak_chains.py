"""Plays many chains of applications on all cores: ``tests/run soak chains [--count N] [--first SEED]``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

from tests.simulation.chains import CarryingOver, Chain, ProvingJournal
from tests.simulation.soak import Found, played, soak
from tests.simulation.world import Variant


def chains(
    seeds: Iterable[int],
    broken: tuple[Variant, CarryingOver] | None = None,
    *,
    most: int = 20,
    processes: int | None = None,
) -> Found:
    """Play the chains of these seeds; stop after so many failures."""
    return played(seeds, partial(_chain, broken=broken), most=most, processes=processes)


def _chain(
    seed: int, broken: tuple[Variant, CarryingOver] | None = None
) -> tuple[int, list[str], Mapping[str, int]]:
    chain = Chain(seed, *(broken or (Variant(journal=ProvingJournal), CarryingOver())))
    violations = chain.run()
    counted = {"applications": len(chain.endings), "carried over": chain.carried}
    return seed, violations, Counter(chain.endings) + Counter(counted)


def main() -> int:
    """Play, print the closing line, and return 1 where a rule was broken."""
    return soak(
        "chains",
        __doc__,
        _chain,
        lambda failures: ["\n  ".join([f"seed {seed} breaks a rule:", *said]) for seed, said in failures],
    )


if __name__ == "__main__":
    sys.exit(main())
