"""Requests to a webhook: the CloudEvent exactly as it stands on the alert topic, signed.

The signature is that of Standard Webhooks (https://www.standardwebhooks.com), for which receivers find libraries
in every language: HMAC-SHA256 over id, timestamp and body, one signature for each key that is in use.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from stream_svt.forward.config import Destination
from stream_svt.forward.event import Received, wanted
from stream_svt.forward.posting import Request
from stream_svt.monitor.released import CONTENT_TYPE

ID_HEADER: Final = "webhook-id"
TIME_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"


class Webhook:
    """Wraps events for one webhook.

    >>> message_id("/stream-svt/retail", "retail/shop/hot/1/4")
    'evt_25bac2dec8e305d174813d9b411abbe9'
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def wants(self, event: Received) -> bool:
        """Tell whether the filters let an event pass."""
        return wanted(self._destination.config, event)

    def wrap(self, event: Received, now: datetime) -> Request:
        """Return the request: the event's bytes are the body."""
        identity = message_id(event.envelope.source, event.envelope.id)
        timestamp = int(now.timestamp())
        headers = {"Content-Type": CONTENT_TYPE, ID_HEADER: identity, TIME_HEADER: str(timestamp)}
        if self._destination.keys:
            headers[SIGNATURE_HEADER] = signatures(self._destination.keys, identity, timestamp, event.body)
        return Request(headers, event.body)


def message_id(source: str, event_id: str) -> str:
    """Return the idempotency key of an event: the same for every copy and every attempt.

    A digest, for an event's id holds the dataset's name, which may hold what no header may.
    """
    digest = hashlib.sha256(f"{source}\0{event_id}".encode()).hexdigest()
    return f"evt_{digest[:32]}"


def signatures(keys: Sequence[bytes], identity: str, timestamp: int, body: bytes) -> str:
    """Return the signature header's content, one signature for each key."""
    covered = b"%s.%d.%s" % (identity.encode(), timestamp, body)
    return " ".join("v1," + base64.b64encode(hmac.digest(key, covered, "sha256")).decode() for key in keys)
