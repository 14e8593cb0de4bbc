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


FORBIDDEN = {
    "privacy": "import time",
    "monitor": "def load(path):\n    import os\n    return os.stat(path)",
    "settings": "import logging",
    "mechanisms": "from stream_svt.privacy import spoiled",
    "protocol": "import asyncio",
    "stranger": "import stream_svt.errors",
}


def test_a_forbidden_import_breaks_the_contract(tmp_path):
    package = tmp_path / "stream_svt"
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "stream_svt", package, ignore=shutil.ignore_patterns("__pycache__", "data"))
    for place, forbidden in FORBIDDEN.items():
        module = package / place / "spoiled.py" if (package / place).is_dir() else package / f"{place}.py"
        module.write_text(f"{forbidden}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0
    for broken in (
        "stream_svt.privacy.spoiled -> time",
        "stream_svt.monitor.spoiled -> os",
        "stream_svt.settings.spoiled -> logging",
        "stream_svt.mechanisms.spoiled -> stream_svt.privacy.spoiled",
        "stream_svt.protocol.spoiled -> asyncio",
        "stranger",
    ):
        assert broken in done.stdout


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "stream_svt.cli",
            {"pyarrow", "scipy", "aiohttp"},
        ),  # a command that reads no query and plans nothing
        ("stream_svt.hosting.faust_app", {"scipy"}),
        ("stream_svt.worker.parser", {"pyarrow", "scipy", "aiokafka", "aiohttp"}),
        ("stream_svt.forward.app", {"pyarrow", "scipy"}),
    ],
)
def test_a_program_does_without_what_takes_long_to_import(module, absent):
    code = f"import {module}, sys; sys.exit(not sys.modules.keys().isdisjoint({absent}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_two_classes_have_one_name():
    modules = [ast.parse(path.read_text()) for path in (ROOT / "stream_svt").rglob("*.py")]
    names = Counter(node.name for module in modules for node in module.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def imports(path: Path) -> list[str]:
    """Return the modules a file imports, and the names it imports from them."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = [(one.module or "", one.names) for one in nodes if isinstance(one, ast.ImportFrom)]
    named += [("", one.names) for one in nodes if isinstance(one, ast.Import)]
    return [f"{module}.{name.name}".strip(".") for module, names in named for name in names]


def test_no_test_file_imports_another():
    """What they share stands in `tests/support`, in a module of their folder that holds no tests, or in a fixture."""
    files = list((ROOT / "tests").rglob("*.py"))
    tests = {path.stem for path in files if path.stem.startswith("test_")} | {"conftest"}
    assert [(path, name) for path in files for name in imports(path) if tests & set(name.split("."))] == []
