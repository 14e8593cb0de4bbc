"""Requests to webhooks: the event's own bytes, an id that stays, signatures that verify."""

from __future__ import annotations

import base64
import runpy
from pathlib import Path

import pytest

from stream_svt.forward.webhook import Webhook, message_id, signatures
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.forwarding import KEY, OLD_KEY, destination, moment, received

NOW = moment("2026-01-05T10:00:07Z")
RECEIVER = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "webhook_receiver.py"))
HOOK = "{name: hook, webhook: {url: https://example.org/hook, key_files: [hook.key%s]}}"


def verified(request, keys, *, now=NOW, body=None, **changes) -> bool:
    headers = {name.lower(): text for name, text in (request.headers | changes).items()}
    return RECEIVER["verified"](keys, headers, request.body if body is None else body, now.timestamp())


def test_the_signature_is_the_published_one_of_standard_webhooks():
    """Secret, message and signature stand in the test suite of that specification."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signatures([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_body_is_the_record_byte_for_byte(tmp_path):
    request = Webhook(destination(tmp_path, HOOK % "")).wrap(received(sequence=7), NOW)
    assert request.body == encoded(7, alert())
    assert request.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"


def test_the_example_receiver_takes_what_is_signed_and_nothing_else(tmp_path):
    request = Webhook(destination(tmp_path, HOOK % "")).wrap(received(), NOW)
    assert verified(request, [KEY])
    assert not verified(request, [OLD_KEY])
    assert not verified(request, [KEY], body=request.body.replace(b"12.0", b"13.0"))
    assert not verified(request, [KEY], **{"webhook-id": "evt_other"})
    assert not verified(request, [KEY], **{"webhook-timestamp": str(int(NOW.timestamp()) + 1)})
    assert not verified(request, [KEY], **{"webhook-signature": ""})
    assert not verified(request, [KEY], now=moment("2026-01-05T10:06:00Z"))
    assert not verified(request, [KEY], now=moment("2026-01-05T09:54:00Z"))


def test_while_a_key_is_replaced_receivers_with_either_key_are_content(tmp_path):
    request = Webhook(destination(tmp_path, HOOK % ", old.key")).wrap(received(), NOW)
    assert verified(request, [KEY])
    assert verified(request, [OLD_KEY])
    assert not verified(request, [bytes(32)])


def test_every_attempt_has_the_same_id_and_a_time_of_its_own(tmp_path):
    hook = Webhook(destination(tmp_path, HOOK % ""))
    first, second = (
        hook.wrap(received(), moment(text)) for text in ("2026-01-05T10:00:07Z", "2026-01-05T11:00:00Z")
    )
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    assert verified(second, [KEY], now=moment("2026-01-05T11:00:00Z"))


@pytest.mark.parametrize("name", ["shop/week", "caf\u00e9", "\r\nX-Injected: 1", "\U0001f6d2" * 50, "a.b.c"])
def test_an_id_holds_only_what_a_header_may_hold_whatever_a_dataset_is_called(name):
    identity = message_id("/stream-svt/shop", f"shop/{name}/hot/1/4")
    assert identity.isascii()
    assert identity.replace("_", "").isalnum()
    assert len(identity) == 36


def test_ids_differ_between_events_and_between_applications():
    pairs = [("/stream-svt/a", "1"), ("/stream-svt/a", "2"), ("/stream-svt/b", "1"), ("/stream-svt/a1", "")]
    assert len({message_id(*pair) for pair in pairs}) == len(pairs)


def test_without_a_key_nothing_is_signed(tmp_path):
    hook = Webhook(destination(tmp_path, "{name: hook, webhook: {url: https://example.org/}}"))
    assert set(hook.wrap(received(), NOW).headers) == {"Content-Type", "webhook-id", "webhook-timestamp"}


def test_headers_and_keys_stay_out_of_what_is_printed(tmp_path):
    one = destination(tmp_path, HOOK % "")
    request = Webhook(one).wrap(received(), NOW)
    assert request.headers["webhook-signature"] not in repr(request)
    assert "example.org" not in repr(one).replace(repr(one.config), "")
    assert repr(KEY) not in repr(one)


def test_filters_decide(tmp_path):
    hook = Webhook(
        destination(
            tmp_path,
            "{name: h, types: [alert, run.started], datasets: ['shop*'], webhook: {url: https://example.org/}}",
        )
    )
    assert hook.wants(received())
    assert hook.wants(received(lifecycle("first")))
    assert not hook.wants(received(alert(dataset="other")))
