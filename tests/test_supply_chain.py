"""What comes with an installation is known: bounds that `tests/run lowest` can install, scripts that run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.xdist_group("release")
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


@pytest.mark.soak
def test_the_bill_lists_each_installed_package_and_what_depends_on_what(tmp_path) -> None:
    """The bill of the environment that runs the tests, as the script of a release writes it."""
    file = tmp_path / "sbom.json"
    here = {"DEPLOY_SBOM_PYTHON": sys.executable, "DEPLOY_SBOM_TOOLS": sys.executable}
    # Whatever would go to the network fails at once.
    nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    subprocess.run(
        [ROOT / "deploy/sbom", file], env=os.environ | here | nowhere, check=True, capture_output=True
    )
    bill = json.loads(file.read_text())  # the tool that writes it validates it
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == (PROJECT["name"], version(PROJECT["name"]))
    assert [one["license"]["id"] for one in root["licenses"]] == [PROJECT["license"]]
    listed = {_plain(one["name"]): one for one in bill["components"]}
    installed = {_plain(one.name): one for one in distributions() if _plain(one.name) != "stream-svt"}
    assert {name: one["version"] for name, one in listed.items()} == {
        name: one.version for name, one in installed.items()
    }
    for name, one in listed.items():
        address, _, release = unquote(one["purl"]).partition("@")
        assert (_plain(address), release) == (f"pkg:pypi/{name}", one["version"])
        # Metadata has no hash of the archive that was installed, and none is claimed.
        assert "hashes" not in one
    names = {one["bom-ref"]: _plain(one["name"]) for one in bill["components"]}
    depends = {one["ref"]: {names[ref] for ref in one.get("dependsOn", [])} for one in bill["dependencies"]}
    wanted = {_plain(re.split("[<>=]", one)[0]) for one in PROJECT["dependencies"]}
    assert wanted <= depends[root["bom-ref"]]
    assert all(listed[name]["licenses"] for name in wanted)


def _plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


RECIPE = (ROOT / "RELEASING.md").read_text()


def _step(beginning: str) -> str:
    """Return a command of the recipe for releases, without its comment."""
    [line] = [line for line in RECIPE.splitlines() if line.startswith(beginning)]
    return line.split("  #")[0].strip()


@pytest.mark.slow
def test_the_recipe_for_a_release_gives_the_same_bytes_twice_and_files_that_can_be_checked(tmp_path) -> None:
    """Tag, build, sums, signature; then what a consumer does, in a place of his own, up to building again."""
    tagged, release = tmp_path / "tagged", tmp_path / "release"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "release_key"], check=True
    )
    public = (tmp_path / "release_key.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f"releases@example.org {public}")
    settings = {
        "gpg.format": "ssh",
        "user.signingkey": str(tmp_path / "release_key"),
        "user.email": "releases@example.org",
        "user.name": "releases",
        "gpg.ssh.allowedSignersFile": str(tmp_path / "allowed_signers"),
        "advice.detachedHead": "false",
    }
    git = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        git |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def sh(command: str, place: Path, *, fails: bool = False) -> None:
        done = subprocess.run(
            ["bash", "-euc", command],
            check=False,
            cwd=place,
            env=os.environ | git | {"PATH": path},
            capture_output=True,
            text=True,
        )
        assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}{done.stderr}"

    # No isolation: what builds is installed here, and a network may not be there.
    epoch = _step("export SOURCE_DATE_EPOCH")
    build = f"{_step('python -m build')} --no-isolation"
    sign = _step("ssh-keygen -Y sign").replace("release_key", "../release_key")
    verify = _step("ssh-keygen -Y verify").replace("allowed_signers", "../../allowed_signers")
    check = _step("sha256sum --check")
    sh(f"git clone -q {ROOT} {tagged}", tmp_path)
    sh(_step("git tag -s"), tagged)
    sh(_step("git clone --branch").split(" && ")[0], tagged)
    sh(f"{epoch}; {build}", release)
    sh(_step("(cd dist"), release)
    sh(sign, release)

    dist = release / "dist"
    sh(verify, dist)
    sh(check, dist)
    again = tmp_path / "again"
    sh(f"git clone -q {tagged} {again}", tmp_path)
    sh(_step("git tag -v").split(" && ")[0], again)
    # Later, by another user: neither the clock nor a umask is in the files.
    sh(f"umask 077; git checkout -q v1.2.0; touch stream_svt/*.py; {epoch}; {build}", again)
    built = sorted(path for path in dist.iterdir() if not path.name.startswith("SHA256SUMS"))
    assert [path.suffix for path in built] == [".whl", ".gz"]
    assert [path.read_bytes() for path in built] == [
        (again / "dist" / path.name).read_bytes() for path in built
    ]

    # And the checks see what they are for.
    built[0].write_bytes(built[0].read_bytes() + b"\0")
    sh(check, dist, fails=True)
    sh("sha256sum -- *.whl *.tar.gz > SHA256SUMS", dist)
    sh(verify, dist, fails=True)
