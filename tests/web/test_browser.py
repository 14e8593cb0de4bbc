"""The status page in a real browser, on a stage without a broker: what is seen, heard, and cannot be done to it."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from msgspec import structs
from playwright.async_api import Browser, expect

from stream_svt.errors import BrokerError
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import Commit
from stream_svt.protocol.shard_states import Cause, ShardState
from tests.support.browser import browser, visit
from tests.support.released import account_of, alert, lifecycle
from tests.support.shop import owned, view
from tests.support.status_page import Stage

pytestmark = [
    pytest.mark.loopback,
    pytest.mark.debian,
    pytest.mark.xdist_group("browser"),
    pytest.mark.asyncio(loop_scope="module"),
]

NAME = "<script>document.title=`owned`"
"""As far as the name of a dataset may go: no blanks and no slashes."""

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
SPEC = """
application: shop
datasets:
  - {names: [a, b], limit: {epsilon: 4}, unit: one `basket`}
  - {name: %s, limit: {epsilon: 4}, unit: "<b onclick=alert(1)>one basket</b>"}
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium(debian_program) -> AsyncIterator[Browser]:
    async with browser(debian_program("chromium")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    stage = Stage(SPEC % "c")
    stage.worker.shards = (owned(),)
    async with stage.open():
        yield stage


def busy(stage: Stage) -> None:
    """Release something of every kind, so that every part of the page has something to show."""
    now, paid = time.time(), account_of
    stage.topic.put(
        lifecycle(EventType.RUN_STARTED, "a", at=now - 90_000 * 7, account=paid(0.1, reserved=0.9)),
        *(alert("a", f"item-{n}", at=now - 86400 * n, account=paid(0.5 - 0.05 * n)) for n in (6, 4, 3, 1)),
        alert("a", "unsure", at=now - 60, bound=None, estimate=None, account=paid(0.6, reserved=0.4)),
        alert("a", "far", at=now - 50, bound=90_000.0, estimate=90_100.0, account=paid(0.7, reserved=0.4)),
        lifecycle(EventType.RUN_HALTED, "a", at=now - 45, account=paid(0.7, charge=0.0)),
        alert("b", "low", at=now - 40, account=paid(3.6)),
        lifecycle(EventType.PAUSED, "b", at=now - 30, account=paid(3.6, charge=0.0)),
        lifecycle(EventType.EXHAUSTED, "c", at=now - 20, account=paid(3.99)),
    )
    lost = owned()
    lost.shard, lost.state, lost.cause = 1, ShardState.PARKED, Cause.RECORDS_LOST
    lost.reason = "queries of topic counts were lost"
    stage.worker.shards = (owned(), lost)


async def test_an_alert_appears_and_a_bar_moves_without_a_reload_and_is_said_aloud(chromium, stage):
    async with visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator("#link")).to_have_text("Live")
        await expect(page.locator("#alerts-empty")).to_be_visible()
        await page.evaluate("window.sameDocument = true")
        bar = page.locator(".budget", has_text="protects").first.locator(".bar")
        told = "0 spent, 0 reserved by open runs, 4 free, of 4 epsilon"
        await expect(bar).to_have_attribute("aria-label", told)
        stage.topic.put(alert("a", "item-40", at=time.time(), account=account_of(1.0, reserved=0.5)))
        row = page.locator("#list > li").first
        await expect(row).to_contain_text("item-40")
        await expect(row).to_contain_text("At least 432 (95 % bound), estimated 458.")
        await expect(row).to_contain_text("muted for the period")
        await expect(row.locator("code")).to_have_text(re.compile(r"^stream-svt explain -c FILE \S+$"))
        await expect(page.locator("#spoken")).to_contain_text("New alert: item-40 in a.")
        assert await page.locator("#spoken").get_attribute("aria-live") == "polite"
        await expect(bar).to_have_attribute("aria-label", re.compile("^1 spent, 0.5 reserved"))
        await expect(bar.locator(".spent")).to_have_attribute("style", re.compile("width: 25%"))
        await expect(page.locator("#glance")).to_contain_text("Alerts released1")
        # What the rounding of figures leaves over is nothing.
        assert 4.0 - 3.3 - 0.7 > 0
        account = account_of(3.3, reserved=0.7)
        stage.topic.put(alert("a", at=time.time(), account=account, muted_until=1_780_000_000_000))
        await expect(row).to_contain_text(re.compile("muted until 2. May 2026"))
        told = "3.3 spent, 0.7 reserved by open runs, 0 free, of 4 epsilon"
        await expect(bar).to_have_attribute("aria-label", told)
        assert await page.evaluate("window.sameDocument")
        assert seen.said == []


