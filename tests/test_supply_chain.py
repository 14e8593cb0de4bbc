"""What comes with an installation is known: bounds that `tests/run lowest` can install, scripts that run."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(one for extra, listed in PROJECT["optional-dependencies"].items() if extra != "dev" for one in listed),
]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_dependency_has_a_lower_bound(requirement: str) -> None:
    assert re.fullmatch(r"[\w.-]+>=\d[\w.]*(,<[\w.]+)?", requirement)


@pytest.mark.parametrize("script", ["tests/lowest", "deploy/sbom", "deploy/scan"])
def test_a_script_can_be_run_and_is_well_formed(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_a_bill_without_a_place_to_write_it_to_is_refused() -> None:
    done = subprocess.run([str(ROOT / "deploy/sbom")], capture_output=True, text=True, check=False)
    assert (done.returncode, "usage: deploy/sbom FILE" in done.stderr) == (1, True)
