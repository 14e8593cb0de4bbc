"""The rooms' import contract, which `tests/run` checks, notices what it forbids; a class has a name of its own."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the package and its contract that a test may spoil."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "stream_svt", tmp_path / "stream_svt", ignore=shutil.ignore_patterns("__pycache__", "data")
    )
    return tmp_path


@pytest.mark.parametrize(
    ("place", "forbidden", "contract"),
    [
        ("privacy", "import time", "The pure rooms"),
        ("monitor", "import logging", "The pure rooms"),
        ("monitor", "def load(path):\n    import os\n    return os.stat(path)", "The pure rooms"),
        ("mechanisms", "from stream_svt.privacy import spoiled", "Rooms point one way"),
        ("stranger", "import stream_svt.errors", "Rooms point one way"),
    ],
)
def test_a_forbidden_import_breaks_it(copy, place, forbidden, contract):
    package = copy / "stream_svt"
    (package / "privacy" / "spoiled.py").touch()
    module = package / place / "spoiled.py" if (package / place).is_dir() else package / f"{place}.py"
    module.write_text(f"{forbidden}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0
    assert [line for line in done.stdout.splitlines() if line.startswith(contract) and "BROKEN" in line]


def test_no_two_classes_have_one_name():
    modules = [ast.parse(path.read_text()) for path in (ROOT / "stream_svt").rglob("*.py")]
    names = Counter(node.name for module in modules for node in module.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