async def test_a_closed_application_says_so_and_for_whom(chromium: Browser, stage: Stage) -> None:
    now, times = time.time(), range(90, 0, -10)
    stage.topic.put(*(alert("a", at=now - n, account=account_of(1.0 - n / 1000)) for n in times))
    async with visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator(".outlook").first).to_contain_text("It lasts at least 6 hours more")
        successor = {"successor": EVIL}
        stage.topic.put(lifecycle(EventType.APPLICATION_CLOSED, "", monitor="", at=now, detail=successor))
        told = f"The application is closed: {EVIL} goes on with what is left."
        await expect(page.locator(".outlook").first).to_have_text(told)
        closed = f"Shard 0 closed permanently: {EVIL} goes on with what is left of its budgets"
        await expect(page.locator("#list > li").first).to_contain_text(closed)
        assert seen.said == []


async def test_of_counts_the_newest_tick_tested_is_shown(chromium, stage):
    stage.worker.shards = (
        replace(owned(view("a")), lag={}, ticks={"shop.clicks.counts": 1_790_000_000_000}),
    )
    async with visit(chromium, stage.url) as seen:
        told = re.compile("0ticks to 21 Sept? 2026, [0-9]{2}:13:20")
        await expect(seen.page.locator("#shards")).to_contain_text(told)
        assert seen.said == []


async def test_a_busy_page_says_in_words_what_is_left_refused_and_happened(chromium, stage):
    busy(stage)
    rejects = [("counts", 1, "not-json"), ("counts", 4, "undeclared")]
    stage.worker.metrics.committed(Commit(rejects=rejects))
    async with visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator("#shards tr")).to_have_count(2)
        for state in await page.locator(".state").all():
            assert (await state.inner_text()).strip()  # no state is told by colour alone

        budgets = page.locator(".budget")
        await expect(budgets.nth(0)).to_contain_text("3.3 of 4 epsilon left")
        pace = r"At the pace of the last \d+ payments it lasts about .* more; 9 times in 10 .*between .* and "
        await expect(budgets.nth(0).locator(".outlook")).to_have_text(re.compile(pace))
        over = "Used up: what is left pays no further run."
        await expect(budgets.nth(2).locator(".outlook")).to_contain_text(over)
        await expect(page.locator("#glance")).to_contain_text("1 budget used up")
        await expect(page).to_have_title("(3 not watching) shop - stream_svt")
        await budgets.nth(0).locator("summary").click()
        await expect(budgets.nth(0)).to_contain_text("at most 67 times in 100 so far, and at most 98.3 times")
        for state in ("1 halted", "1 paused", "1 used up"):
            await expect(page.locator("#monitors")).to_contain_text(state)
        await expect(page.locator("#shards")).to_contain_text("parked: records-lost")
        # What is parked is settled: a restart would not open it.
        await expect(page.locator("#worker-lead")).to_contain_text(", ready. It owns 2 shards")
        await expect(page.locator("#glance")).to_contain_text("this worker is ready; it refused 2 records")
        await expect(page.locator("#refused")).to_have_text(
            "It has refused 2 records since it started (not-json 1, undeclared 1): see topic shop.rejects."
        )

        halted = page.locator("#list > li", has_text="halted: it has raised all the alerts it paid for")
        await expect(page.locator("#list > li", has_text="Paused by an operator")).to_be_visible()
        await expect(halted).to_be_hidden()
        await page.get_by_label("Show runs and other events").check()
        await expect(halted).to_be_visible()


