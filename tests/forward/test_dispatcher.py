"""One event's way: attempts, waits, refusals; nothing is dropped, and nothing goes on that must stop."""

from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_svt.forward.app import wrapping
from stream_svt.forward.dispatcher import Dispatcher, Refused
from stream_svt.forward.event import receive
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.retry import Answer, Result
from tests.support.alerts import alert
from tests.support.forwarding import Scripted, destination, received, record

HOOK = "{name: hook, webhook: {url: https://secret.example/T0KEN}%s}"
TWO = "{name: am, alertmanager: {urls: ['http://127.0.0.1:1', 'http://127.0.0.1:2']}%s}"
PARK = ", on_refused: park"


class Parking:
    def __init__(self) -> None:
        self.parked: list[tuple[str, str, str]] = []

    async def park(self, event, destination, reason) -> None:
        self.parked.append((event.label, destination, reason))


class Way:
    """A dispatcher whose receiver follows a script and whose time passes at once."""

    def __init__(self, directory, *answers, settings: str = "", text: str = HOOK) -> None:
        one = destination(directory, text % settings)
        self.posting, self.parking = Scripted(*answers), Parking()
        self.metrics = ForwardMetrics("alerts", [one.name])
        self.waits: list[float] = []
        self.now = 0.0
        self.dispatcher = Dispatcher(
            one,
            wrapping(one),
            self.posting,
            self.parking,
            self.metrics,
            clock=lambda: self.now,
            sleep=self._sleep,
            fraction=lambda: 1.0,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        assert len(self.waits) < 200, "it never ends"
        await asyncio.sleep(0)

    def count(self, name: str, word: str) -> float:
        for family in text_string_to_metric_families(self.metrics.text().decode()):
            for sample in family.samples:
                if sample.name == f"stream_svt_forward_{name}_total" and word in sample.labels.values():
                    return sample.value
        raise AssertionError(word)


async def test_an_event_that_is_taken_at_once_is_posted_once(tmp_path):
    way = Way(tmp_path, Result.ACCEPTED)
    await way.dispatcher.deliver(received())
    assert [url for url, _ in way.posting.posted] == ["https://secret.example/T0KEN"]
    assert (way.waits, way.count("events", "delivered"), way.count("attempts", "accepted")) == ([], 1, 1)


async def test_it_is_posted_until_it_is_taken_each_time_with_the_same_id_and_body(tmp_path):
    failures = [Result.FAILED, Result.TIMEOUT, Result.UNREACHABLE, Result.THROTTLED] * 5
    way = Way(tmp_path, *failures, Result.ACCEPTED, settings=", retry: {first: 1s, most: 8s}")
    await way.dispatcher.deliver(received())
    requests = [request for _, request in way.posting.posted]
    assert len(requests) == 21
    assert len({(request.body, request.headers["webhook-id"]) for request in requests}) == 1
    assert way.waits[:5] == [1, 2, 4, 8, 8]
    assert way.count("attempts", "timeout") == 5
    assert way.dispatcher.retrying == 0


async def test_a_receiver_that_names_a_time_is_not_asked_before_it(tmp_path):
    throttled = Answer(Result.THROTTLED, "status 429", 120.0)
    way = Way(tmp_path, throttled, Result.ACCEPTED)
    await way.dispatcher.deliver(received())
    assert way.waits[0] == 120


async def test_and_neither_for_any_other_event(tmp_path):
    """Negative control: without a time in its answer, another event is posted at once."""
    for wait, asked in ((30.0, True), (0.0, False)):
        way = Way(tmp_path, Answer(Result.THROTTLED, "status 429", wait), Result.ACCEPTED)
        first = asyncio.create_task(way.dispatcher.deliver(received()))
        while not way.posting.posted:
            await asyncio.sleep(0)
        before = len(way.waits)
        second = asyncio.create_task(way.dispatcher.deliver(received(alert(dataset="other"))))
        for _ in range(3):
            await asyncio.sleep(0)
        assert (30.0 in way.waits[before:]) is asked
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


async def test_an_event_that_is_refused_stops_the_destination_and_is_named(tmp_path, caplog):
    way = Way(tmp_path, Answer(Result.REFUSED, "status 422"))
    with pytest.raises(
        Refused, match=r"'hook' refused event 'shop-1' .* \(status 422\) and stopped: nothing is lost"
    ):
        await way.dispatcher.deliver(received())
    assert way.parking.parked == []
    assert "event=forward_refused" in caplog.text
    assert way.count("attempts", "refused") == 1


async def test_or_it_is_parked_and_the_way_is_free(tmp_path):
    way = Way(tmp_path, Answer(Result.REFUSED, "status 422"), settings=PARK)
    await way.dispatcher.deliver(received())
    assert way.parking.parked == [("shop-1", "hook", "status 422")]
    assert (way.count("events", "parked"), way.count("events", "delivered")) == (1, 0)


async def test_a_record_that_is_no_event_is_never_posted(tmp_path):
    forged = receive(record(b'{"alert": true}'))
    way = Way(tmp_path, Result.ACCEPTED, settings=PARK)
    await way.dispatcher.deliver(forged)
    assert way.parking.parked == [("", "hook", "no event of stream-svt")]
    strict = Way(tmp_path, Result.ACCEPTED)
    with pytest.raises(Refused, match="no event of stream-svt"):
        await strict.dispatcher.deliver(forged)
    assert way.posting.posted == strict.posting.posted == []


async def test_patience_has_an_end_only_where_one_is_set(tmp_path):
    way = Way(tmp_path, Answer(Result.FAILED, "status 500"), settings=f"{PARK}, retry: {{give_up_after: 5m}}")
    await way.dispatcher.deliver(received())
    assert way.parking.parked == [("shop-1", "hook", "status 500")]
    assert 300 <= way.now < 600
    endless = Way(tmp_path, Answer(Result.FAILED, "status 500"), settings=PARK)
    with pytest.raises(AssertionError, match="it never ends"):
        await endless.dispatcher.deliver(received())


@pytest.mark.parametrize(
    ("answers", "posts"),
    [
        ([Result.UNREACHABLE, Result.ACCEPTED], 2),  # one of two is enough
        ([Result.REFUSED, Result.ACCEPTED], 2),
        ([Result.REFUSED, Result.UNREACHABLE, Result.ACCEPTED], 4),  # the other may take it later
        ([Result.UNREACHABLE, Result.UNREACHABLE, Result.FAILED, Result.ACCEPTED], 4),
    ],
)
async def test_of_several_alertmanagers_one_has_to_take_it(tmp_path, answers, posts):
    way = Way(tmp_path, *answers, text=TWO)
    await way.dispatcher.deliver(received())
    assert len(way.posting.posted) == posts
    assert way.count("events", "delivered") == 1


async def test_refused_by_all_of_them_is_refused(tmp_path):
    with pytest.raises(Refused):
        await Way(tmp_path, Result.REFUSED, text=TWO).dispatcher.deliver(received())


async def test_no_more_requests_are_under_way_than_allowed_and_waiting_takes_no_place(tmp_path):
    most = 0

    class Slow(Scripted):
        under_way = 0

        async def post(self, url, request):
            nonlocal most
            Slow.under_way += 1
            most = max(most, Slow.under_way)
            for _ in range(5):
                await asyncio.sleep(0)
            Slow.under_way -= 1
            return await super().post(url, request)

    way = Way(tmp_path, Result.ACCEPTED, settings=", concurrency: 3")
    way.dispatcher._posting = Slow(*[Result.FAILED] * 10, Result.ACCEPTED)
    events = [received(alert(dataset=f"d{number}")) for number in range(12)]
    await asyncio.gather(*(way.dispatcher.deliver(event) for event in events))
    assert most == 3


async def test_the_log_names_events_and_never_an_address_a_key_or_what_was_answered(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    way = Way(tmp_path, *[Answer(Result.FAILED, "status 500")] * 45, Result.ACCEPTED)
    await way.dispatcher.deliver(received())
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("stream_svt.forward")]
    assert [line.split()[0] for line in lines] == ["event=forward_failed"] * 3 + ["event=forward_recovered"]
    assert "T0KEN" not in caplog.text
    assert "secret.example" not in caplog.text


async def test_what_is_cancelled_while_it_waits_is_not_counted_as_retrying(tmp_path):
    way = Way(tmp_path, Result.FAILED)
    way.dispatcher._sleep = asyncio.sleep
    task = asyncio.create_task(way.dispatcher.deliver(received()))
    while not way.dispatcher.retrying:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert way.dispatcher.retrying == 0
