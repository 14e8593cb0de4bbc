"""Sparse Vector alerts under differential privacy: on Kafka streams, and as functions of arrays.

Names are imported at their first use: `svt`, `top_k` and `quantile` need no Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_svt.embed import EmbeddedWorker as Worker
    from stream_svt.errors import BrokerError, ConfigError, MisuseError, StreamSvtError
    from stream_svt.library import (
        QuantileResult,
        SvtAnswer,
        SvtResult,
        TopKAnswer,
        TopKResult,
        quantile,
        svt,
        top_k,
    )
    from stream_svt.monitor.released import Account, Alert, Event, EventType, Lifecycle, NoiseLaw, Position
    from stream_svt.subscription import Subscription, subscribe
    from stream_svt.version import __version__

__all__ = [
    "Account",
    "Alert",
    "BrokerError",
    "ConfigError",
    "Event",
    "EventType",
    "Lifecycle",
    "MisuseError",
    "NoiseLaw",
    "Position",
    "QuantileResult",
    "StreamSvtError",
    "Subscription",
    "SvtAnswer",
    "SvtResult",
    "TopKAnswer",
    "TopKResult",
    "Worker",
    "__version__",
    "quantile",
    "subscribe",
    "svt",
    "top_k",
]

if not TYPE_CHECKING:
    _MODULES = {
        "embed": ("Worker",),
        "errors": ("BrokerError", "ConfigError", "MisuseError", "StreamSvtError"),
        "library": (
            "QuantileResult",
            "SvtAnswer",
            "SvtResult",
            "TopKAnswer",
            "TopKResult",
            "quantile",
            "svt",
            "top_k",
        ),
        "monitor.released": ("Account", "Alert", "Event", "EventType", "Lifecycle", "NoiseLaw", "Position"),
        "version": ("__version__",),
        "subscription": ("Subscription", "subscribe"),
    }
    _HOME = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_HOME[name]}")
        found = globals()[name] = getattr(module, "EmbeddedWorker" if name == "Worker" else name)
        return found

    def __dir__() -> list[str]:
        return [*__all__]