async def test_a_chart_has_what_was_spent_as_steps_and_the_outlook_as_a_fan(chromium, stage):
    busy(stage)
    async with visit(chromium, stage.url) as seen:
        budgets = seen.page.locator(".budget")
        await expect(budgets.nth(0).locator(".chart .fan")).to_have_count(1)
        drawn = (
            await budgets.nth(0)
            .locator(".chart path")
            .evaluate_all(
                "nodes => nodes.map(node => [...node.getAttribute('d').matchAll(/-?[0-9.]+/g)].map(one => +one[0]))"
            )
        )
        fan, expected, spent = drawn
        (today, left, early, top, late), (*_, middle, _) = fan, expected
        assert (left, top, late) == (pytest.approx(40 - 40 * 0.7 / 4), 0, pytest.approx(100))
        assert 0 < today < early < middle < late
        # The path begins at the bottom, then has the amount and the time of each step, and ends now.
        amounts, times = spent[2:-1:2], spent[3:-1:2]
        assert times == sorted(times)
        assert times[-1] == pytest.approx(today)
        assert amounts == sorted(amounts, reverse=True)
        assert amounts[-1] == pytest.approx(left)
        # Of one charge there is nothing to draw, and a budget that is used up has no outlook.
        await expect(budgets.nth(1).locator(".chart")).to_have_count(0)
        used_up = lifecycle(EventType.EXHAUSTED, "a", at=time.time(), account=account_of(3.99, charge=0.0))
        stage.topic.put(used_up)
        await expect(budgets.nth(0).locator(".chart .fan")).to_have_count(0)
        await expect(budgets.nth(0).locator(".chart .spent")).to_have_count(1)
        assert seen.said == []


async def test_what_is_not_watched_is_said_on_top_with_its_begin_its_end_and_the_command_that_ends_it(
    chromium, stage
):
    now, paid = time.time(), account_of
    async with visit(chromium, stage.url) as seen:
        page = seen.page
        link, section, items = page.locator("#link"), page.locator("#blind"), page.locator("#blind-list > li")
        await expect(link).to_have_text("Live")
        await expect(section).to_be_hidden()
        lost = owned()
        lost.shard, lost.state, lost.cause = 1, ShardState.PARKED, Cause.RECORDS_LOST
        lost.reason = "queries of topic counts were lost"
        lost.views = {"c": structs.replace(view("c"), shard=1)}
        stage.worker.shards = (owned(), lost)
        until = int((now + 7200) * 1000)
        stage.topic.put(
            lifecycle(EventType.LIMITED, "a", at=now - 300, account=paid(1.0), detail={"until": until}),
            lifecycle(EventType.EXHAUSTED, "b", at=now - 20, account=paid(3.99)),
        )
        await expect(link).to_have_text("Live, 3 not watching")
        await expect(page.get_by_role("region", name="Not watching: 3")).to_be_visible()
        await expect(items).to_have_count(3)
        for number, told in enumerate(
            [
                "Shard 1 is parked: records-lost.",
                "a · hot is limited: max_runs is reached.",
                "b · hot is exhausted: its budget pays no further run.",
            ]
        ):
            await expect(items.nth(number)).to_contain_text(told)
        await expect(items.nth(1)).to_contain_text("5 minutes ago")
        await expect(items.nth(1)).to_contain_text(
            re.compile(r"Until \d+ \w+ \d{4}, .*control resample -c FILE a --monitor hot")
        )
        await expect(items.nth(2)).to_contain_text(
            re.compile("Until somebody acts.*raise-budget -c FILE b --limit LOSS")
        )
        await expect(page).to_have_title("(3 not watching) shop - stream_svt")
        # The view of a parked shard says "running", as it was: nothing runs there.
        await expect(page.locator("#glance")).to_contain_text("Monitors running0 of 3")
        await expect(page.locator("#glance")).to_contain_text("1 limited, 1 used up, 1 parked")
        assert await page.locator("#glance > div").nth(2).get_attribute("data-tone") == "out"
        alarming = await link.evaluate("node => getComputedStyle(node).color")
        # It ends, and the page says so without a reload; what is paused is told in another tone.
        stage.worker.shards = (owned(),)
        stage.topic.put(
            lifecycle(EventType.RUN_STARTED, "a", at=now, account=paid(1.0)),
            lifecycle(EventType.BUDGET_RAISED, "b", monitor="", at=now, account=paid(3.99, limit=8.0)),
            lifecycle(EventType.PAUSED, "b", at=now, account=paid(3.99, limit=8.0)),
        )
        await expect(link).to_have_text("Live, 1 not watching")
        await expect(items).to_have_count(1)
        await expect(items.first).to_contain_text("b · hot is paused: an operator paused it.")
        assert await link.evaluate("node => getComputedStyle(node).color") != alarming
        stage.topic.put(lifecycle(EventType.RESUMED, "b", at=now, account=paid(3.99, limit=8.0)))
        await expect(section).to_be_hidden()
        await expect(link).to_have_text("Live")
        assert seen.said == []


