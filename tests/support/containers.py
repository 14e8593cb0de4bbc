"""Images and containers without a daemon: podman and runc, with everything they keep in a directory of their own.

python -m tests.support.containers       # builds the image, as tests/run does while it looks at the code
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stream-svt"
BASE = "python:3.11-slim-bookworm"
"""The base that the Dockerfile names: from a registry of images where one answers, else made of Debian's packages."""
PROGRAMS = ("podman", "conmon", "runc", "debootstrap")
SECCOMP, REGISTRIES = "usr/share/containers/seccomp.json", "etc/containers/registries.conf"

_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{place}/images"
runroot = "{place}/run"
"""
_ENGINE = """\
[containers]
seccomp_profile = "{seccomp}"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
conmon_path = ["{conmon}"]
tmp_dir = "{place}/tmp"
static_dir = "{place}/images/libpod"
volume_path = "{place}/images/volumes"
[engine.runtimes]
runc = ["{runc}"]
[network]
network_config_dir = "{place}/network"
"""


def _of_debian(name: str, unpacked: str = "") -> str:
    """Return a file of podman's packages: where they are installed, or where tests/run unpacked them."""
    installed = Path("/", name)
    return str(installed if installed.exists() else CACHE / "debian/root" / (unpacked or name))


class Podman:
    """Podman of this machine or of ~/.cache/stream-svt/debian; it touches nothing outside its directory."""

    def __init__(self, place: Path = CACHE / "podman") -> None:
        self.place = place
        found = {name: shutil.which(name) or "" for name in PROGRAMS}
        home = place / "home"
        policy = {"default": [{"type": "insecureAcceptAnything"}]}
        self._write(home / ".config/containers/policy.json", json.dumps(policy))
        self._write(place / "storage.conf", _STORAGE.format(place=place))
        self._write(
            place / "containers.conf", _ENGINE.format(place=place, seccomp=_of_debian(SECCOMP), **found)
        )
        self._environment = os.environ | {
            "HOME": str(home),
            "CONTAINERS_CONF": str(place / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(place / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": _of_debian(REGISTRIES, f"{REGISTRIES}.d/shortnames.conf"),
        }

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def __call__(self, *arguments: str | Path, check: bool = True, **options: Any) -> str:
        """Run one command of podman, and return what it prints."""
        done = subprocess.run(
            ["podman", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        assert done.returncode == 0 or not check, f"podman {arguments}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def succeeds(self, *arguments: str | Path, **options: Any) -> bool:
        """Tell whether a command of podman ends with 0."""
        with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
            self(*arguments, **options)
            return True
        return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from building at the same time."""
        with (self.place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def build(self, tag: str) -> str:
        """Build the shipped Dockerfile, and return the image's id.

        Layers are kept from one build to the next. The packages come from wheels that pip of this machine fetched:
        what pip needs to reach its index here is nothing that an image should know.
        """
        with self.locked():
            if not self.succeeds("image", "exists", BASE):
                self._make_base()
            pip = self.place / "pip.conf"
            pip.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
            common = ["--pull-never", "--format", "docker", "--isolation", "oci", "--network", "none"]
            mounts = ["-v", f"{pip}:/etc/pip.conf:ro", "-v", f"{self._wheels()}:/wheels:ro"]
            for target in (["--target", "build", "--tag", "stream-svt:build"], ["--tag", tag]):
                self("build", "--quiet", *common, *mounts, *target, ROOT)
            # Stages that an earlier build left behind.
            self("image", "prune", "--force")
            return self("image", "inspect", "--format", "{{.Id}}", tag)

    def _make_base(self) -> None:
        if self.succeeds("pull", "--quiet", BASE, timeout=60):
            return
        packages = "python3-venv,python3-pip,python-is-python3"
        root, archive = self.place / "base", self.place / "base.tar"
        shutil.rmtree(root, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        kept_out = ["--exclude=./var/cache/apt", "--exclude=./var/lib/apt/lists"]
        subprocess.run(["tar", "-C", root, *kept_out, "-cf", archive, "."], check=True)
        self("import", "--quiet", archive, BASE)
        archive.unlink()
        shutil.rmtree(root)

    def _wheels(self) -> Path:
        """Return a directory with the wheels of all that the image installs, fetched anew for other dependencies."""
        wheels, stamp = self.place / "wheels", self.place / "wheels.of"
        [extras] = re.findall(r"^ARG EXTRAS=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        optional = [project["optional-dependencies"][extra] for extra in extras.split(",")]
        wanted = str([project["dependencies"], optional])
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(wheels, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheels)]
            done = subprocess.run(
                [*pip, f"{ROOT}[{extras}]", "hatchling"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            for own in wheels.glob("stream_svt-*.whl"):
                own.unlink()
            stamp.write_text(wanted)
        return wheels


if __name__ == "__main__":
    Podman().build("stream-svt:test")
