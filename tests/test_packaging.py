"""What users install: the wheel, built from the source archive, in an environment without the repository."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.archives import build

pytestmark = pytest.mark.xdist_group("release")
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "stream_svt"


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> dict[str, Path]:
    """Return the source archive of the repository, and the wheel that is built from it."""
    target = tmp_path_factory.mktemp("archives")
    build(ROOT, target)
    [source], [wheel] = target.glob("*.tar.gz"), target.glob("*.whl")
    return {"sdist": source, "wheel": wheel}


@pytest.fixture(scope="module")
def wheel(archives) -> Path:
    return archives["wheel"]


def test_the_wheel_holds_the_package_its_data_and_its_license_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"stream_svt"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    wanted = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("stream_svt/")} == wanted
    assert "stream_svt/py.typed" in wanted


def test_the_source_archive_holds_no_secret_that_was_made_beside_the_stack(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("stream_svt", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "secrets"))
    made = subprocess.run(
        [tmp_path / "deploy/compose/make-secrets"], capture_output=True, text=True, check=True
    )
    assert "sealing.key" in made.stdout
    build(tmp_path, tmp_path / "dist", "--sdist")
    [archive] = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    assert any(name.endswith("deploy/compose/make-secrets") for name in names)
    assert [name for name in names if "/secrets/" in name or name.endswith(".key")] == []


@pytest.mark.parametrize(
    "name",
    [
        *("Dockerfile", ".dockerignore", "docker-compose.yml", "deploy/compose/make-secrets", "deploy/sbom"),
        *(
            "deploy/helm/stream-svt/values.yaml",
            "deploy/prometheus/alertmanager.yml",
            "examples/subscribe.py",
        ),
        *("docs/index.md", "tests/run", "LICENSE", "CHANGELOG.md"),
    ],
)
def test_the_source_archive_has_what_a_user_starts_copies_or_reads(archives, name):
    with tarfile.open(archives["sdist"]) as opened:
        [found] = [one for one in opened.getmembers() if one.name.split("/", 1)[1] == name]
        assert bool(found.mode & 0o111) == os.access(ROOT / name, os.X_OK)


def test_the_chart_of_the_source_archive_has_the_rules_as_files(archives):
    with tarfile.open(archives["sdist"]) as opened:
        rules = [one for one in opened.getmembers() if "/deploy/helm/stream-svt/rules/" in one.name]
    assert {Path(one.name).name for one in rules} == {
        path.name for path in (ROOT / "deploy/prometheus/rules").glob("*.yml")
    }
    assert all(one.isfile() for one in rules)


CONFIG = """
application: shop
datasets: [{name: week-1, limit: {epsilon: 4}, unit: one basket}]
monitors:
  - {name: hot, topic: shop.counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 1000],
     threshold: 500, expected_queries: 1000}
"""


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Install the wheel into an environment of its own, and return the directory of its programs."""
    environment = tmp_path_factory.mktemp("venv")
    venv.create(environment, with_pip=False)
    # Its dependencies are lent by the environment that runs this test.
    purelib = sysconfig.get_paths(vars={"base": str(environment)})["purelib"]
    Path(purelib, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    # The editable installation that is lent, too, would count as one that is there already.
    more = ["--ignore-installed", wheel]
    done = subprocess.run([*pip, *more], capture_output=True, text=True, check=False, cwd=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return environment / "bin"


def test_an_installation_works_without_the_repository(installed, tmp_path):
    where = _output(installed / "python", "-c", "import stream_svt; print(stream_svt.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    svt = installed / "stream-svt"
    assert importlib.metadata.version("stream-svt") in _output(svt, "--version", cwd=tmp_path)
    assert "apply" in _output(svt, "--help", cwd=tmp_path)
    assert "topics" in json.loads(_output(svt, "schema", cwd=tmp_path))["properties"]
    shown = _output(svt, cwd=tmp_path, env=os.environ | {"_STREAM_SVT_COMPLETE": "bash_source"})
    assert "complete" in shown
    (tmp_path / "shop.yaml").write_text(CONFIG)
    assert "hot" in _output(svt, "check", "--offline", "-c", "shop.yaml", cwd=tmp_path)


@pytest.mark.kafka
def test_the_demo_of_an_installation_alerts_without_the_repository(installed, broker, tmp_path):
    demo = [installed / "stream-svt", "demo", "--duration", "2", "--broker", broker.bootstrap_servers]
    assert "retail-week-1" in _output(*demo, cwd=tmp_path)


def _output(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
