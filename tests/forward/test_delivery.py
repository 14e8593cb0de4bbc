"""An event's way: order, attempts, waits, refusals; nothing is dropped or passed over, and gauges show what waits."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from stream_svt.errors import StreamSvtError
from stream_svt.forward.delivery import (
    DESTINATION_HEADER,
    PLACE_HEADER,
    REASON_HEADER,
    Answer,
    Delivery,
    Progress,
    Route,
)
from stream_svt.forward.event import receive
from stream_svt.forward.metrics import ForwardMetrics, Result
from tests.support.alerts import alert, encoded
from tests.support.forwarding import Scripted, configured, received, scraped

HOOK = "{name: hook, webhook: {url: https://secret.example/T0KEN}%s}"
TWO = "{name: am, alertmanager: {urls: ['http://127.0.0.1:1', 'http://127.0.0.1:2']}%s}"
PARK = ", on_refused: park"
FAILED = Answer(Result.FAILED, "status 500")


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """Let time pass at once wherever somebody sleeps; returns for how long."""
    found: list[float] = []
    sleep, clock = asyncio.sleep, time.monotonic

    async def pass_at_once(seconds: float) -> None:
        if seconds:
            found.append(seconds)
        assert len(found) < 200, "it never ends"
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pass_at_once)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + sum(found))
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    return found


class Way:
    """A delivery whose receiver follows a script; notes what is parked."""

    def __init__(self, directory, *answers, settings: str = "", text: str = HOOK) -> None:
        config = configured(directory, f"[{text % settings}]")
        one = config.destinations[0]
        self.posting, self.parked = Scripted(*answers), []
        self.metrics = ForwardMetrics("alerts", [one.name])
        self.delivery = Delivery(config, one, self.posting.post, self.metrics, self)

    async def send_and_wait(self, topic, body, key, headers) -> None:
        assert (topic, key) == ("retail-watch.alerts.parked", b"shop")
        told = dict(headers)
        assert told[PLACE_HEADER].startswith(b"retail-watch.alerts/0/")
        self.parked.append((body, told[DESTINATION_HEADER], told[REASON_HEADER]))

    def count(self, name: str, word: str) -> float:
        (value,) = [
            value for key, value in scraped(self.metrics).items() if key[0].endswith(name) and word in key
        ]
        return value


async def test_an_event_is_posted_until_it_is_taken_each_time_with_the_same_id_and_body(tmp_path, waits):
    failures = [Result.FAILED, Result.TIMEOUT, Result.UNREACHABLE, Result.THROTTLED] * 5
    way = Way(tmp_path, *failures, Result.ACCEPTED, settings=", retry: {first: 1s, most: 8s}")
    await way.delivery.deliver(received())
    assert {url for url, _ in way.posting.posted} == {"https://secret.example/T0KEN"}
    requests = Counter((request.body, request.headers["webhook-id"]) for _, request in way.posting.posted)
    assert list(requests.values()) == [21]
    assert waits[:5] == [1, 2, 4, 8, 8]
    assert (way.count("attempts_total", "timeout"), way.count("events_total", "delivered")) == (5, 1)
    assert way.count("delay_seconds_sum", "hook") > 3600


async def test_chance_halves_a_wait_at_most_and_a_clock_that_is_late_makes_no_delay_negative(
    tmp_path, waits, monkeypatch
):
    monkeypatch.setattr(random, "uniform", lambda least, most: least)
    way = Way(tmp_path, FAILED, FAILED, Result.ACCEPTED)
    await way.delivery.deliver(replace(received(), when=datetime.now(UTC) + timedelta(hours=1)))
    assert waits == [0.25, 0.5]
    assert way.count("delay_seconds_sum", "hook") == 0


@pytest.mark.parametrize("asked", [30.0, 0.0])
async def test_a_receiver_that_names_a_time_is_not_asked_before_it_for_any_event(tmp_path, waits, asked):
    """Negative control: without a time in its answer, another event is posted at once."""
    way = Way(tmp_path, Answer(Result.THROTTLED, "status 429", asked), Result.ACCEPTED)
    first = asyncio.create_task(way.delivery.deliver(received()))
    while not way.posting.posted:
        await asyncio.sleep(0)
    await way.delivery.deliver(received(alert(dataset="other")))
    await first
    assert any(seconds > 29 for seconds in waits) is bool(asked)


@pytest.mark.parametrize("settings", ["", PARK], ids=["stop", "park"])
@pytest.mark.parametrize(
    ("record", "reason", "posts"),
    [(received(), "status 422", 1), (receive(b'{"alert": true}', b"shop"), "no event of stream-svt", 0)],
    ids=["refused", "no event"],
)
async def test_what_is_refused_stops_the_destination_and_is_named_or_it_is_parked_and_the_way_is_free(
    tmp_path, caplog, record, reason, posts, settings
):
    """A record that is no event is never posted."""
    way = Way(tmp_path, Answer(Result.REFUSED, "status 422"), settings=settings)
    if settings:
        await way.delivery.deliver(record)
    else:
        message = rf"'hook' refused event '.*' .* \({reason}\) and stopped: nothing is lost"
        with pytest.raises(StreamSvtError, match=message):
            await way.delivery.deliver(record)
    assert way.parked == [(record.body, b"hook", reason.encode())] * bool(settings)
    assert (way.count("events_total", "parked"), way.count("events_total", "delivered")) == (
        bool(settings),
        0,
    )
    assert "event=forward_refused" in caplog.text
    assert len(way.posting.posted) == posts


async def test_patience_has_an_end_only_where_one_is_set(tmp_path, waits):
    endless = Way(tmp_path, FAILED, settings=PARK)
    with pytest.raises(AssertionError, match="it never ends"):
        await endless.delivery.deliver(received())
    waits.clear()
    way = Way(tmp_path, FAILED, settings=f"{PARK}, retry: {{give_up_after: 5m}}")
    await way.delivery.deliver(received())
    assert way.parked == [(received().body, b"hook", b"status 500")]
    assert 300 <= sum(waits) < 600


@pytest.mark.parametrize(
    ("answers", "posts"),
    [
        ([Result.UNREACHABLE, Result.ACCEPTED], 2),  # one of two is enough
        ([Result.REFUSED, Result.ACCEPTED], 2),
        ([Result.REFUSED, Result.UNREACHABLE, Result.ACCEPTED], 4),  # the other may take it later
        ([Result.UNREACHABLE, Result.UNREACHABLE, Result.FAILED, Result.ACCEPTED], 4),
    ],
)
async def test_of_several_alertmanagers_one_has_to_take_it(tmp_path, waits, answers, posts):
    way = Way(tmp_path, *answers, text=TWO)
    await way.delivery.deliver(received())
    assert len(way.posting.posted) == posts


async def test_no_more_requests_are_under_way_than_allowed_and_waiting_takes_no_place(tmp_path, waits):
    way = Way(tmp_path, *[Result.FAILED] * 10, Result.ACCEPTED, settings=", concurrency: 3")
    await asyncio.gather(*(way.delivery.deliver(received()) for _ in range(12)))
    assert way.posting.most == 3


async def test_the_log_names_events_and_never_an_address_a_key_or_what_was_answered(tmp_path, waits, caplog):
    caplog.set_level(logging.DEBUG)
    way = Way(tmp_path, *[FAILED] * 45, Result.ACCEPTED)
    await way.delivery.deliver(received())
    lines = [one.getMessage().split()[0] for one in caplog.records if one.name != "asyncio"]
    assert lines == ["event=forward_failed"] * 3
    assert "T0KEN" not in caplog.text
    assert "secret.example" not in caplog.text


# Order, and what may be committed

PLACE = TopicPartition("retail-watch.alerts", 0)


class Desk:
    """A route whose events are delivered when the test says so; offset 7 never is."""

    def __init__(self, directory) -> None:
        self.under_way: list[int] = []
        self.delivered: list[int] = []
        self.gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.progress: dict[int, Progress] = defaultdict(lambda: Progress(0))
        config = configured(directory, "[{name: pager, webhook: {url: 'http://127.0.0.1:1/'}}]")
        self.route = Route(config, SimpleNamespace(destination=config.destinations[0], deliver=self.deliver))

    def put(self, offset: int, dataset: str, partition: int = 0) -> None:
        body = encoded(offset, alert(dataset=dataset))
        self.route.put(receive(body, b"shop", partition, offset), self.progress[partition])

    async def deliver(self, one) -> None:
        self.under_way.append(one.offset)
        try:
            await self.gates[one.offset].wait()
        finally:
            self.under_way.remove(one.offset)
        if one.offset == 7:
            raise ValueError(7)
        self.delivered.append(one.offset)

    async def let(self, *offsets: int) -> None:
        for offset in offsets:
            self.gates[offset].set()
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def route(desk) -> Route:
    return desk.route


async def test_events_of_one_dataset_wait_for_each_other_and_others_do_not(desk):
    for one in ((0, "a"), (1, "a"), (2, "b"), (3, "a"), (0, "a", 1)):
        desk.put(*one)
    await desk.let()
    assert sorted(desk.under_way) == [0, 0, 2]
    await desk.let(2, 1, 3)
    assert desk.delivered == [2]
    assert desk.progress[0].next == 0
    await desk.let(0)
    assert sorted(desk.delivered) == [0, 0, 1, 2, 3]
    assert [offset for offset in desk.delivered if offset in {1, 3}] == [1, 3]
    assert desk.progress[0].next == 4


async def test_what_delivery_raises_is_kept_and_what_waits_behind_it_stays(desk):
    desk.put(7, "a")
    desk.put(8, "a")
    await desk.let(8, 7)
    desk.put(9, "b")
    await desk.let(9)
    assert (str(desk.route._failure), desk.delivered, desk.progress[0].next) == ("7", [], 7)


async def test_draining_waits_for_what_ends_in_time_and_lets_go_of_the_rest(desk):
    for one in ((0, "a"), (1, "b"), (2, "b")):
        desk.put(*one)
    await desk.let()
    draining = asyncio.create_task(desk.route.drain(0.2))
    await desk.let(0)
    await draining
    assert (desk.delivered, desk.under_way, desk.route._failure) == ([0], [], None)
    assert desk.progress[0].next == 1
    desk.put(1, "b")
    await desk.let(1)
    assert desk.delivered == [0, 1]


# What is read, and what the gauges show


def consumer(records=(), polled=lambda place: 0, places=frozenset({PLACE}), **more) -> SimpleNamespace:
    async def getmany(**options):
        return {PLACE: list(records)}

    async def position(place) -> int:
        return 5

    return SimpleNamespace(
        getmany=getmany,
        position=position,
        assignment=lambda: set(places),
        last_poll_timestamp=polled,
        last_stable_offset=lambda place: 8,
    )


@pytest.mark.parametrize("joined", [True, False])
async def test_what_is_read_while_partitions_are_given_away_is_left_to_whoever_gets_them(route, joined):
    """Negative control: a member takes it."""
    route._consumer = consumer([SimpleNamespace(value=encoded(1, alert()), key=b"shop", offset=4)])
    route.joined = joined
    await route._read()
    assert [list(progress.waiting) for progress in route._progress.values()] == [[4]] * joined
    await route.drain(0)


async def test_gauges_show_what_waits_and_the_lag_of_one_s_own_partitions(route):
    made = ForwardMetrics("retail.alerts", ["pager"])
    route._consumer, route.joined = consumer(), True
    route._progress[PLACE] = Progress(1)
    route.put(received(), route._progress[PLACE])
    found = scraped(made, route.gauges())
    assert found["stream_svt_forward_oldest_waiting_seconds", "pager"] > 3600
    for name, value in {"waiting_events": 1, "partitions": 1, "stopped": 0}.items():
        assert found[f"stream_svt_forward_{name}", "pager"] == value
    assert found["stream_svt_forward_lag_records", "pager", "0"] == 7
    route.joined = False
    assert ("stream_svt_forward_lag_records", "pager", "0") not in scraped(made, route.gauges())
    await route.drain(0)


async def test_the_partition_that_waits_longest_tells_when_the_brokers_last_answered(route):
    def noted(answered: dict[str, int | None]) -> float:
        route._consumer = consumer(polled=answered.get, places=answered)
        route._note_poll()
        return route._polled

    assert noted({}) == 0  # in no group
    assert noted({"p": None, "q": 5_000}) == 0
    assert noted({"p": 7_000, "q": 5_000}) == 5
    # A partition that was just given to it does not turn the time back.
    assert noted({"p": None, "q": 9_000}) == 5
    route.joined = True
    assert noted({}) >= time.time() - 5  # a member without partitions is fine
