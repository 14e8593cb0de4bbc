"""Delivery of events: order, attempts, waits and refusals; no event is dropped, and gauges count undelivered ones."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from stream_svt.errors import StreamSvtError
from stream_svt.forward import delivery
from stream_svt.forward.delivery import (
    DESTINATION_HEADER,
    POSITION_HEADER,
    REASON_HEADER,
    Answer,
    Progress,
    Route,
)
from stream_svt.forward.metrics import ForwardMetrics, Result
from stream_svt.kafka.clients import BrokerUnavailable
from tests.support.alerts import alert, encoded
from tests.support.forwarding import Scripted, configured, record_of, scraped

HOOK = "{name: hook, webhook: {url: https://secret.example/T0KEN}%s}"
TWO = "{name: am, alertmanager: {urls: ['http://127.0.0.1:1', 'http://127.0.0.1:2']}%s}"
PARK = ", on_refused: park"
ALERT = record_of(encoded(1, alert()))
FAILED = Answer(Result.FAILED, "status 500")


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """Replace each sleep by a step of the clock; return the lengths of the sleeps."""
    slept: list[float] = []
    sleep, clock = asyncio.sleep, time.monotonic

    async def step(seconds: float) -> None:
        if seconds:
            slept.append(seconds)
        assert len(slept) < 200, "it never ends"
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", step)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + sum(slept))
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    return slept


class OneDestination:
    """A delivery to a receiver with scripted answers; records what is parked."""

    def __init__(self, directory, *answers, settings: str = "", text: str = HOOK) -> None:
        config = configured(directory, f"[{text % settings}]")
        one = config.destinations[0]
        self.posting, self.parked = Scripted(*answers), []
        self.metrics = ForwardMetrics("alerts", [one.name])
        self.route = Route(config, one, self.posting.post, self.metrics, self)

    async def send_and_wait(self, topic, body, key, headers) -> None:
        assert (topic, key) == ("retail-watch.alerts.parked", b"shop")
        values = dict(headers)
        assert values[POSITION_HEADER].startswith(b"retail-watch.alerts/0/")
        self.parked.append((body, values[DESTINATION_HEADER], values[REASON_HEADER]))

    def count(self, name: str, word: str) -> float:
        return next(n for key, n in scraped(self.metrics).items() if key[0].endswith(name) and word in key)


async def test_an_event_is_posted_until_it_is_accepted_each_time_with_the_same_id_and_body(tmp_path, waits):
    failures = [Result.FAILED, Result.TIMEOUT, Result.UNREACHABLE, Result.THROTTLED] * 5
    target = OneDestination(tmp_path, *failures, Result.ACCEPTED, settings=", retry: {first: 1s, most: 8s}")
    await target.route.deliver(*ALERT)
    assert {url for url, _ in target.posting.posted} == {"https://secret.example/T0KEN"}
    requests = Counter((request.body, request.headers["webhook-id"]) for _, request in target.posting.posted)
    assert list(requests.values()) == [21]
    assert waits[:5] == [1, 2, 4, 8, 8]
    assert (target.count("attempts_total", "timeout"), target.count("events_total", "delivered")) == (5, 1)
    assert target.count("delay_seconds_sum", "hook") > 3600


async def test_waits_are_randomly_shortened_to_half_at_most_and_delays_are_never_negative(
    tmp_path, waits, monkeypatch
):
    monkeypatch.setattr(random, "uniform", lambda least, most: least)
    target = OneDestination(tmp_path, FAILED, FAILED, Result.ACCEPTED)
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    await target.route.deliver(*record_of(encoded(1, alert(), time=ahead)))
    assert waits == [0.25, 0.5]
    assert target.count("delay_seconds_sum", "hook") == 0


@pytest.mark.parametrize("asked", [30.0, 0.0])
async def test_retry_after_delays_the_requests_of_all_events(tmp_path, waits, asked):
    """Negative control: without Retry-After another event is posted at once."""
    target = OneDestination(tmp_path, Answer(Result.THROTTLED, "status 429", asked), Result.ACCEPTED)
    first = asyncio.create_task(target.route.deliver(*ALERT))
    while not target.posting.posted:
        await asyncio.sleep(0)
    await target.route.deliver(*record_of(encoded(1, alert(dataset="other"))))
    await first
    assert any(seconds > 29 for seconds in waits) is bool(asked)


@pytest.mark.parametrize("settings", ["", PARK], ids=["stop", "park"])
@pytest.mark.parametrize(
    ("body", "reason", "posts"),
    [(encoded(1, alert()), "status 422", 1), (b'{"alert": true}', "no event of stream-svt", 0)],
    ids=["refused", "no event"],
)
async def test_a_refused_record_stops_the_destination_or_is_parked(
    tmp_path, caplog, body, reason, posts, settings
):
    """A record that is not an event is never posted."""
    target = OneDestination(tmp_path, Answer(Result.REFUSED, "status 422"), settings=settings)
    if settings:
        await target.route.deliver(*record_of(body))
    else:
        message = rf"'hook' refused event '.*' .* \({reason}\) and stopped; no event is lost"
        with pytest.raises(StreamSvtError, match=message):
            await target.route.deliver(*record_of(body))
    assert target.parked == [(body, b"hook", reason.encode())] * bool(settings)
    counts = [target.count("events_total", outcome) for outcome in ("parked", "delivered")]
    assert counts == [bool(settings), 0]
    assert "event=forward_refused" in caplog.text
    assert len(target.posting.posted) == posts


async def test_attempts_end_only_with_give_up_after(tmp_path, waits):
    endless = OneDestination(tmp_path, FAILED, settings=PARK)
    with pytest.raises(AssertionError, match="it never ends"):
        await endless.route.deliver(*ALERT)
    waits.clear()
    target = OneDestination(tmp_path, FAILED, settings=f"{PARK}, retry: {{give_up_after: 5m}}")
    await target.route.deliver(*ALERT)
    assert target.parked == [(ALERT[0].value, b"hook", b"status 500")]
    assert 300 <= sum(waits) < 600


@pytest.mark.parametrize(
    ("answers", "posts"),
    [
        ([Result.UNREACHABLE, Result.ACCEPTED], 2),  # one of two is enough
        ([Result.REFUSED, Result.ACCEPTED], 2),
        ([Result.REFUSED, Result.UNREACHABLE, Result.ACCEPTED], 4),  # the other may accept it later
        ([Result.UNREACHABLE, Result.UNREACHABLE, Result.FAILED, Result.ACCEPTED], 4),
    ],
)
async def test_one_of_several_alertmanagers_has_to_accept_an_event(tmp_path, waits, answers, posts):
    target = OneDestination(tmp_path, *answers, text=TWO)
    await target.route.deliver(*ALERT)
    assert len(target.posting.posted) == posts


async def test_requests_are_limited_by_concurrency_and_waits_between_attempts_do_not_count(tmp_path, waits):
    target = OneDestination(tmp_path, *[Result.FAILED] * 10, Result.ACCEPTED, settings=", concurrency: 3")
    await asyncio.gather(*(target.route.deliver(*ALERT) for _ in range(12)))
    assert target.posting.peak == 3


async def test_the_log_has_events_and_no_address_key_or_text_of_an_answer(tmp_path, waits, caplog):
    caplog.set_level(logging.DEBUG)
    target = OneDestination(tmp_path, *[FAILED] * 45, Result.ACCEPTED)
    await target.route.deliver(*ALERT)
    lines = [one.getMessage().split()[0] for one in caplog.records if one.name != "asyncio"]
    assert lines == ["event=forward_failed"] * 3
    assert "T0KEN" not in caplog.text
    assert "secret.example" not in caplog.text


# Order, and what may be committed

PARTITION = TopicPartition("retail-watch.alerts", 0)


class Scene:
    """A route whose deliveries end when the test lets them; that of offset 7 fails."""

    def __init__(self, directory) -> None:
        self.open: list[int] = []
        self.delivered: list[int] = []
        self.gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.progress: dict[int, Progress] = defaultdict(lambda: Progress(0))
        config = configured(directory, "[{name: pager, webhook: {url: 'http://127.0.0.1:1/'}}]")
        self.route = Route(config, config.destinations[0], None, ForwardMetrics("alerts", ["pager"]))
        self.route.deliver = self.deliver

    def schedule(self, offset: int, dataset: str, partition: int = 0) -> None:
        body = encoded(offset + 1, alert(dataset=dataset))
        self.route.schedule(*record_of(body, partition, offset), self.progress[partition])

    async def deliver(self, one, _) -> None:
        self.open.append(one.offset)
        try:
            await self.gates[one.offset].wait()
        finally:
            self.open.remove(one.offset)
        if one.offset == 7:
            raise ValueError(7)
        self.delivered.append(one.offset)

    async def finish(self, *offsets: int) -> None:
        for offset in offsets:
            self.gates[offset].set()
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


async def test_events_of_one_dataset_are_delivered_in_order_and_datasets_do_not_wait_for_each_other(scene):
    for one in ((0, "a"), (1, "a"), (2, "b"), (3, "a"), (0, "a", 1)):
        scene.schedule(*one)
    await scene.finish()
    assert sorted(scene.open) == [0, 0, 2]
    await scene.finish(2, 1, 3)
    assert scene.delivered == [2]
    assert scene.progress[0].next == 0
    await scene.finish(0)
    assert sorted(scene.delivered) == [0, 0, 1, 2, 3]
    assert [offset for offset in scene.delivered if offset in {1, 3}] == [1, 3]
    assert scene.progress[0].next == 4


async def test_after_an_error_of_a_delivery_no_event_is_delivered_or_committed(scene):
    scene.schedule(7, "a")
    scene.schedule(8, "a")
    await scene.finish(8, 7)
    scene.schedule(9, "b")
    await scene.finish(9)
    assert (str(scene.route._failure), scene.delivered, scene.progress[0].next) == ("7", [], 7)


async def test_a_revocation_waits_for_deliveries_and_cancels_those_that_are_late(scene, monkeypatch):
    monkeypatch.setattr(delivery, "HAND_OVER", 0.2)
    for one in ((0, "a"), (1, "b"), (2, "b")):
        scene.schedule(*one)
    await scene.finish()
    revoking = asyncio.create_task(scene.route.on_partitions_revoked({PARTITION}))
    await scene.finish()
    await scene.finish(0)
    await revoking
    assert (scene.delivered, scene.open, scene.route._failure) == ([0], [], None)
    assert scene.progress[0].next == 1
    scene.schedule(1, "b")
    await scene.finish(1)
    assert scene.delivered == [0, 1]


# Reading and gauges


def consumer(records=(), polled=lambda tp: 0, partitions=frozenset({PARTITION}), **more) -> SimpleNamespace:
    async def getmany(**options):
        return {PARTITION: list(records)} if records else {}

    async def position(tp) -> int:
        return 5

    parts = {
        "getmany": getmany,
        "position": position,
        "assignment": lambda: set(partitions),
        "last_poll_timestamp": polled,
        "last_stable_offset": lambda tp: 8,
    }
    return SimpleNamespace(**parts | more)


@pytest.mark.parametrize("joined", [True, False])
async def test_records_read_during_a_revocation_are_left_to_the_next_owner(scene, joined):
    """Negative control: a member of the group delivers them."""
    route = scene.route
    route._consumer = consumer([record_of(encoded(1, alert()), offset=4)[0]])
    route.joined = joined
    await route._read()
    assert [list(progress.undelivered) for progress in route._progress.values()] == [[4]] * joined


@pytest.mark.parametrize(("fetched", "committed"), [(8, {PARTITION: 5}), (None, {})])
async def test_the_position_of_a_partition_without_a_record_is_committed(scene, fetched, committed):
    """A takeover writes the end of a transaction only; without the position retention would seem to delete events."""
    route, found = scene.route, []

    async def commit(offsets) -> None:
        found.append(offsets)

    route._consumer = consumer(commit=commit, last_stable_offset=lambda tp: fetched)
    route.joined = True
    await route._read()
    await route._commit()
    assert found == [committed] * bool(committed)


async def test_gauges_show_undelivered_events_and_the_lag_of_assigned_partitions(scene):
    route = scene.route
    made = ForwardMetrics("retail.alerts", ["pager"])
    route._consumer, route.joined = consumer(), True
    route._progress[PARTITION] = Progress(1)
    route.schedule(*ALERT, route._progress[PARTITION])
    found = scraped(made, route.gauges())
    assert found["stream_svt_forward_oldest_waiting_seconds", "pager"] > 3600
    for name, value in {"waiting_events": 1, "partitions": 1, "stopped": 0}.items():
        assert found[f"stream_svt_forward_{name}", "pager"] == value
    assert found["stream_svt_forward_lag_records", "pager", "0"] == 7
    route.joined = False
    assert ("stream_svt_forward_lag_records", "pager", "0") not in scraped(made, route.gauges())


async def test_the_last_poll_is_that_of_the_partition_with_the_oldest_answer(scene):
    route = scene.route

    def noted(answered: dict[str, int | None]) -> float:
        route._consumer = consumer(polled=answered.get, partitions=answered)
        route._note_poll()
        return route._polled

    assert noted({}) == 0  # in no group
    assert noted({"p": None, "q": 5_000}) == 0
    assert noted({"p": 7_000, "q": 5_000}) == 5
    # A new partition does not turn the time back.
    assert noted({"p": None, "q": 9_000}) == 5
    route.joined = True
    assert noted({}) >= time.time() - 5  # a member without partitions counts as answered


async def test_an_assignment_whose_positions_cannot_be_looked_up_ends_the_membership(scene):
    """A listener's error is only logged by aiokafka: records would be read and delivered to nobody."""

    async def committed(tp) -> None:
        raise TimeoutError

    scene.route._consumer = consumer(committed=committed)
    await scene.route.on_partitions_assigned({PARTITION})
    assert isinstance(scene.route._failure, BrokerUnavailable)
    assert not scene.route.joined
