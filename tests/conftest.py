"""Fixtures of all tests: a real broker once a session, topics of one's own, and a guard against sockets."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Generator, Iterator

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from stream_svt.kafka.embedded import EmbeddedKafka
from tests.support.topics import BROKER, STEADY, Topics

pytest.register_assert_rewrite("tests.exact.contract")
# No test depends on how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# A suite that runs in the background may ignore SIGINT, and its children would.
signal.signal(signal.SIGINT, signal.default_int_handler)
# jsonschema imports it for formats that no schema here has: three seconds in each process.
sys.modules.setdefault("rfc3987_syntax", None)


_OWN_BROKERS = ("secure_broker", "lax_broker")
"""Fixtures of brokers that a process starts for its tests."""


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in the package alone, not in the modules of tests."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group and order the tests for several processes, each of which takes the next group when it has little left.

    Tests of brokers mostly wait. So they come first, none is left at the end: those of a broker of their own together,
    the others module by module. Then come the slow ones. Tests that share a fixture of their module are kept together.
    """
    groups: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for item in items:
        path, marked = item.location[0], {mark.name for mark in item.iter_markers()}
        own = [name for name in _OWN_BROKERS if name in getattr(item, "fixturenames", ())]
        if own and "kafka" in marked:
            groups[path], ranks[path] = own[0], 0
        rank = 1 if marked >= {"kafka", "slow"} else 2 if "kafka" in marked else 3 if "slow" in marked else 4
        ranks[path] = min(ranks.get(path, 4), rank)
    for item in items:
        path = item.location[0]
        if item.get_closest_marker("kafka"):
            item.add_marker(pytest.mark.xdist_group(groups.get(path, path)))
        elif not item.get_closest_marker("xdist_group") and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(path))
    items.sort(key=lambda item: ranks[item.location[0]])


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
    with EmbeddedKafka(overrides=BROKER | STEADY) as kafka:
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
