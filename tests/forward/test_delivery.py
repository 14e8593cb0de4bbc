"""One event's way: attempts, waits, refusals; nothing is dropped, and nothing goes on that must stop."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from stream_svt.forward.delivery import (
    DESTINATION_HEADER,
    PLACE_HEADER,
    REASON_HEADER,
    Answer,
    Delivery,
    DeliveryRefused,
)
from stream_svt.forward.event import receive
from stream_svt.forward.metrics import ForwardMetrics, Result
from tests.support.alerts import alert
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


async def test_a_clock_that_is_late_makes_no_delay_negative(tmp_path):
    way = Way(tmp_path, Result.ACCEPTED)
    later = replace(received(), when=datetime.now(UTC) + timedelta(hours=1))
    await way.delivery.deliver(later)
    assert way.count("delay_seconds_sum", "hook") == 0


async def test_chance_shortens_a_wait_to_the_half_at_most(tmp_path, waits, monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda least, most: least)
    await Way(tmp_path, FAILED, FAILED, Result.ACCEPTED).delivery.deliver(received())
    assert waits == [0.25, 0.5]


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


async def test_an_event_that_is_refused_stops_the_destination_and_is_named(tmp_path, caplog):
    way = Way(tmp_path, Answer(Result.REFUSED, "status 422"))
    message = r"'hook' refused event 'shop-1' .* \(status 422\) and stopped: nothing is lost"
    with pytest.raises(DeliveryRefused, match=message):
        await way.delivery.deliver(received())
    assert way.parked == []
    assert "event=forward_refused" in caplog.text


async def test_or_it_is_parked_and_the_way_is_free(tmp_path):
    way = Way(tmp_path, Answer(Result.REFUSED, "status 422"), settings=PARK)
    await way.delivery.deliver(received())
    assert way.parked == [(received().body, b"hook", b"status 422")]
    assert (way.count("events_total", "parked"), way.count("events_total", "delivered")) == (1, 0)


async def test_a_record_that_is_no_event_is_never_posted(tmp_path):
    forged = receive(b'{"alert": true}', b"shop")
    way, strict = Way(tmp_path, Result.ACCEPTED, settings=PARK), Way(tmp_path, Result.ACCEPTED)
    await way.delivery.deliver(forged)
    assert way.parked == [(forged.body, b"hook", b"no event of stream-svt")]
    with pytest.raises(DeliveryRefused, match="no event of stream-svt"):
        await strict.delivery.deliver(forged)
    assert way.posting.posted == strict.posting.posted == []


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
        ([Result.REFUSED], None),
    ],
)
async def test_of_several_alertmanagers_one_has_to_take_it(tmp_path, waits, answers, posts):
    way = Way(tmp_path, *answers, text=TWO)
    if posts is None:
        with pytest.raises(DeliveryRefused):
            await way.delivery.deliver(received())
        return
    await way.delivery.deliver(received())
    assert len(way.posting.posted) == posts


async def test_no_more_requests_are_under_way_than_allowed_and_waiting_takes_no_place(tmp_path, waits):
    under_way: list[int] = [0]

    class Slow(Scripted):
        async def post(self, url, request):
            under_way.append(under_way[-1] + 1)
            for _ in range(5):
                await asyncio.sleep(0)
            under_way.append(under_way[-1] - 1)
            return await super().post(url, request)

    way = Way(tmp_path, Result.ACCEPTED, settings=", concurrency: 3")
    way.delivery._post = Slow(*[Result.FAILED] * 10, Result.ACCEPTED).post
    events = [received(alert(dataset=f"d{number}")) for number in range(12)]
    await asyncio.gather(*(way.delivery.deliver(event) for event in events))
    assert max(under_way) == 3


async def test_the_log_names_events_and_never_an_address_a_key_or_what_was_answered(tmp_path, waits, caplog):
    caplog.set_level(logging.DEBUG)
    way = Way(tmp_path, *[FAILED] * 45, Result.ACCEPTED)
    await way.delivery.deliver(received())
    lines = [one.getMessage().split()[0] for one in caplog.records if one.name != "asyncio"]
    assert lines == ["event=forward_failed"] * 3
    assert "T0KEN" not in caplog.text
    assert "secret.example" not in caplog.text
