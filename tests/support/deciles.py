"""Requests for deciles of what a monitor tests, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stream_svt.columns.query_batch import OF_DECILES, DecilesRequest
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.proving.streams import QueryRecord, Row, batch_of_records
from tests.support.counts import ERRORS, SOURCE, TOPIC, VISITORS, counting
from tests.support.engine_play import Play

PARTS = 10**18
TRUE = (-5, 0, 0, 3, 10, 10, 200, 4_000, 90_000)
ONE = DecilesRequest("one", "m0", "visitors", UNITS_PER_EPSILON // 10, 1_000, 2_000, 63)
FAR = f"{ERRORS.replace('epsilon: 1', 'epsilon: 100')}, usual: {{every: 1h, times: 1, factor: 99.99}}, "
FAR += "excess: {over: 0, windows: 1900}, max_runs: off"
"""A question that one unit moves so far that the noise for a small epsilon does not fit in 64 bits."""
HUNDRED = SOURCE.replace("at_most: 3", "at_most: 100")
REFUSED = {
    "budget": (replace(ONE, epsilon=10 * UNITS_PER_EPSILON), "9", VISITORS),
    "no-monitor": (replace(ONE, monitor="other"), "9", VISITORS),
    "rho": (ONE, "{rho: 9}", VISITORS),
    "wide": (replace(ONE, epsilon=1), "900", FAR),
}
"""Requests that are refused, the limit of their dataset, and what the monitor tests, by the reason."""


def record(
    request: DecilesRequest = ONE, dataset: int = 0, values: Sequence[int] = TRUE, time_ms: int = 0
) -> QueryRecord:
    rows = tuple(Row(dataset, one * PARTS, time_ms=time_ms) for one in values)
    return QueryRecord(rows, measure=OF_DECILES, request=request)


def asked(request: DecilesRequest, limit: str = "9", form: str = VISITORS, *times_ms: int) -> Play:
    """Return an engine that was asked for what its monitor tests, at some times."""
    play = Play(counting(form, source=HUNDRED, datasets=f"{{names: [a, b, c], limit: {limit}}}"))
    request = replace(request, tested=play.spec.monitors[0].tested or "")
    play.step(batch_of_records(TOPIC, [record(request, time_ms=one) for one in times_ms or (0,)], 0))
    play.commit()
    return play


def asked_in_all_ways() -> Iterator[Play]:
    """Yield engines that release deciles, and that refuse them for each reason."""
    yield asked(ONE, "9", VISITORS, 2, 1)
    for request, limit, form in REFUSED.values():
        yield asked(request, limit, form)
