"""Draws the pictures of the status page: a browser looks at a page whose figures are invented.

    .venv/bin/python -m docs.generator.status_page CHROMIUM

They are no part of `docs/generate`, for a browser and its fonts differ from machine to machine.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

from stream_svt.monitor.released import EventType
from stream_svt.protocol.session_parts import ShardStatus
from stream_svt.protocol.shard_states import State
from tests.support.browser import browser, visit
from tests.support.released import account_of, alert, lifecycle
from tests.support.status_page import Stage

TARGET = Path(__file__).resolve().parents[1] / "pictures"
DAY = 86_400.0
EMPTY = "retail-week-2"
APPEND, ADAPTIVE = "hot-items-append", "hot-items-adaptive"
MONITOR = """
  - {{name: {name}, topic: {topic}, mechanism: {mechanism}, epsilon: {epsilon}, cutoff: 6, sensitivity: 1,
     monotonic: true, bounds: [0, 9000], threshold: {threshold}, expected_queries: 100000, datasets: ["{datasets}"]}}"""
SPEC = """
application: retail-watch
datasets:
  - {name: retail-week-1, limit: {epsilon: 4}, unit: one basket}
  - {name: retail-week-2, limit: {epsilon: 1.6}, unit: one basket}
  - {names: [retail-week-3, retail-week-4], limit: {epsilon: 4}, unit: one basket}
monitors:""" + "".join(
    MONITOR.format(
        name=name, topic="retail.counts", mechanism=mechanism, epsilon=0.8, threshold=400, datasets="retail-*"
    )
    for name, mechanism in ((APPEND, "svt"), (ADAPTIVE, "adaptive"))
)
WEEKS = {  # limit, alerts, and the days over which they came
    "retail-week-1": (4.0, 26, 12.0),
    EMPTY: (1.6, 11, 9.0),
    "retail-week-3": (4.0, 7, 3.0),
}


def play(stage: Stage) -> None:
    """Release some weeks' alerts."""
    dice = random.Random(5)  # noqa: S311  figures of a snapshot
    now = time.time()
    records: list[tuple[float, bytes]] = []
    for week, (limit, alerts, days) in WEEKS.items():
        start = now - days * DAY
        spent = 0.2
        for monitor in (APPEND, ADAPTIVE):
            books = account_of(spent, limit=limit, reserved=0.6)
            records.append(
                (start, lifecycle(EventType.RUN_STARTED, week, monitor=monitor, books=books, at=start))
            )
        ends = 0.7 if week == EMPTY else 1.0  # what is used up was used up a while ago
        times = sorted(start + dice.random() * (ends * days * DAY - 600) for _ in range(alerts))
        for number, at in enumerate(times):
            gap = 6 + int(dice.expovariate(1 / 55))
            spent = min(spent + 0.12, limit - 0.02)
            text = alert(
                week,
                f"item-{dice.randint(1, 400)}",
                monitor=dice.choice((APPEND, ADAPTIVE)),
                at=at,
                gap=float(gap),
                bound=401.0 + gap if gap > 20 else None,
                estimate=427.0 + gap if gap > 20 else None,
                run=1 + number // 6,
                top=1 + number % 6,
                books=account_of(spent, limit=limit, charge=0.12, reserved=max(min(0.4, limit - spent), 0.0)),
            )
            records.append((at, text))
    for monitor in (APPEND, ADAPTIVE):
        books = account_of(1.58, limit=1.6, charge=0.0)
        at = now - 2.6 * DAY
        records.append(
            (at, lifecycle(EventType.EXHAUSTED, EMPTY, monitor=monitor, books=books, at=at, run=2))
        )
    stage.topic.put(*[text for _, text in sorted(records)])
    stage.worker.shards = tuple(
        ShardStatus(number, State.RUNNING, lag={"retail.counts": waiting}, committed_at=now - 1)
        for number, waiting in ((0, 120), (1, 0))
    )


async def draw(chromium: str) -> None:
    """Write the pictures."""
    stage = Stage(SPEC)
    play(stage)
    async with stage.open(), browser(chromium) as started:
        for name, width, height, dark in (
            ("light", 1180, 1180, False),
            ("dark", 1180, 1180, True),
            ("phone", 390, 844, False),
        ):
            async with visit(started, stage.url, width=width, height=height, dark=dark) as seen:
                await seen.page.locator("#list > li").first.wait_for()
                await seen.page.locator("#shards tr").first.wait_for()
                await asyncio.sleep(1.5)  # the bars have moved
                await seen.page.screenshot(path=TARGET / f"status-page-{name}.png")


if __name__ == "__main__":
    asyncio.run(draw(*sys.argv[1:]))
