"""Draws the picture of the status page: a browser looks at a page whose figures are invented.

    .venv/bin/python -m docs.generator.status_page CHROMIUM

It is no part of `docs/generate`, for a browser and its fonts differ from machine to machine.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

from stream_svt.monitor.released import EventType
from tests.support.browser import browser, visit
from tests.support.released import account_of, alert, lifecycle
from tests.support.status_page import Stage

TARGET = Path(__file__).resolve().parents[1] / "pictures" / "status-page-light.png"
DAY = 86_400.0
MONITOR = "hot-items"
WEEKS = {"retail-week-1": (4.0, 26, 12.0), "retail-week-2": (1.6, 11, 9.0), "retail-week-3": (4.0, 7, 3.0)}
"""Limit, alerts, and the days over which they came; the second week's budget is used up."""

SPEC = f"""
application: retail-watch
datasets:
{"".join(f"  - {{name: {week}, limit: {limit}, unit: one basket}}" + chr(10) for week, (limit, _, _) in WEEKS.items())}
monitors:
  - {{name: {MONITOR}, topic: retail.counts, epsilon: 0.8, cutoff: 6, sensitivity: 1, monotonic: true,
     bounds: [0, 9000], threshold: 400, expected_queries: 100000}}
"""


def records() -> list[bytes]:
    """Return some weeks' events, in order of time."""
    dice, now = random.Random(5), time.time()  # noqa: S311  figures of a snapshot
    found: list[tuple[float, bytes]] = []
    for week, (limit, alerts, days) in WEEKS.items():
        start, spent = now - days * DAY, 0.2
        account = account_of(spent, limit=limit, reserved=0.6)
        found.append(
            (start, lifecycle(EventType.RUN_STARTED, week, monitor=MONITOR, account=account, at=start))
        )
        for number, at in enumerate(sorted(start + 0.7 * dice.random() * days * DAY for _ in range(alerts))):
            gap, spent = 6 + int(dice.expovariate(1 / 55)), min(spent + 0.12, limit - 0.02)
            text = alert(
                week,
                f"item-{dice.randint(1, 400)}",
                monitor=MONITOR,
                at=at,
                gap=float(gap),
                bound=401.0 + gap if gap > 20 else None,
                estimate=427.0 + gap if gap > 20 else None,
                run=1 + number // 6,
                top=1 + number % 6,
                account=account_of(spent, limit=limit, charge=0.12, reserved=min(0.4, limit - spent)),
            )
            found.append((at, text))
    return [text for _, text in sorted(found)]


async def draw(chromium: str) -> None:
    """Write the picture."""
    stage = Stage(SPEC)
    stage.topic.put(*records())
    async with (
        stage.open(),
        browser(chromium) as started,
        visit(started, stage.url, width=1180, height=1180) as seen,
    ):
        await seen.page.locator("#list > li").first.wait_for()
        await asyncio.sleep(1.5)  # the bars have moved
        await seen.page.screenshot(path=TARGET)


if __name__ == "__main__":
    asyncio.run(draw(*sys.argv[1:]))
