"""The units of deploy/systemd: systemd accepts them, they close what a worker does not need, they start commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from stream_svt.errors import ConfigError
from tests.support.process import COMMAND

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
EXPOSURE = 20
"""Largest exposure that systemd may see, in tenths: up to 20 it says "OK"; without any restriction it is 92."""


def analyze(*arguments, unit):
    found = subprocess.run(
        ["systemd-analyze", *arguments, str(unit)], capture_output=True, text=True, check=False
    )
    return found.returncode, found.stdout + found.stderr


@pytest.fixture
def installed(request, tmp_path):
    """A unit whose program is that of this machine and whose user exists here."""
    text = request.param.read_text().replace("/opt/stream-svt/bin/stream-svt", str(Path(COMMAND[0])))
    unit = tmp_path / request.param.name
    unit.write_text(re.sub("^(User|Group)=stream-svt$", r"\1=daemon", text, flags=re.MULTILINE))
    return unit


@pytest.mark.debian
@pytest.mark.parametrize("installed", UNITS, indirect=True, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit_and_finds_it_closed(installed):
    assert analyze("verify", unit=installed) == (0, "")
    code, said = analyze("security", "--offline=yes", f"--threshold={EXPOSURE}", unit=installed)
    assert code == 0, said
    installed.write_text(installed.read_text().replace("[Service]\n", "[Service]\nRestartSek=1\n"))
    assert "RestartSek" in analyze("verify", unit=installed)[1]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_and_is_not_restarted_where_that_would_not_help(unit):
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/stream-svt/bin/stream-svt (.*)$", text, re.MULTILINE)
    verb, option, path, *others = command.split()
    shown = subprocess.run([*COMMAND, verb, "--help"], capture_output=True, text=True, check=True).stdout
    assert [one for one in (option, *others[::2]) if one not in shown] == []
    assert path.startswith("/etc/stream-svt/")
    assert f"RestartPreventExitStatus={ConfigError.exit_code} " in text
