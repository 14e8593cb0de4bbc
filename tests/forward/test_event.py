"""Records become events or they do not, and filters let the right ones pass."""

from __future__ import annotations

import msgspec
import pytest

from stream_svt.forward.app import wrapping
from stream_svt.forward.event import Received, receive, wanted
from stream_svt.monitor.released import EventType
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.forwarding import destination, received, record

HOOK = "webhook: {url: https://example.org/}"


def changed(**fields: object) -> bytes:
    document = msgspec.json.decode(encoded(1, alert()))
    return msgspec.json.encode({**document, **fields})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"id":"\xff"}',
        b"[" * 60_000,
        b'{"data":' + b"[" * 60_000,
        b'{"other":' + b'{"a":' * 60_000,
        changed(time="yesterday"),
        changed(time="2026-01-05T10:00:00"),
        changed(time="0001-01-01T00:00:00+14:00"),
        changed(time="9999-12-31T23:59:59-01:00"),
        changed(time="9999-12-31T23:59:59.999999+00:00"),
        changed(source="/somebody-else/x"),
        changed(data={"dataset": "shop"}),
        changed(id=7),
    ],
)
def test_what_is_no_event_is_told_apart(body):
    bare = receive(record(body, offset=3))
    assert not isinstance(bare, Received)
    assert (bare.body, bare.offset, bare.label, bare.queue_key) == (body, 3, "", "")


@pytest.mark.parametrize("moment", [-1, -(1 << 63), (1 << 63) - 1])
def test_a_record_may_claim_any_moment(moment):
    claimed = record(encoded(1, alert()))
    claimed.timestamp = moment
    assert isinstance(receive(claimed), Received)


@pytest.mark.parametrize("time", ["1970-01-01T00:00:00+00:00", "9999-12-29T23:59:59.999999-00:00"])
def test_whatever_counts_as_an_event_can_be_posted(time, tmp_path):
    event = receive(record(changed(time=time)))
    assert isinstance(event, Received)
    pager = destination(tmp_path, "{name: am, alertmanager: {urls: ['http://a:1']}}")
    assert b"startsAt" in wrapping(pager).wrap(event, event.when).body


def test_an_event_of_a_newer_service_is_read_by_its_attributes_and_passes_only_with_all(tmp_path):
    newer = receive(record(changed(type="io.stream-svt.later.v1", data={"new": [1]})))
    assert isinstance(newer, Received)
    assert newer.queue_key == ""
    assert not wanted(destination(tmp_path, f"{{name: a, {HOOK}}}").config, newer)
    assert wanted(destination(tmp_path, f"{{name: a, types: all, {HOOK}}}").config, newer)


def test_without_filters_alerts_halts_and_exhaustion_pass(tmp_path):
    plain = destination(tmp_path, f"{{name: a, {HOOK}}}").config
    passed = {kind for kind in EventType if wanted(plain, _of(kind))}
    assert passed == {EventType.ALERT, EventType.EXHAUSTED, EventType.RUN_HALTED}


@pytest.mark.parametrize("kind", list(EventType))
def test_every_type_can_be_asked_for_by_its_word(kind, tmp_path):
    word = kind.value.removeprefix("io.stream-svt.").removesuffix(".v1")
    one = destination(tmp_path, f"{{name: a, types: {word}, {HOOK}}}").config
    assert [other for other in EventType if wanted(one, _of(other))] == [kind]


def test_monitors_and_datasets_are_patterns(tmp_path):
    one = destination(
        tmp_path, f"{{name: a, monitors: ['hot-*', slow], datasets: ['week-?'], {HOOK}}}"
    ).config
    for monitor, dataset, passes in [
        ("hot-items", "week-1", True),
        ("slow", "week-2", True),
        ("slower", "week-2", False),
        ("hot-items", "week-12", False),
        ("hot-items", "WEEK-1", False),
    ]:
        assert wanted(one, received(alert(monitor=monitor, dataset=dataset))) is passes


def _of(kind: EventType) -> Received:
    return received(alert() if kind is EventType.ALERT else lifecycle("x"), kind=kind)