async def test_of_a_limit_that_renews_the_promise_and_the_next_period_are_told(chromium):
    renewing = (
        "generate: 'r-{date}', every: 9000d, from: 2026-01-05, lateness: 1d, limit: {epsilon: 12, per: 30d}"
    )
    spec = SPEC.replace("names: [a, b], limit: {epsilon: 4}", renewing) % "c"
    stage, name, now = Stage(spec), "r-2026-01-05", time.time()
    stage.worker.shards = (owned(),)
    async with stage.open(), visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator("#link")).to_have_text("Live")
        budget = page.locator(".budget", has_text=name)
        await expect(budget).to_contain_text("protects one basket (any 30 days: at most epsilon 12)")
        stage.topic.put(*(alert(name, at=now - 60, account=account_of(1.0)) for _ in range(2)))
        await expect(budget).to_contain_text("3 of 4 epsilon left")
        await expect(budget.locator(".outlook")).to_contain_text(
            "Too few payments yet to say how long it lasts."
        )
        await expect(budget.locator(".outlook")).to_contain_text("The next one begins in ")
        stage.topic.put(lifecycle(EventType.EXHAUSTED, name, at=now - 20, account=account_of(3.99)))
        await expect(budget.locator(".outlook")).to_have_text(
            re.compile("^Used up in this period. The next one begins in ")
        )
        told = re.compile(
            r"is exhausted: its budget pays no further run\..*Until \d+ \w+ 2050.*\. Its limit never changes\."
        )
        await expect(page.locator("#blind-list > li")).to_have_text(told)
        stopped = lifecycle(EventType.RUN_HALTED, name, at=now - 10, detail={"stopped": True})
        stage.topic.put(stopped)
        told = re.compile(r"is stopped: .*Until \d+ \w+ 2050.*\. At once with stream-svt control resample")
        await expect(page.locator("#blind-list > li")).to_have_text(told)
        assert seen.said == []


async def test_a_pause_whose_time_has_passed_shows_the_state_beneath_it(chromium, stage):
    now = time.time()
    over, later = {"until": int((now - 10) * 1000)}, {"until": int((now + 7200) * 1000)}
    stage.topic.put(
        lifecycle(EventType.RUN_STARTED, "a", at=now - 60),
        lifecycle(EventType.EXHAUSTED, "b", at=now - 60),
        lifecycle(EventType.LIMITED, "c", at=now - 60, detail=later),
        *(lifecycle(EventType.PAUSED, one, at=now - 30, detail=over) for one in "abc"),
    )
    async with visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator("#glance")).to_contain_text("Monitors running1 of 3")
        await expect(page.locator("#glance")).to_contain_text("1 limited, 1 used up")
        items = page.locator("#blind-list > li")
        await expect(items).to_have_count(2)
        await expect(items.first).to_contain_text(re.compile("b · hot is exhausted.*Until somebody acts"))
        await expect(items.last).to_contain_text(re.compile(r"c · hot is limited.*Until \d+ \w+ \d{4}"))


async def test_names_are_text_and_nothing_else(chromium: Browser) -> None:
    stage = Stage(SPEC % f'"{NAME}"')
    async with stage.open(), visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator("#link")).to_have_text("Live")
        stage.topic.put(
            alert(NAME, EVIL, at=time.time()),
            alert("a", "\u202egnp.exe", at=time.time()),
            alert(EVIL, "x" * 256, at=time.time()),
            lifecycle(EventType.COMMAND_REPLY, NAME, at=time.time(), detail={"action": EVIL}),
        )
        await page.get_by_label("Show runs and other events").check()
        await expect(page.locator("#list > li")).to_have_count(4)
        await page.locator(".budget summary").nth(2).click()
        for written, times in ((NAME, 3), (EVIL, 1), ("<b onclick=alert(1)>one basket</b>", 1)):
            assert await page.locator("bdi").filter(has_text=written).count() >= times
        # A command is for a shell: a name is one word of it.
        stage.topic.put(lifecycle(EventType.PAUSED, NAME, at=time.time()))
        resume = f"stream-svt control resume -c FILE {shlex.quote(NAME)} --monitor hot"
        await expect(page.locator("#blind-list code")).to_have_text(resume)
        assert await page.locator("script").count() == 1
        assert await page.locator("img").count() == 1
        assert "owned" not in await page.title()
        assert all(url.startswith(stage.url + "/") for url in seen.requests), seen.requests
        assert seen.said == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_no_fault_in_either_scheme_and_nothing_moves(chromium, stage, dark):
    """Contrast, landmarks, headings, names of controls, language, and what else its rules know."""
    busy(stage)
    async with visit(chromium, stage.url, dark=dark, reduced_motion="reduce") as seen:
        page = seen.page
        await expect(page.locator("#list > li").first).to_be_visible()
        await expect(page.locator("#shards tr")).to_have_count(2)
        await page.get_by_label("Show runs and other events").check()
        await page.locator("summary").first.click()
        spent = page.locator(".bar .spent").first
        assert await spent.evaluate("node => getComputedStyle(node).transitionProperty") == "none"
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(16, 20, 22)" if dark else "rgb(246, 246, 242)")
        faint = "#333" if dark else "#ccc"
        await page.evaluate("colour => document.documentElement.style.setProperty('--soft', colour)", faint)
        assert "color-contrast" in (await Axe().run(page)).generate_snapshot()


