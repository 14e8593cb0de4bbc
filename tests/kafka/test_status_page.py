"""The status page of a live run in a real browser, at either of two workers."""

from __future__ import annotations

import re
import time

import pytest
from playwright.async_api import expect

from tests.support.browser import browser, visit
from tests.support.worker import HIGH, LOW, Scene

pytestmark = [pytest.mark.kafka, pytest.mark.debian]
SCENE = {"datasets": "north, south"}
MOVED = re.compile(r"width: [0.]*[1-9]")
"""Style of a bar's part that is not empty."""


async def test_a_live_run_is_seen_without_a_reload_at_either_worker(scene: Scene, debian_program) -> None:
    """One test, for two workers and a browser take seconds to start."""
    workers = [scene.serve() for _ in range(2)]
    for worker in workers:
        await worker.ready()
        assert f"page={worker.url}/" in worker.log  # where to look is said at the start
    async with (
        browser(debian_program("chromium")) as chromium,
        visit(chromium, f"{workers[0].url}/", dark=True) as seen,
        visit(chromium, f"{workers[1].url}/", width=390, height=844) as phone,
    ):
        page = seen.page
        for one in (page, phone.page):
            await expect(one.locator("#link")).to_have_text("Live", timeout=20_000)
            await expect(one.locator(".budget")).to_have_count(2)
            await expect(one.locator("#alerts-empty")).to_be_visible()
            await one.evaluate("window.sameDocument = true")
        await scene.send("north", LOW, series="quiet")
        await scene.send("north", HIGH, series="item-40")
        await scene.send("south", HIGH, series="<script>alert(1)</script>")
        for one in (page, phone.page):
            await expect(one.locator("#list > li:visible")).to_have_count(2, timeout=20_000)
            shown = one.locator("#list > li", has_text="item-40").first
            await expect(shown).to_contain_text(re.compile(r"At least (49,[89]|50,[01])"))
            for dataset in ("north", "south"):
                budget = one.locator(".budget", has_text=dataset)
                await expect(budget.locator(".amount")).to_have_text(
                    re.compile(r"^3\.\d+ of 4 epsilon left$")
                )
                await expect(budget.locator(".bar .spent")).to_have_attribute("style", MOVED)
            assert await one.evaluate("window.sameDocument")
        await expect(page.locator("#spoken")).to_contain_text("New alert: ")
        assert await phone.page.evaluate("document.documentElement.scrollWidth") <= 390
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(16, 20, 22)"
        for visited in (seen, phone):
            origin = visited.page.url
            assert all(url.startswith(origin) for url in visited.requests), visited.requests
            assert visited.said == []
        for number in range(2):
            await scene.send("north", HIGH, series=f"more-{number}")
        await page.get_by_label("Show runs and other events").check()
        halted = page.locator("#list > li", has_text="halted: it has raised all the alerts it paid for")
        await expect(halted).to_be_visible(timeout=20_000)
        started = time.monotonic()
        assert await workers[0].end() == 0
        assert time.monotonic() - started < 15.0  # whoever looks does not hold it up
        await expect(page.locator("#link")).to_have_text("No answer", timeout=15_000)
        await expect(page.locator("#notice")).to_contain_text("does not answer")
        # The other worker takes over, and its page goes on where it was.
        await scene.send("north", HIGH, series="item-41")
        await expect(phone.page.locator("#list > li", has_text="item-41").first).to_be_visible(timeout=30_000)
        await expect(phone.page.locator("#shards tr")).to_have_count(2, timeout=10_000)
