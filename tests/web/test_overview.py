"""What the status page is answered: what it holds, what it does not, and that nobody can make it grow."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stream_svt.application.config import parse_config
from stream_svt.errors import BrokerError
from stream_svt.kafka.clients import BrokerUnavailable
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.released import DatasetView, EventType, decode
from stream_svt.privacy.loss import Kind, best_guess
from stream_svt.settings.application import load_spec
from stream_svt.web import overview as module
from stream_svt.web.overview import MAX_EVENTS, DatasetNow, Overview, StatusSnapshot
from stream_svt.worker.workload import AppliedWorkload
from tests.support.released import account_of, alert, lifecycle
from tests.support.shop import SPEC, owned, view
from tests.support.status_page import Stub, Topic


async def eventually(probe: Callable[[], Awaitable[Any]], wanted: object) -> None:
    """Wait until something becomes what is wanted."""
    async with asyncio.timeout(10):
        while await probe() != wanted:
            await asyncio.sleep(0.02)


class Show:
    """An overview over a topic in memory."""

    def __init__(self, partitions: int = 1) -> None:
        self.topic = Topic(partitions)
        self.worker = Stub(parse_config(SPEC))
        self.overview = Overview(self.worker, self.topic.read)

    async def ask(self) -> Any:
        return json.loads(await self.overview.answer())

    async def series(self) -> list[str]:
        found = await self.ask()
        return [event["data"]["series"] for event in found["events"] if "series" in event["data"]]


@pytest.fixture
async def show() -> AsyncIterator[Show]:
    show = Show()
    yield show
    await show.overview.close()


async def test_nothing_is_read_before_somebody_asks(show: Show) -> None:
    show.topic.put(alert("a", "one"))
    await asyncio.sleep(0.05)
    assert show.topic.opened == 0
    assert await show.series() == ["one"]
    assert show.topic.opened == 1


async def test_what_is_slow_to_import_is_imported_beside_the_loop(show: Show, monkeypatch) -> None:
    threads: dict[str, int] = {}
    monkeypatch.setattr(module, "import_module", lambda name: threads.update({name: threading.get_ident()}))
    await show.ask()
    assert threads.keys() == {"scipy.special"}
    assert threading.get_ident() not in threads.values()


async def test_an_answer_has_every_budget_and_the_newest_events(show: Show) -> None:
    show.topic.put(lifecycle(EventType.RUN_STARTED, "a", account=account_of(0.2)), alert("a", "one"))
    first = await show.ask()
    assert (first["application"], first["datasets_declared"], first["complete"]) == ("shop", 3, True)
    assert [one["spent"] for one in first["datasets"]] == [0.5, 0.0, 0.0]
    show.topic.put(alert("b", "two", account=account_of(0.9)))
    await eventually(show.series, ["one", "two"])
    assert [one["spent"] for one in (await show.ask())["datasets"]] == [0.5, 0.9, 0.0]
    show.worker.shards = (owned(view("c", spent=0.7)),)
    one = (await show.ask())["datasets"][2]
    assert (one["dataset"], one["spent"], one["source"]) == ("c", 0.7, "state")


async def test_only_the_newest_events_are_kept(show: Show) -> None:
    show.topic.put(*[alert("a", f"s{number}") for number in range(MAX_EVENTS + 50)])
    assert await show.series() == [f"s{number}" for number in range(50, MAX_EVENTS + 50)]


async def test_a_history_that_is_read_partition_by_partition_shows_the_newest_of_all() -> None:
    show = Show(partitions=2)
    for partition in (0, 1):  # the second one is older, and read last
        old, new = (1000 + at - 500 * partition for at in (0, 100))
        events = [alert("a", f"p{partition}-{n}", at=old + n / 10) for n in range(MAX_EVENTS)]
        show.topic.put(*events, alert("a", f"last-{partition}", at=new), partition=partition)
    found = await show.series()
    assert (len(found), found[-1]) == (MAX_EVENTS, "last-0")
    assert not any("1" in name.partition("-")[0] for name in found)
    await show.overview.close()


async def test_what_is_no_event_is_skipped_and_reaches_nobody(show: Show) -> None:
    foreign = alert("a", "two").replace(b'"data":', b'"forged":1,"data":')
    deep, huge = (
        b'{"data":' + b"[" * 60_000,
        alert("a", "two").replace(b'"charge":0', b'"charge":1e300,"x":0'),
    )
    show.topic.put(b"", b"{}", b"\xff\xfe", b'{"id":"\xff"}', b"[" * 70_000, deep, huge)
    show.topic.put(alert("a", "one"), foreign, alert("a", "three"))
    found = await show.series()
    assert {"one", "three"} <= set(found)
    assert b"forged" not in await show.overview.answer()


async def test_reading_ends_a_while_after_the_last_request_and_all_is_forgotten(show, monkeypatch):
    usual = module.IDLE_SECONDS
    show.topic.put(alert("a", "one"))
    assert await show.series() == ["one"]
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    task = show.overview._task
    assert task is not None
    async with asyncio.timeout(5):
        await task
    assert (show.overview._snapshot.events(), show.overview._task) == ([], None)
    monkeypatch.setattr(module, "IDLE_SECONDS", usual)
    assert await show.series() == ["one"]
    assert show.topic.opened == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokerUnavailable("away"), "unreachable"),
        (BrokerError("READ"), "refused"),
        (OSError(), "unreachable"),
    ],
)
async def test_trouble_is_told_and_its_end_too_and_nothing_is_missed(show, monkeypatch, error, reason):
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)

    async def trouble() -> str:
        return (await show.ask())["trouble"]

    show.topic.put(alert("a", "one"))
    assert await trouble() == ""
    show.topic.error = error
    await eventually(trouble, reason)
    show.topic.error = None
    show.topic.put(alert("a", "two"))
    await eventually(trouble, "")
    assert await show.series() == ["one", "two"]


async def test_a_history_that_takes_long_is_said_to(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY_TIMEOUT", 0.01)
    show.topic.endless = True
    assert (await show.ask())["trouble"] == "slow"


async def test_another_specification_is_read_anew(show: Show) -> None:
    assert (await show.ask())["datasets_declared"] == 3
    text = SPEC.replace("names: [a, b, c]", "names: [a, b, c, d]")
    await show.worker.adopt(AppliedWorkload(load_spec(text), Partitioning(4, "murmur2"), (1, "digest")))

    async def declared() -> int:
        return (await show.ask())["datasets_declared"]

    await eventually(declared, 4)


@pytest.mark.parametrize(
    ("records", "asked_before", "least"),
    [
        (1000, False, 10),  # a read returns at most a hundred here
        (0, True, 4),  # one for each dataset
    ],
    ids=["reads", "an answer"],
)
async def test_the_shards_get_their_turn_while_history_is_read_and_an_answer_is_made(
    show, monkeypatch, records, asked_before, least
):
    if asked_before:
        await show.ask()
        monkeypatch.setattr(module, "DATASETS_PER_TURN", 1)
    show.topic.put(*[alert("a", f"s{number}") for number in range(records)])
    turns = 0
    asking = asyncio.create_task(show.ask())
    while not asking.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= least


DAY = 86_400.0
PERIODS = """
application: shop
datasets: [{generate: "day-{date}", from: 2026-01-05, until: 2026-01-07, lateness: 1h, limit: {rho: 0.1},
  unit: one user's day}]
monitors:
  - {name: hot, topic: counts, epsilon: 0.1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


def take(snapshot: StatusSnapshot, *records: bytes) -> StatusSnapshot:
    for record in records:
        snapshot.take(decode(record))
    return snapshot


def snapshot_of(text: str, *records: bytes, complete: bool = False) -> StatusSnapshot:
    return take(StatusSnapshot(load_spec(text), complete=complete), *records)


@pytest.fixture
def snapshot() -> StatusSnapshot:
    return snapshot_of(SPEC)


def of(snapshot: StatusSnapshot, dataset: str, now: float = 0.0, **views: DatasetView) -> DatasetNow:
    (spec,) = [one for one in snapshot.spec.shown if one.name == dataset]
    return snapshot.of(spec, views.get(dataset), now)


def test_committed_books_of_an_owned_shard_win_over_the_events(snapshot: StatusSnapshot) -> None:
    take(snapshot, alert("a", account=account_of(0.3)))
    assert (of(snapshot, "a").source, of(snapshot, "a").spent) == ("alerts", 0.3)
    found = of(snapshot, "a", a=view("a", alerts=7, spent=0.5))
    assert (found.source, found.spent) == ("state", 0.5)
    assert (found.monitors[0].alerts, found.monitors[0].muted) == (7, 2)
    assert of(snapshot, "a").source == "alerts"


def test_what_is_not_known_is_not_called_untouched(snapshot: StatusSnapshot) -> None:
    found = of(snapshot, "a")
    assert found.source == "unknown"
    assert (found.spent, found.guess_spent, found.monitors[0]["state"]) == (None, None, None)
    found = of(snapshot_of(SPEC, complete=True), "a")
    assert (found.source, found.spent, found.monitors[0]["state"]) == ("declaration", 0.0, "idle")


def test_the_outlook_comes_from_the_charges_and_needs_some(snapshot: StatusSnapshot) -> None:
    events = [alert("a", at=day * DAY, account=account_of(0.1 * day + 0.1)) for day in range(8)]
    take(snapshot, *events[:3])
    assert of(snapshot, "a", 2 * DAY).outlook is None
    take(snapshot, *events[3:])
    outlook = of(snapshot, "a", 7 * DAY).outlook
    assert outlook is not None
    assert outlook.expected == pytest.approx(39 * DAY)  # 3.2 left at 0.1 a day
    later = of(snapshot, "a", 8 * DAY).outlook
    assert later is not None
    assert later.expected > outlook.expected  # a day without a charge


def test_the_outlook_is_not_before_max_runs_lets_the_budget_end():
    spec = SPEC.replace("threshold: 5,", "threshold: 5, max_runs: 1 per 30d,")
    events = [alert("a", at=60 * minute, account=account_of(0.1 * minute + 0.1)) for minute in range(8)]
    free, bound = snapshot_of(SPEC, *events), snapshot_of(spec, *events)
    outlook = of(bound, "a", 420).outlook
    assert outlook is not None
    assert outlook.least == outlook.early == outlook.expected == outlook.late
    plain = of(free, "a", 420).outlook
    assert plain is not None
    assert outlook.expected > plain.expected + 30 * DAY


def test_a_guess_is_said_after_epsilon_and_only_of_the_limit_after_rho_and_of_a_period_when_it_is_over():
    pure = of(snapshot_of(SPEC, alert("a", account=account_of(1.0))), "a")
    assert (pure.guess_spent, pure.guess_limit) == (best_guess(1.0, Kind.PURE), best_guess(4.0, Kind.PURE))
    found = of(snapshot_of(PERIODS, complete=True), "day-2026-01-05")
    assert (found.measure, found.guess_spent) == ("rho", None)
    assert found.guess_limit == best_guess(0.1, Kind.ZCDP)
    assert found.ends == 1_767_657_600 + 3600  # 2026-01-06, one hour past midnight, for what comes late
    assert (found.next, found.promise) == (None, None)


def test_of_a_limit_that_renews_the_next_period_and_the_promise_are_told():
    periods = "generate: 'd-{date}', every: 2d, from: 2026-01-05, until: 2026-01-09"
    limited = SPEC.replace("limit: {epsilon: 4}", "limit: {epsilon: 6, per: 4d}").replace(
        "epsilon: 1", "epsilon: 2"
    )
    spec = limited.replace("names: [a, b, c]", periods)
    first, last = (of(snapshot_of(spec, complete=True), f"d-2026-01-0{day}") for day in (5, 7))
    assert (first.next, last.next) == (1_767_744_000, None)
    assert first.promise == last.promise == "any 4 days: at most epsilon 6"
    assert first.limit == 2
