"""What comes with an installation is known: bounds that `tests/run lowest` can install, scripts that run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

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


@pytest.mark.parametrize("script", ["tests/lowest", "deploy/sbom", "deploy/scan", "deploy/release"])
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
    build = f"{_step('deploy/release')} --no-isolation"
    sign = _step("ssh-keygen -Y sign").replace("release_key", "../release_key")
    verify = _step("ssh-keygen -Y verify").replace("allowed_signers", "../../allowed_signers")
    check = _step("sha256sum --check")
    sh(f"git clone -q {ROOT} {tagged}", tmp_path)
    sh("deploy/release v1.2.0", tagged, fails=True)  # not the version of pyproject.toml
    sh("sed -i 's/^version = .*/version = \"1.2.0\"/' pyproject.toml", tagged)
    sh("deploy/release v1.2.0", tagged, fails=True)  # nor of the chart
    sh("sed -i 's/^appVersion: .*/appVersion: 1.2.0/' deploy/helm/stream-svt/Chart.yaml", tagged)
    sh("deploy/release v1.2.0", tagged, fails=True)  # not committed
    sh("git commit -qam 1.2.0", tagged)
    sh(_step("git tag -s"), tagged)
    sh(_step("git clone --branch").split(" && ")[0], tagged)
    sh(build, release)
    sh(_step("(cd dist"), release)
    sh(sign, release)

    dist = release / "dist"
    sh(verify, dist)
    sh(check, dist)
    again = tmp_path / "again"
    sh(f"git clone -q {tagged} {again}", tmp_path)
    sh(_step("git tag -v").split(" && ")[0], again)
    # Later, by another user: neither the clock nor a umask is in the files.
    sh(f"umask 077; git checkout -q v1.2.0; touch stream_svt/*.py; {build}", again)
    built = sorted(path for path in dist.iterdir() if not path.name.startswith("SHA256SUMS"))
    assert [path.name for path in built] == [
        "stream-svt-chart-1.2.0.tgz",
        "stream_svt-1.2.0-py3-none-any.whl",
        "stream_svt-1.2.0.tar.gz",
    ]
    with tarfile.open(built[0]) as chart:
        assert all(one.isfile() or one.isdir() for one in chart.getmembers())
        assert "stream-svt/rules/alerts.yml" in chart.getnames()
    assert [path.read_bytes() for path in built] == [
        (again / "dist" / path.name).read_bytes() for path in built
    ]

    # And the checks see what they are for.
    built[1].write_bytes(built[1].read_bytes() + b"\0")
    sh(check, dist, fails=True)
    sh("sha256sum -- *.whl *.tar.gz > SHA256SUMS", dist)
    sh(verify, dist, fails=True)


WORKFLOW = ROOT / ".github/workflows/release.yml"
STEPS = [step for job in yaml.safe_load(WORKFLOW.read_text())["jobs"].values() for step in job["steps"]]
RUNS = {step["name"]: step["run"] for step in STEPS if "run" in step}


def test_the_workflow_of_a_release_keeps_to_its_schema_and_an_auditor_finds_nothing() -> None:
    """Among what it looks for: actions that are not pinned, credentials left behind, rights that nobody needs."""
    auditor = [str(Path(sys.executable).parent / "zizmor"), "--offline", "--no-progress", str(WORKFLOW)]
    done = subprocess.run(auditor, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_does_what_the_recipe_says() -> None:
    # Both in other words: the name of the tag, and where the bill is for one version.
    tag = '"$GITHUB_REF_NAME"'
    said = {run.replace(tag, "v1.2.0").replace("${GITHUB_REF_NAME#v}", "1.2.0") for run in RUNS.values()}
    for beginning in ("deploy/release", "deploy/sbom", "(cd dist"):
        assert _step(beginning) in {run.replace('"', "") for run in said}
    for part in _step("tests/run").split(" && "):
        assert any(run.startswith({"tests/run": ".ci/run"}.get(part, part)) for run in said)


@pytest.mark.parametrize("name", RUNS)
def test_a_step_of_the_workflow_is_well_formed_and_starts_what_exists(name: str) -> None:
    subprocess.run(["bash", "-n"], input=RUNS[name], text=True, check=True)
    program = RUNS[name].split()[0]
    if "/" in program:
        assert os.access(ROOT / program, os.X_OK)


def test_the_bill_is_attested_as_it_is(tmp_path) -> None:
    """The action expands patterns of subjects only, and wants a serial number in what `sbom-path` names."""
    [options] = [step["with"] for step in STEPS if "predicate-path" in step.get("with", {})]
    assert options["predicate-type"] == "https://cyclonedx.org/bom"
    assert options["predicate-path"] == "${{ steps.bill.outputs.path }}"
    for step in STEPS:
        assert not {"sbom-path"} & set(step.get("with", {}))
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/stream-svt-1.2.0.cdx.json").touch()
    [run] = [step["run"] for step in STEPS if step.get("id") == "bill"]
    output = tmp_path / "output"
    here = os.environ | {"GITHUB_OUTPUT": str(output)}
    subprocess.run(["bash", "-euc", run], cwd=tmp_path, env=here, check=True)
    assert output.read_text() == "path=dist/stream-svt-1.2.0.cdx.json\n"


def test_the_index_gets_the_packages_alone(tmp_path) -> None:
    made = ("a.whl", "a.tar.gz", "a-chart.tgz", "a.cdx.json", "SHA256SUMS")
    (tmp_path / "all").mkdir()
    for file in made:
        (tmp_path / "all" / file).touch()
    subprocess.run(["bash", "-euc", RUNS["Packages alone"]], cwd=tmp_path, check=True)
    assert {path.name for path in (tmp_path / "dist").iterdir()} == {"a.whl", "a.tar.gz"}


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/stream-svt/Chart.yaml").read_text())
    assert chart["appVersion"] == PROJECT["version"]
