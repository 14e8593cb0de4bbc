"""Sparse Vector alerts on Kafka streams under differential privacy."""

from __future__ import annotations

from stream_svt.errors import BrokerError, ConfigError, StreamSvtError
from stream_svt.monitor.released import Account, Alert, EventType, Lifecycle, NoiseLaw, Position
from stream_svt.service import __version__
from stream_svt.subscribe import Event, Subscription, subscribe

__all__ = [
    "Account",
    "Alert",
    "BrokerError",
    "ConfigError",
    "Event",
    "EventType",
    "Lifecycle",
    "NoiseLaw",
    "Position",
    "StreamSvtError",
    "Subscription",
    "__version__",
    "subscribe",
]
