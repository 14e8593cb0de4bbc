"""Access control lists of an embedded Kafka with users."""

from __future__ import annotations

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

# Codes of the Kafka protocol.
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}
OPERATIONS = {
    "all": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "describe_configs": 10,
    "alter_configs": 11,
    "idempotent_write": 12,
}
LITERAL, PREFIXED = 3, 4
ALLOW = 3


async def allow(
    bootstrap_servers: str, user: str, operation: str, resource: str, name: str, *, prefixed: bool = False
) -> None:
    """Let one user do one thing with one resource (a key of ``RESOURCES``), or with all that begin so."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        response = await admin._send_to_controller(
            CreateAclsRequest(
                RESOURCES[resource],
                name,
                PREFIXED if prefixed else LITERAL,
                f"User:{user}",
                "*",
                OPERATIONS[operation],
                ALLOW,
            )
        )
        [(code, message)] = response.creation_responses
        assert code == 0, f"the permission was not granted: {message}"
    finally:
        await admin.close()


async def revoke(bootstrap_servers: str, user: str, operation: str, resource: str, name: str) -> None:
    """Take one permission on one resource back."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        response = await admin._send_to_controller(
            DeleteAclsRequest(
                RESOURCES[resource], name, LITERAL, f"User:{user}", "*", OPERATIONS[operation], ALLOW
            )
        )
        [(code, message, taken)] = response.filter_responses
        assert code == 0, f"the permission was not taken: {message}"
        assert taken, "there was no such permission"
    finally:
        await admin.close()