@pytest.mark.parametrize("width", [320, 390, 820])
async def test_nothing_is_wider_than_a_narrow_screen(chromium: Browser, width: int) -> None:
    stage = Stage(SPEC % ("x" * 200))
    busy(stage)
    stage.topic.put(alert("a", "s" * 256, at=time.time(), threshold=1e9, bound=1.234567e9, estimate=1.3e9))
    async with stage.open(), visit(chromium, stage.url, width=width, height=844) as seen:
        page = seen.page
        await expect(page.locator("#list > li").first).to_be_visible()
        await expect(page.locator("#shards tr")).to_have_count(2)
        await page.get_by_label("Show runs and other events").check()
        for summary in await page.locator("summary").all():
            await summary.click()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_everything_can_be_done_from_the_keyboard_and_focus_is_seen(chromium, stage):
    busy(stage)
    async with visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator("#list > li").first).to_be_visible()
        reached = []
        for _ in range(20):
            await page.keyboard.press("Tab")
            at, seen_there = await page.evaluate(
                """() => {
                  const [node, style] = [document.activeElement, getComputedStyle(document.activeElement)];
                  const drawn = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
                  return [node.id || node.tagName, drawn];
                }"""
            )
            if at == "BODY":
                break  # once around
            reached.append(at)
            assert seen_there, f"no focus is seen on {at}"
            if at in ("SUMMARY", "lifecycle"):
                await page.keyboard.press("Enter" if at == "SUMMARY" else "Space")
        assert {"SUMMARY", "lifecycle", "list", "A"} <= set(reached)
        assert reached[0] == "A"  # past everything, to the alerts
        await expect(page.locator("#lifecycle")).to_be_checked()
        assert await page.locator("details[open]").count() == 3


async def test_trouble_is_said_and_its_end_too_and_what_was_missed_is_caught_up(chromium, stage, monkeypatch):
    monkeypatch.setattr("stream_svt.web.overview.RETRY_SECONDS", 0.1)
    stage.topic.put(alert("a", "one", at=time.time()))
    async with visit(chromium, stage.url) as seen:
        page = seen.page
        link, notice = page.locator("#link"), page.locator("#notice")
        await expect(link).to_have_text("Live")
        await expect(notice).to_be_hidden()
        stage.topic.error = BrokerError("no")
        await expect(notice).to_contain_text("may not read the alert topic")
        await expect(link).not_to_have_text("Live")
        stage.topic.error = None
        await expect(link).to_have_text("Live")
        await expect(notice).to_be_hidden()
        await expect(page.locator("#list > li")).to_have_count(1)
        await page.locator("summary").first.click()
        await page.route("**/api/v1/overview", lambda route: route.abort())
        await expect(link).to_have_text("No answer")
        stage.topic.put(alert("a", "two", at=time.time()))
        await page.unroute("**/api/v1/overview")
        await expect(page.locator("#list > li")).to_have_count(2)
        await expect(link).to_have_text("Live")
        await expect(page.locator("details[open]")).to_have_count(1)  # what the reader had opened stays so
        await expect(page.locator("summary").first).to_be_focused()


async def test_many_datasets_are_found_by_name_and_the_least_left_comes_first(chromium: Browser) -> None:
    names = ", ".join(f"week-{number}" for number in range(60))
    stage = Stage(SPEC.replace("[a, b]", f"[{names}]") % "c")
    stage.worker.shards = (owned(view("week-31", spent=3.9)),)
    async with stage.open(), visit(chromium, stage.url) as seen:
        page = seen.page
        await expect(page.locator(".budget")).to_have_count(12)
        await expect(page.locator(".budget").first).to_contain_text("week-31")
        await page.get_by_label("Find a dataset").fill("week-57")
        await expect(page.locator(".budget")).to_have_count(1)
        await expect(page.locator("#more")).to_have_text("1 of 61 are shown, the most spent first.")
