"""The tables of forwarding.md: the keys of the forwarder's file, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from docs.generator.configuration import keys
from docs.generator.metrics import metrics_table
from stream_svt.forward.config import json_schema
from stream_svt.forward.metrics import METRICS

_SPECIAL: Final = {
    "alertmanager": "[section](#alertmanager)",
    "destinations": "list of [destinations](#destinations)",
    "generator_url": "address",
    "kafka": "[as for the service](configuration.md#kafka)",
    "labels": "mapping of names to texts",
    "retry": "[section](#when-a-receiver-fails)",
    "start_at": "`earliest` or moment",
    "tls": "[section](#tls)",
    "types": "`all` or list of types",
    "url": "address",
    "urls": "list of addresses",
    "web": "`{host: .., port: ..}`",
    "webhook": "[section](#webhook)",
}
_SECTIONS: Final = {
    "forward-destinations": "DestinationConfig",
    "forward-alertmanager": "AlertmanagerConfig",
    "forward-webhook": "WebhookConfig",
    "forward-retry": "RetryConfig",
    "forward-tls": "TlsConfig",
}


def _top() -> str:
    schema = json_schema()
    return keys(schema, schema["$defs"], _SPECIAL)


def _section(definition: str) -> str:
    definitions = json_schema()["$defs"]
    return keys(definitions[definition], definitions, _SPECIAL)


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "forward-top": _top,
    "forward-metrics": lambda: metrics_table(METRICS, "labels"),
    **{name: partial(_section, definition) for name, definition in _SECTIONS.items()},
}
