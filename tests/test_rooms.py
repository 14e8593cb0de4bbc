"""The rooms' import contract holds, and would notice what it forbids."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the package and its contract that a test may spoil."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "stream_svt", tmp_path / "stream_svt", ignore=shutil.ignore_patterns("__pycache__", "data")
    )
    return tmp_path


def test_the_contract_holds():
    done = _lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("place", "forbidden", "contract"),
    [
        ("mechanisms", "import random", "The pure rooms"),
        ("privacy", "import time", "The pure rooms"),
        ("monitor", "import logging", "The pure rooms"),
        ("monitor", "def load(path):\n    import os\n    return os.stat(path)", "The pure rooms"),
        ("mechanisms", "from stream_svt.privacy import spoiled", "Rooms point one way"),
        ("privacy", "from stream_svt.service import embedded", "Rooms point one way"),
        ("service", "from stream_svt.forward import config", "Rooms point one way"),
        ("errors", "import stream_svt.mechanisms", "Rooms point one way"),
        ("stranger", "import stream_svt.errors", "Rooms point one way"),
    ],
)
def test_a_forbidden_import_breaks_it(copy, place, forbidden, contract):
    package = copy / "stream_svt"
    (package / "privacy").mkdir(exist_ok=True)
    (package / "privacy" / "spoiled.py").touch()
    if (package / place).is_dir():
        (package / place / "spoiled.py").write_text(f"{forbidden}\n")
    else:
        with (package / f"{place}.py").open("a") as module:
            module.write(f"\n{forbidden}\n")
    done = _lint_imports(copy)
    assert done.returncode != 0
    assert [line for line in done.stdout.splitlines() if line.startswith(contract) and "BROKEN" in line]
