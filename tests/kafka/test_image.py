"""The image of the Dockerfile, built and started as docs/deployment.md says, on a real broker."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stream_svt.monitor.released import EventType
from tests.support.containers import PROGRAMS, Podman
from tests.support.worker import HIGH, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.debian, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
[SHOWN] = re.findall(r"docker run --rm (.*?)\\\n", PAGE)
CLOSED = SHOWN.split()
"""The options of the page's command that close the container."""


@pytest.fixture(scope="module")
def podman() -> Podman:
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    reason = f"no {', '.join(missing)}; tests/run fetches them where it can"
    if missing and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if missing:
        pytest.skip(reason)
    podman = Podman()
    if not podman.succeeds("info"):
        pytest.skip("podman cannot work here: it needs root, or namespaces of users and newuidmap")
    return podman


@pytest.fixture(scope="module")
def image(podman) -> Iterator[str]:
    tag = f"stream-svt:test-{os.getpid()}"
    identity = podman.build(tag)
    yield identity
    podman("untag", identity, tag)


@pytest.fixture
async def worker(podman, image, scene: Scene) -> AsyncIterator[str]:
    """Apply a configuration and start a worker, both in containers; its health is asked for by nobody but the test."""
    file = scene.write()
    port = scene.ports[file]
    options = [*CLOSED, "--network", "host", "-v", f"{file}:/etc/stream-svt/monitors.yaml:ro"]
    command = ["apply", "--yes", "--wait", "0"]
    await asyncio.to_thread(podman, "run", "--rm", "--no-healthcheck", *options, image, *command)
    name = f"worker-{port}"
    asked = ["--health-interval", "disable", "-e", f"STREAM_SVT_WEB_PORT={port}"]
    await asyncio.to_thread(podman, "run", "--detach", "--name", name, *asked, *options, image)
    yield name
    await asyncio.to_thread(podman, "rm", "--force", name)


async def test_a_worker_in_the_image_is_healthy_alerts_and_hands_over_in_time(podman, worker, scene):
    def healthy() -> bool:
        running = podman("inspect", "--format", "{{.State.Running}}", worker)
        assert running == "true", podman("logs", worker)
        return podman.succeeds("healthcheck", "run", worker)

    await until(lambda: asyncio.to_thread(healthy), 60)
    await scene.send("a", HIGH, HIGH)
    await scene.released(EventType.ALERT)

    # As nobody, with no privilege, on a closed root.
    status = dict(re.findall(r"(\w+):\t(.*)", podman("exec", worker, "cat", "/proc/1/status")))
    assert status["Uid"].split() == ["10001"] * 4
    assert (int(status["CapEff"], 16), int(status["CapBnd"], 16)) == (0, 0)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert not podman.succeeds("exec", worker, "touch", "/etc/stream-svt/more")
    assert podman.succeeds("exec", worker, "touch", "/tmp/more")  # noqa: S108

    await asyncio.to_thread(podman, "stop", worker)
    assert podman("inspect", "--format", "{{.State.ExitCode}}", worker) == "0", podman("logs", worker)


def test_the_image_answers_without_a_configuration_and_brings_no_pip(podman, image):
    alone = ["run", "--rm", "--network", "none", "--no-healthcheck", *CLOSED]
    assert "stream-svt" in podman(*alone, image, "--version")
    there = ["stream_svt", "aws_msk_iam_sasl_signer", "pip"]
    search = f"import importlib.util as u; print([one for one in {there} if u.find_spec(one)])"
    found = podman(*alone, "--entrypoint", "python", image, "-c", search)
    assert found == str(there[:-1])
