"""Fixtures of all tests: a real broker once a session, topics of one's own, and a guard against sockets."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from stream_svt.service.embedded import EmbeddedKafka
from tests.support.topics import BROKER, Topics

pytest.register_assert_rewrite("tests.exact.contract")
# No test depends on how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# jsonschema imports it for formats that no schema here has: three seconds in each process.
sys.modules.setdefault("rfc3987_syntax", None)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests for several processes.

    Three processes take the tests of brokers, module by module: they start those once, and mostly wait. Tests that
    share a fixture of their module are kept together. Slow tests come first, so that no process is left with one at the
    end.
    """
    of_brokers = sorted({item.location[0] for item in items if item.get_closest_marker("kafka")})
    for item in items:
        path = item.location[0]
        if item.get_closest_marker("kafka"):
            item.add_marker(pytest.mark.xdist_group(f"kafka-{of_brokers.index(path) % 3}"))
        elif not item.get_closest_marker("xdist_group") and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(path))
    slow = {item.location[0] for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.location[0] not in slow)


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Tell whether a test uses a fixture that is made once for its module, or for the session."""
    definitions = item.session._fixturemanager._arg2fixturedefs
    return any(
        definition.scope in {"module", "session"}
        for name in getattr(item, "fixturenames", ())
        for definition in definitions.get(name, ())
        if definition.baseid.startswith("tests/")
    )


@pytest.fixture(autouse=True)
def no_sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test off the network that does not say, by its marker, that it wants one."""
    if any(request.node.get_closest_marker(name) for name in ("kafka", "loopback")):
        return
    for name in ("connect", "connect_ex", "bind", "sendto"):
        monkeypatch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))


def _guarded(original):
    def guarded(self, *args):
        if self.family != socket.AF_UNIX:
            raise AssertionError(
                "a test without the marker `kafka` or `loopback` used the network: mark it, or use a fake"
            )
        return original(self, *args)

    return guarded


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedKafka]:
    """One Apache Kafka for the whole session; a test that stops or reconfigures a broker starts its own."""
    with EmbeddedKafka(overrides=BROKER) as kafka:
        yield kafka


@pytest.fixture
def topics(broker: EmbeddedKafka) -> Topics:
    """Return what makes topics of unique names on the broker of the session."""
    return Topics(broker.bootstrap_servers)


@pytest.fixture(scope="session")
def debian_program():
    """Return the path of a program from a Debian package; without it the test is skipped, in CI it fails."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            message = f"{name} is not installed; tests/run fetches it where it can"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(message)
        return path

    return find


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep thousands of collected tests out of every garbage collection."""
    gc.freeze()
