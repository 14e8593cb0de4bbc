"""The image is built from what it needs and nothing else, and runs as nobody in particular."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_svt.cli import app
from stream_svt.cli.common import config_option
from tests.support.http_server import answering

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
HADOLINT = Path(sys.executable).parent / "hadolint"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile as (name, arguments), lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(name.upper(), rest.strip()) for name, _, rest in found]


INSTRUCTIONS = instructions(DOCKERFILE.read_text())
LAST_STAGE = INSTRUCTIONS[max(place for place, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM") :]


def of(name: str) -> str:
    """Return the arguments of the one instruction of a name in the last stage."""
    [found] = [rest for instruction, rest in LAST_STAGE if instruction == name]
    return found


def test_hadolint_finds_nothing():
    command = [str(HADOLINT), "--no-fail", "--format", "json", str(DOCKERFILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [found["code"] for found in json.loads(done.stdout)] == []


def test_nothing_but_what_is_copied_reaches_the_builder():
    """No key, no history, no test; `tests/kafka/test_image.py` builds the image from it."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    copied = [rest.split()[:-1] for name, rest in INSTRUCTIONS if name == "COPY" and "--from" not in rest]
    everything, *kept, caches, bytecode = lines
    assert (everything, caches, bytecode) == ("*", "**/__pycache__", "**/*.pyc")
    assert set(kept) == {f"!{name}" for names in copied for name in names}


# How it runs


def test_the_image_runs_as_a_user_without_a_name_in_other_systems():
    user, _, group = of("USER").partition(":")
    assert (int(user) > 0, int(group) > 0) == (True, True)
    worker: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["worker-1"]
    assert worker["user"] == of("USER")


def test_the_image_starts_the_command_line_and_by_default_a_worker():
    assert json.loads(of("ENTRYPOINT")) == list(PROJECT["scripts"])
    [command] = json.loads(of("CMD"))
    assert command in app.commands
    variables = dict(part.split("=", 1) for part in of("ENV").split())
    assert variables["STREAM_SVT_CONFIG"].startswith(of("WORKDIR"))

    @config_option()
    def nothing() -> None:
        pass

    [option] = nothing.__click_params__
    assert option.envvar in variables


def test_the_python_of_the_image_is_one_that_the_project_supports():
    [version] = re.findall(r"^ARG PYTHON=(\d+\.\d+)-slim-\w+$", DOCKERFILE.read_text(), re.MULTILINE)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


@pytest.mark.loopback
@pytest.mark.parametrize(("code", "healthy"), [(200, True), (503, False), (None, False)])
def test_the_health_check_says_what_the_worker_says(code, healthy):
    _, _, command = of("HEALTHCHECK").partition("CMD ")
    arguments = [sys.executable, *json.loads(command)[1:]]
    with answering("/health/live", {"code": code or 200, "body": b""}) as port:
        environment = os.environ | {"STREAM_SVT_WEB_PORT": str(port if code else 1)}
        done = subprocess.run(arguments, env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) is healthy
