"""Requests for deciles of what a monitor tests, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stream_svt.columns.query_batch import OF_DECILES, DecilesRequest
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.proving.streams import QueryRecord, Row, batch_of_records
from tests.support.counts import TOPIC, VISITORS, counting
from tests.support.engine_play import Play

PARTS = 10**18
TRUE = (-5, 0, 0, 3, 10, 10, 200, 4_000, 90_000)
ONE = DecilesRequest("one", "m0", UNITS_PER_EPSILON // 10, 1_000, 2_000, 63)
REFUSED = {
    "budget": (replace(ONE, epsilon=10 * UNITS_PER_EPSILON), "9"),
    "no-monitor": (replace(ONE, monitor="other"), "9"),
    "rho": (ONE, "{rho: 9}"),
}
"""Requests that are refused, and the limit of their dataset, by the reason."""


def record(request: DecilesRequest = ONE, dataset: int = 0, values: Sequence[int] = TRUE) -> QueryRecord:
    rows = tuple(Row(dataset, one * PARTS) for one in values)
    return QueryRecord(rows, measure=OF_DECILES, request=request)


def asked(request: DecilesRequest, limit: str) -> Play:
    """Return an engine that was asked once."""
    play = Play(counting(VISITORS, datasets=f"{{names: [a, b, c], limit: {limit}}}"))
    play.step(batch_of_records(TOPIC, [record(request)], 0))
    play.commit()
    return play


def asked_in_all_ways() -> Iterator[Play]:
    """Yield engines that release deciles, and that refuse them for each reason."""
    yield asked(ONE, "9")
    for request, limit in REFUSED.values():
        yield asked(request, limit)
