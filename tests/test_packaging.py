"""What users install: the built wheel, alone in an environment of its own."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("release")
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "stream_svt"


def build_wheel(source: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


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
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True)
    [archive] = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    assert any(name.endswith("deploy/compose/make-secrets") for name in names)
    assert [name for name in names if "/secrets/" in name or name.endswith(".key")] == []


def test_the_installed_wheel_starts_the_command_line(wheel, tmp_path):
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    # Its dependencies are lent by the environment that runs this test; the package itself is the wheel's.
    paths = sysconfig.get_paths(vars={"base": str(environment)})
    Path(paths["purelib"], "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    where = _output(python, "-c", "import stream_svt; print(stream_svt.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(environment)
    answer = _output(environment / "bin" / "stream-svt", "--version", cwd=tmp_path)
    assert importlib.metadata.version("stream-svt") in answer


def test_the_engine_is_imported_where_a_worker_is_named(tmp_path):
    program = """
import sys, stream_svt
engine = ["prometheus_client", "pyarrow", "scipy", "stream_svt.monitor.engine"]
print([name in sys.modules for name in engine], stream_svt.Worker and [name in sys.modules for name in engine])
"""
    said = _output(Path(sys.executable), "-c", program, cwd=tmp_path)
    assert said == f"{[False] * 4} {[True] * 4}"


def _output(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
