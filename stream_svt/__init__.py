"""Sparse Vector alerts on Kafka streams under differential privacy."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from stream_svt.errors import BrokerError, ConfigError, StreamSvtError
from stream_svt.monitor.released import Account, Alert, EventType, Lifecycle, NoiseLaw, Position
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

try:
    __version__ = version("stream-svt")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
