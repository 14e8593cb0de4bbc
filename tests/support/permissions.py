"""Access control lists of an embedded Kafka with users, and what a worker and a counter need."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from tests.support.topics import administrator

# Codes of the Kafka protocol.
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}
OPERATIONS = {"read": 3, "write": 4, "delete": 6, "describe": 8, "describe_configs": 10}
LITERAL, PREFIXED = 3, 4
ALLOW = 3

Grant = tuple[str, str, str]
"""Operation, kind of resource, and its name without the application's."""
WORKER: list[Grant] = [
    ("read", "group", ""),
    ("write", "transactional_id", "-"),
    *(("read", "topic", f".{name}") for name in ("state", "alerts", "control", "counts", "config")),
    *(("write", "topic", f".{name}") for name in ("state", "alerts", "rejects")),
]
COUNTER: list[Grant] = [
    ("read", "group", "-counters"),
    ("write", "transactional_id", "-sources-"),
    *(("read", "topic", f".{name}") for name in ("clicks", "sources", "config")),
    *(("write", "topic", f".{name}") for name in ("sources", "visits.counts")),
    ("delete", "topic", ".sources"),
]
"""Of a source ``visits`` of the topic ``APPLICATION.clicks``; and DESCRIBE_CONFIGS, to see settings of topics."""


OPERATOR: list[Grant] = [("write", "topic", ".control"), ("read", "topic", ".alerts")]
AUDITOR: list[Grant] = [("read", "topic", ".alerts")]


async def allow_all(bootstrap_servers: str, user: str, application: str, grants: list[Grant]) -> None:
    """Let one user do this with an application, under any transactional id that begins as granted."""
    for operation, resource, rest in grants:
        prefixed = resource == "transactional_id"
        await allow(bootstrap_servers, user, operation, resource, application + rest, prefixed=prefixed)


async def allow(
    bootstrap_servers: str, user: str, operation: str, resource: str, name: str, *, prefixed: bool = False
) -> None:
    """Let one user do one thing with one resource (a key of ``RESOURCES``), or with all that begin so."""
    pattern = PREFIXED if prefixed else LITERAL
    response = await _send(bootstrap_servers, CreateAclsRequest, user, operation, resource, name, pattern)
    [(code, message)] = response.creation_responses
    assert code == 0, f"the permission was not granted: {message}"


async def revoke(bootstrap_servers: str, user: str, operation: str, resource: str, name: str) -> None:
    """Take one permission on one resource back."""
    response = await _send(bootstrap_servers, DeleteAclsRequest, user, operation, resource, name, LITERAL)
    [(code, message, taken)] = response.filter_responses
    assert code == 0, f"the permission was not taken: {message}"
    assert taken, "there was no such permission"


async def _send(
    servers: str, kind: type, user: str, operation: str, resource: str, name: str, pattern: int
) -> Any:
    request = kind(RESOURCES[resource], name, pattern, f"User:{user}", "*", OPERATIONS[operation], ALLOW)
    async with administrator(servers) as admin:
        return await admin._send_to_controller(request)
