"""Commands that no test runs: why, and what of them is held to the repository."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass

import yaml

from tests.documentation.pages import ROOT
from tests.documentation.shell import Command
from tests.documentation.stage import StepFailed


@dataclass(frozen=True, slots=True)
class NotRun:
    """A command that is only read, why, and what is looked at."""

    prefix: tuple[str, ...]
    reason: str
    check: Callable[[Command], None]


def script_is_well_formed(command: Command) -> None:
    """A script of the repository can be run, and Bash can read it."""
    path = ROOT / command.program
    if not os.access(path, os.X_OK):
        raise StepFailed(f"{command.program} cannot be run")
    subprocess.run(["bash", "-n", str(path)], check=True)


def packages_are_known(command: Command) -> None:
    """What is installed is this project, with extras that it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in command.words[1:]:
        if word in {"install", "-m", "pip", "--upgrade", "-U", "-q"}:
            continue
        known = re.fullmatch(r"(?:\.|stream-svt)(?:\[([\w,-]+)\])?(?:==[\w.]+)?", word)
        if not known:
            raise StepFailed(f"no package of this project: {word}")
        for extra in filter(None, (known[1] or "").split(",")):
            if extra not in project["optional-dependencies"]:
                raise StepFailed(f"pyproject.toml has no extra {extra}")


def _files_exist(command: Command) -> None:
    """Every word that looks like a file of the repository is one."""
    for word in command.words[1:]:
        place = word.partition("=")[2] if word.startswith("-") else word
        if _LIKE_A_FILE.fullmatch(place) and not any(
            (ROOT / top / place).exists() for top in ("", "examples")
        ):
            raise StepFailed(f"there is no {place}")


_LIKE_A_FILE = re.compile(
    r"(?:\./)?(?:deploy|docs|examples|tests|kafka_streams)/[\w./-]*|[\w-]+\.ya?ml|Dockerfile"
)


# The options of each verb that pages may use; a list of our own, for these programs are not on every machine.
_OPTIONS = {
    "kubectl": {
        "apply": "-f -k --dry-run --server-side",
        "create": "--from-file --from-literal --dry-run -o",
        "delete": "-f -k --ignore-not-found",
        "diff": "-f -k",
        "exec": "-i -t -it",
        "get": "-o -w --watch",
        "kustomize": "",
        "logs": "-f --follow --tail",
        "port-forward": "",
        "rollout": "--timeout",
        "scale": "--replicas",
        "wait": "--for --timeout",
    },
    "docker": {
        "build": "-t -f --build-arg --target --no-cache --pull --platform",
        "run": "--rm --read-only --cap-drop --security-opt --tmpfs --stop-timeout --name --network --user --env-file "
        "--init --entrypoint --mount -v -e -p -d -i -t -it",
    },
    "compose": {
        "build": "--pull --no-cache",
        "config": "-q --quiet --services",
        "down": "-v --volumes --remove-orphans",
        "exec": "-T",
        "kill": "-s",
        "logs": "-f --follow --tail",
        "ps": "-a",
        "pull": "-q",
        "restart": "-t",
        "run": "--rm --no-deps -T",
        "start": "",
        "stop": "-t",
        "up": "-d --detach --build --wait --scale --no-deps",
    },
}
_KINDS = {"svc": "service", "cm": "configmap"}


def _verb_and_rest(command: Command, program: str, always: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the word that says what to do and what follows it; files exist, and options are known."""
    _files_exist(command)
    known = _OPTIONS[program]
    place = next((at for at, word in enumerate(command.words) if word in known), None)
    if place is None:
        raise StepFailed(f"`{' '.join(command.words)}` is no command that is known here")
    verb = command.words[place]
    for word in itertools.takewhile(lambda word: word != "--", command.words):
        option = word.split("=")[0]
        if option.startswith("-") and option not in f"{always} {known[verb]}".split():
            raise StepFailed(f"{program} {verb} has no option {option} that is known here")
    return verb, command.words[place + 1 :]


def _kubectl(command: Command) -> None:
    """What is named, as KIND/NAME or KIND NAME, is in the manifests."""
    _, rest = _verb_and_rest(command, "kubectl", "-n --namespace")
    names = set()
    for path in (ROOT / "deploy/kubernetes").rglob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and "kind" in document:
                names.add((document["kind"].lower(), document.get("metadata", {}).get("name")))
    kinds = r"(?<!\S)(deployment|service|svc|job|configmap|cm)[/ ]([a-z][\w.-]+)"
    for kind, name in re.findall(kinds, " ".join(rest)):
        if (_KINDS.get(kind, kind), name) not in names:
            raise StepFailed(f"the manifests have no {kind} {name}")


def _docker(command: Command) -> None:
    """What is built or composed is there."""
    if command.words[1:2] == ("compose",) or command.program == "docker-compose":
        _composed(command)
        return
    verb, rest = _verb_and_rest(command, "docker")
    file = ROOT / "Dockerfile"
    if verb == "build" and not file.exists():
        raise StepFailed("there is no Dockerfile")
    for argument in re.findall(r"--build-arg ([A-Z]+)", " ".join(rest)):
        if not re.search(rf"^ARG {argument}\b", file.read_text(), re.MULTILINE):
            raise StepFailed(f"the Dockerfile has no argument {argument}")


def _composed(command: Command) -> None:
    """What is named after the verb is a service of the file."""
    verb, rest = _verb_and_rest(command, "compose", "-f --file --profile")
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for word in rest:
        if re.fullmatch(r"[a-z][\w-]*", word) and word not in services:
            raise StepFailed(f"docker-compose.yml has no service {word}")
        if verb in {"exec", "run"} and not word.startswith("-"):
            break


def is_a_module(command: Command) -> None:
    """What is run with -m can be imported."""
    if not module_exists(command.words[2]):
        raise StepFailed(f"there is no module {command.words[2]}")


NOT_RUN = [
    NotRun(
        ("tests/run", "lowest"),
        "installs an environment of its own from the registry",
        script_is_well_formed,
    ),
    NotRun(("deploy/sbom",), "installs an environment of its own from the registry", script_is_well_formed),
    NotRun(("deploy/scan",), "asks an advisory database over the network", script_is_well_formed),
    NotRun(("pip", "install"), "what it installs is what runs these tests", packages_are_known),
    NotRun(("python", "-m", "venv"), "these tests run in such an environment", lambda _: None),
    NotRun(
        ("javac",), "not every machine has a JDK; tests/kafka compiles and runs the program", _files_exist
    ),
    NotRun(("java",), "likewise", _files_exist),
    NotRun(
        ("python", "-m", "tests.golden.regenerate"),
        "writes into the repository; a test compares",
        is_a_module,
    ),
    NotRun(("docs/generate",), "likewise", script_is_well_formed),
    NotRun(("docker",), "no Docker engine runs in the tests", _docker),
    NotRun(("kubectl",), "no cluster runs in the tests", _kubectl),
]
"""All that no test runs. Everything else that a page shows is."""


def module_exists(name: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
