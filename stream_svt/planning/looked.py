"""Margins of a workload from a look: nine noisy deciles, the share of positives, and their median."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stream_svt.mechanisms.arguments import require
from stream_svt.planning.model import Floats, middles

POINTS = 2_000
"""Margins of a distribution: some lie in the tail that reaches the threshold."""


def margins_after_look(
    deciles: Sequence[float], positives: float, above: float, origin: float
) -> tuple[Floats, Floats]:
    """Return margins above and below the threshold, each equally likely.

    Between two known points, and beyond the last one, the logarithm of the share of larger values is linear in the
    logarithm of the value, as for counts with a heavy tail.

    Args:
        deciles: Nine rising values, less the threshold.
        positives: Share of the values at or above the threshold.
        above: The median margin of these.
        origin: Distance from the least possible value to the threshold; 0 if unknown: then the lowest decile counts.

    Raises:
        MisuseError: The deciles do not rise, or many more values than the share says lie above the threshold.
    """
    require(len(deciles) == 9 and list(deciles) == sorted(deciles), "a look has nine deciles that rise")
    least = sum(margin >= 0 for margin in deciles) / 10
    require(
        least <= positives + 0.1,
        f"by the look more than {least:.0%} of the values lie above the threshold, which is far from the share given: "
        "give another share, or look again with a larger epsilon",
    )
    shares = [(1 - tenth / 10, margin) for tenth, margin in enumerate(deciles, 1) if margin < 0]
    known = [(share, margin) for share, margin in shares if share > positives]
    known += [(positives, 0.0), (positives / 2, above)]
    shift = origin if origin > 0 else -deciles[0] + 1
    rarity = -np.log([share for share, _ in known])
    size = np.log([max(margin + shift, 1) for _, margin in known])

    def of(shares: Floats) -> Floats:
        wanted = -np.log(shares)
        found = np.interp(wanted, rarity, size)
        slope = (size[-1] - size[-2]) / math.log(2)
        return np.asarray(np.exp(found + slope * np.maximum(wanted - rarity[-1], 0)) - shift)

    among = middles(POINTS)
    return np.maximum(of(positives * among), 0), np.maximum(-of(positives + (1 - positives) * among), 0)
