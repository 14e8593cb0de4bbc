"""A test of the wiring: an alert costs budget, and whether the pager rings should be known before the first."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import msgspec

from stream_svt.forward.app import wrapping
from stream_svt.forward.config import ForwardConfig
from stream_svt.forward.event import Received
from stream_svt.forward.posting import HttpPosting
from stream_svt.forward.retry import Answer
from stream_svt.monitor.released import Envelope, Lifecycle

TYPE = "io.stream-svt.forward.test.v1"
"""CloudEvents type of a test; no service releases it."""


async def send_test(config: ForwardConfig) -> list[tuple[str, Answer]]:
    """Post a test event to each address of each destination, once, whatever their filters."""
    event = trial_event(config.topic, datetime.now(UTC))
    answers = []
    for destination in config.destinations:
        posting = HttpPosting(destination)
        try:
            for number, url in enumerate(destination.urls, 1):
                request = wrapping(destination).wrap(event, datetime.now(UTC))
                name = destination.name if len(destination.urls) == 1 else f"{destination.name} {number}"
                answers.append((name, await posting.post(url, request)))
        finally:
            await posting.close()
    return answers


def trial_event(topic: str, now: datetime) -> Received:
    """Return an event that says it is a test."""
    envelope = {
        "specversion": "1.0",
        "id": f"test/{uuid.uuid4()}",
        "source": f"/stream-svt/{topic}",
        "type": TYPE,
        "subject": "test",
        "time": now.isoformat(),
        "datacontenttype": "application/json",
        "shard": 0,
        "sequence": 0,
        "origin": "0-0",
        "data": {"test": "stream-svt forward --test: nothing happened"},
    }
    body = msgspec.json.encode(envelope)
    data = Lifecycle(dataset="", monitor="", run=0, reason="test", account=None)
    return Received(body, None, 0, 0, now, msgspec.json.decode(body, type=Envelope), data)
