"""What is done with each command that a page shows: run as it stands, in small, in the background, or not at all.

The first rule that matches a command counts. A command that none matches is an error of the page or of this table.
"""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import yaml

from stream_svt.cli import app
from stream_svt.demo.data import load
from tests.documentation.documents import NoRule, configuration_with
from tests.documentation.pages import ROOT
from tests.documentation.shell import Command, Step, commands, parts, steps
from tests.documentation.stage import Stage, StepFailed
from tests.support.process import free_port

How = Callable[[Stage, Command, str], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do with commands that begin with some words; ``broker`` says whether it takes one."""

    prefix: tuple[str, ...]
    how: How
    broker: bool = False


@dataclass(frozen=True, slots=True)
class NotRun:
    """A command that is only read, why, and what is looked at."""

    prefix: tuple[str, ...]
    reason: str
    check: Callable[[Command], None]


# Commands that are only looked at


def _script_is_well_formed(command: Command) -> None:
    path = ROOT / command.program
    if not os.access(path, os.X_OK):
        raise StepFailed(f"{command.program} cannot be run")
    subprocess.run(["bash", "-n", str(path)], check=True)


def _packages_are_known(command: Command) -> None:
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


def _options_are_known(command: Command, verb: str, known: str) -> None:
    """The options are among those of the verb; a list of our own, for their programs are not on every machine."""
    for word in itertools.takewhile(lambda word: word != "--", command.words):
        option = word.split("=")[0]
        if option.startswith("-") and option not in known.split():
            raise StepFailed(f"{command.program} {verb} has no option {option} that is known here")


_OF_KUBECTL = {
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
}
_OF_DOCKER = {
    "build": "-t -f --build-arg --target --no-cache --pull --platform",
    "run": "--rm --read-only --cap-drop --security-opt --tmpfs --stop-timeout --name --network --user --env-file "
    "--init --entrypoint --mount -v -e -p -d -i -t -it",
}
_OF_COMPOSE = {
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
}
_KINDS = {"svc": "service", "cm": "configmap"}


def _verb(command: Command, known: Mapping[str, str]) -> int:
    """Return the place of the word that says what to do."""
    place = next((at for at, word in enumerate(command.words) if word in known), None)
    if place is None:
        raise StepFailed(f"`{' '.join(command.words)}` is no command that is known here")
    return place


def _manifests_know(command: Command) -> None:
    """What is named, as KIND/NAME or KIND NAME, is in the manifests, and files and folders exist."""
    place = _verb(command, _OF_KUBECTL)
    verb = command.words[place]
    _files_exist(command)
    _options_are_known(command, verb, f"-n --namespace {_OF_KUBECTL[verb]}")
    names = set()
    for path in (ROOT / "deploy/kubernetes").rglob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and "kind" in document:
                names.add((document["kind"].lower(), document.get("metadata", {}).get("name")))
    text = " ".join(command.words[place + 1 :])
    for kind, name in re.findall(r"(?<!\S)(deployment|service|svc|job|configmap|cm)[/ ]([a-z][\w.-]+)", text):
        if (_KINDS.get(kind, kind), name) not in names:
            raise StepFailed(f"the manifests have no {kind} {name}")


def _docker(command: Command) -> None:
    """What is built, mounted or composed is there; what is set from outside is a setting."""
    _files_exist(command)
    if command.words[1:2] == ("compose",) or command.program == "docker-compose":
        _composed(command)
        return
    verb = command.words[_verb(command, _OF_DOCKER)]
    _options_are_known(command, verb, _OF_DOCKER[verb])
    if verb == "build" and not (ROOT / "Dockerfile").exists():
        raise StepFailed("there is no Dockerfile")
    for argument in re.findall(r"--build-arg ([A-Z]+)", " ".join(command.words)):
        if not re.search(rf"^ARG {argument}\b", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
            raise StepFailed(f"the Dockerfile has no argument {argument}")


def _composed(command: Command) -> None:
    """What is named after the verb is a service of the file."""
    place = _verb(command, _OF_COMPOSE)
    verb = command.words[place]
    _options_are_known(command, verb, f"-f --file --profile {_OF_COMPOSE[verb]}")
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for word in command.words[place + 1 :]:
        if re.fullmatch(r"[a-z][\w-]*", word) and word not in services:
            raise StepFailed(f"docker-compose.yml has no service {word}")
        if verb in {"exec", "run"} and not word.startswith("-"):
            break


def _module(command: Command) -> None:
    if not _module_exists(command.words[2]):
        raise StepFailed(f"there is no module {command.words[2]}")


NOT_RUN = [
    NotRun(
        ("tests/run", "lowest"),
        "installs an environment of its own from the registry",
        _script_is_well_formed,
    ),
    NotRun(("deploy/sbom",), "installs an environment of its own from the registry", _script_is_well_formed),
    NotRun(("deploy/scan",), "asks an advisory database over the network", _script_is_well_formed),
    NotRun(("pip", "install"), "what it installs is what runs these tests", _packages_are_known),
    NotRun(("python", "-m", "venv"), "these tests run in such an environment", lambda _: None),
    NotRun(
        ("javac",), "not every machine has a JDK; tests/kafka compiles and runs the program", _files_exist
    ),
    NotRun(("java",), "likewise", _files_exist),
    NotRun(
        ("python", "-m", "tests.golden.regenerate"), "writes into the repository; a test compares", _module
    ),
    NotRun(("docs/generate",), "likewise", _script_is_well_formed),
    NotRun(("docker",), "no Docker engine runs in the tests", _docker),
    NotRun(("kubectl",), "no cluster runs in the tests", _manifests_know),
]
"""All that no test runs. Everything else that a page shows is."""


# Commands that are run


def as_it_stands(stage: Stage, command: Command, text: str) -> None:
    """Run it, if the program is on this machine."""
    if command.program not in _BUILTIN:
        stage.need(command.program)
    stage.bash(text, noisy="curl" in text or "kcat" in text)


def _ours(stage: Stage, command: Command, text: str) -> None:
    """Run a command of `stream-svt` that ends by itself."""
    path = _configuration_of(stage, command)
    stage.bash(text)
    if path is not None and "--create-topics" in command.words:
        stage.checked.add(path.resolve())


def _with_a_worker(stage: Stage, command: Command, text: str) -> None:
    path = _configuration_of(stage, command) or any_configuration(stage)
    stage.worker(path)
    if "-c" not in command.words and "--url" not in command.words:
        text = f"STREAM_SVT_CONFIG='{path}' {text}"  # names the port, which is not the usual one here
    stage.bash(text, noisy=True)


def _with_the_workers_stopped(stage: Stage, command: Command, text: str) -> None:
    path = _configuration_of(stage, command)
    assert path is not None
    stage.worker(path)  # there are books to move
    stage.feed(configuration=path)
    stage.stop_workers()
    stage.bash(text)
    if "--dry-run" not in command.words:  # as the command tells its user
        partitions = command.words[command.words.index("--partitions") + 1]
        path.write_text(re.sub(r"partitions: \d+", f"partitions: {partitions}", path.read_text()))


def _start_worker(stage: Stage, command: Command, text: str) -> None:
    del text
    path = _configuration_of(stage, command)
    if set(command.words) - {"stream-svt", "run", "-c", "--config"} - {command.words[-1]}:
        raise NoRule("only the configuration of a worker may be chosen here")
    assert path is not None
    stage.worker(path)


def _follow(stage: Stage, command: Command, text: str) -> None:
    """Start what follows alerts, and go on when it has shown one, or has ended where it is told to."""
    path = _configuration_of(stage, command) or any_configuration(stage)
    stage.worker(path)
    running = stage.start(text)
    stage.alerted(running, ends="--limit" in command.words, fed="--from-beginning" not in command.words)


def _forward(stage: Stage, command: Command, text: str) -> None:
    """Ask the forwarder for what ends by itself, or start it and see that every destination gets an alert."""
    if {"--schema", "--help"} & set(command.words):
        stage.bash(text)
        return
    stage.worker(any_configuration(stage))
    if {"--check", "--test"} & set(command.words):
        stage.bash(text)
        return
    assert stage.receiver
    path = stage.here / command.words[command.words.index("-c") + 1]
    expected = len(yaml.safe_load(path.read_text())["destinations"])
    stage.receiver.posts.clear()
    stage.feed()
    port, posts = free_port(), stage.receiver.posts
    running = stage.start(text.split("#", maxsplit=1)[0], STREAM_SVT_WEB_PORT=str(port))
    stage.until(lambda: len({post.path for post in posts}) == expected, "a post to each destination", running)
    if any("webhook-id" in post.headers and "webhook-signature" not in post.headers for post in posts):
        raise StepFailed("a webhook was not signed")
    stage.fetch(f"http://127.0.0.1:{port}/metrics")
    stage.running.remove(running)
    if code := running.end():
        raise StepFailed(f"`{running.text}` ended with exit code {code}:\n{running.said()[-1500:]}")


def _demo(stage: Stage, command: Command, text: str) -> None:
    """Play the demo in its shortest form on the broker that is there; once, for it is on several pages."""
    if {"--help", "--show-config"} & set(command.words):
        stage.bash(text)
    elif command.words not in _PLAYED:
        stage.bash(f"{text.split('#', maxsplit=1)[0]} --duration 1 --broker {stage.servers}")
        _PLAYED.add(command.words)


_PLAYED: set[tuple[str, ...]] = set()


def _embedded(stage: Stage, command: Command, text: str) -> None:
    """Take the tests' broker for the one that a page starts; `tests/kafka/test_embedded.py` starts one."""
    del command
    stage.bash(f"{text} --help")


def _selects_tests(stage: Stage, command: Command, text: str) -> None:
    del text
    if command.words == ("tests/run",):
        _script_is_well_formed(command)  # it is what runs this
        return
    stage.bash(" ".join([*command.words, "--collect-only", "-q", "-p", "no:cacheprovider"]), seconds=240)


def _soak(stage: Stage, command: Command, text: str) -> None:
    """Play a long test with the smallest count; one name is played once."""
    del text
    name, options = command.words[2], list(command.words[3:])
    _options_of_help(stage, f"tests/run soak {name}", options)
    if name in _SMALLEST:
        stage.bash(f"tests/run soak {name} {_SMALLEST[name]}", seconds=240)


_SMALLEST = {"simulation": "--count 20", "alignment": "--count 20", "fuzz": "--count 200"}
"""Those that need brokers of their own have their short form in the suite already."""


def _benchmark(stage: Stage, command: Command, text: str) -> None:
    """Ask a benchmark for its options; `tests/benchmarks` runs each in a small form."""
    if len(command.words) == 1:
        stage.bash(text)
        return
    _options_of_help(stage, f"benchmarks/run {command.words[1]}", list(command.words[2:]))


def _options_of_help(stage: Stage, text: str, options: Sequence[str]) -> None:
    if text not in stage.helps:
        stage.helps[text] = stage.bash(f"{text} --help")
    for option in options:
        if option.startswith("-") and not re.search(
            rf"{re.escape(option.split('=')[0])}\b", stage.helps[text]
        ):
            raise StepFailed(f"{text} has no option {option}")


def _in_a_repository(stage: Stage, command: Command, text: str) -> None:
    """Use git in a repository of the page's own, with a key that signs."""
    del command
    if not (stage.directory / "repository").exists():
        _make_repository(stage)
    stage.bash(text)


def _make_repository(stage: Stage) -> None:
    stage.here = stage.directory / "repository"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "site")
    shutil.copytree(ROOT, stage.here, ignore=left_out)
    signers, key = stage.directory / "signers", stage.directory / "signing_key"
    (stage.directory / "gitconfig").write_text(
        "[user]\nname = Somebody\nemail = releases@example.org\n"
        f'signingkey = {key}.pub\n[gpg]\nformat = ssh\n[gpg "ssh"]\nallowedSignersFile = {signers}\n'
    )
    stage.bash(f"ssh-keygen -q -t ed25519 -N '' -f '{key}'")
    signers.write_text(f"releases@example.org {key.with_suffix('.pub').read_text()}")
    stage.bash("git init -q && git add -A && git commit -q -m 'As it stands'")


def _sign(stage: Stage, command: Command, text: str) -> None:
    """Sign with the page's key; its reader has one, and publishes who may sign."""
    key = stage.here / command.words[command.words.index("-f") + 1]
    if not key.exists():
        shutil.copy(stage.directory / "signing_key", key)
        shutil.copy(stage.directory / "signing_key.pub", f"{key}.pub")
    stage.bash(text)


def _verify(stage: Stage, command: Command, text: str) -> None:
    """Verify what was published, beside the list of signers."""
    for path in (stage.here / "dist").iterdir():
        shutil.copy(path, stage.here)
    shutil.copy(stage.directory / "signers", stage.here / command.words[command.words.index("-f") + 1])
    stage.bash(text)


def _program(stage: Stage, command: Command, text: str) -> None:
    """Run a program that the page has shown, or a module of the repository."""
    if command.words[1:2] == ("-m",):
        _module(command)
    elif not (stage.here / command.words[1]).exists():
        raise NoRule(f"the page shows no file {command.words[1]}, and the repository has none")
    stage.bash(text)


def _pack(stage: Stage, command: Command, text: str) -> None:
    """Pack the text that the shipped data came from, and find them again."""
    baskets, place = load(), stage.here / command.words[3]
    with gzip.open(place, "wt", encoding="ascii", compresslevel=1) as lines:
        for start, end in itertools.pairwise(baskets.start.tolist()):
            lines.write(" ".join(map(str, baskets.items[start:end].tolist())) + "\n")
    stage.bash(text)
    again = load(stage.here / command.words[4])
    if not (np.array_equal(again.start, baskets.start) and np.array_equal(again.items, baskets.items)):
        raise StepFailed("what it wrote is not what the package ships")


def _signal(stage: Stage, command: Command, text: str) -> None:
    """Signal the page's worker, which goes on."""
    if "-HUP" not in command.words:
        raise NoRule("only a worker is signalled here, to read its configuration again")
    worker = stage.worker(any_configuration(stage))
    stage.bash(re.sub(r"\bPID\b", str(worker.process.pid), text))
    stage.until(lambda: "read again" in worker.said() or "reload" in worker.said(), "reading again", worker)


def _make_secrets(stage: Stage, command: Command, text: str) -> None:
    """Make what the stack mounts, in the page's copy."""
    stage.bash(text)
    for line in (ROOT / "docker-compose.yml").read_text().splitlines():
        if (named := re.search(r"file: (\S*/secrets/\S+)", line)) and not (stage.here / named[1]).exists():
            raise StepFailed(f"{command.program} did not make {named[1]}")


def _build(stage: Stage, command: Command, text: str) -> None:
    """Build without an isolated environment, for what builds is installed; a second time the bytes are the same."""
    del command
    stage.bash(text.replace("python -m build", "python -m build --no-isolation"), seconds=240)
    if (stage.here / "SHA256SUMS").exists():
        stage.bash("cd dist && sha256sum --check --ignore-missing --strict ../SHA256SUMS; cd ..")


def _configuration_of(stage: Stage, command: Command) -> Path | None:
    """Return the file that a command names; where the page has not shown it, it is the usual one."""
    for option in ("-c", "--config"):
        if option in command.words[:-1]:
            path = stage.here / stage.own(command.words[command.words.index(option) + 1])
            if not path.exists():
                datasets = [word for word in command.words if word.startswith("retail-2026")]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(stage.own(configuration_with(stage.additions, datasets)))
            stage.configuration = path
            return path
    return None


def any_configuration(stage: Stage) -> Path:
    """Return the page's configuration; of a page that shows none, the README's with what the page shows of it."""
    if stage.configuration is None:
        stage.write("usual.yaml", configuration_with(stage.additions))
    return stage.application()


_BUILTIN = ". source cd echo export false printf pwd set test true umask unset".split()  # noqa: SIM905
_PROGRAMS = (  # noqa: SIM905
    "base64 cat chmod cp curl cut find grep head ls mkdir mv openssl rm sed sha256sum sleep sort ssh-keygen tail tee "
    "touch tr wc kcat promtool amtool jq"
).split()

RULES = [
    Rule(("deploy/demo",), _demo, broker=True),
    Rule(("stream-svt", "demo"), _demo, broker=True),
    Rule(("stream-svt", "run"), _start_worker, broker=True),
    Rule(("stream-svt", "watch"), _follow, broker=True),
    Rule(("stream-svt", "forward"), _forward, broker=True),
    Rule(("stream-svt", "status"), _with_a_worker, broker=True),
    Rule(("stream-svt", "control"), _with_a_worker, broker=True),
    Rule(("stream-svt", "audit"), _with_a_worker, broker=True),
    Rule(("stream-svt", "migrate"), _with_the_workers_stopped, broker=True),
    Rule(("stream-svt", "check"), _ours, broker=True),
    Rule(("stream-svt",), _ours),
    Rule(("tests/run", "soak"), _soak),
    Rule(("tests/run",), _selects_tests),
    Rule(("benchmarks/run",), _benchmark),
    Rule(("python", "-m", "build"), _build),
    Rule(("python", "-m", "stream_svt.service.embedded"), _embedded, broker=True),
    Rule(("python", "-m", "stream_svt.demo.data"), _pack),
    Rule(("deploy/compose/make-secrets",), _make_secrets),
    Rule(("kill",), _signal, broker=True),
    Rule(("git",), _in_a_repository),
    Rule(("ssh-keygen", "-Y", "sign"), _sign),
    Rule(("ssh-keygen", "-Y", "verify"), _verify),
    Rule(("python",), _program),
    *(Rule((program,), as_it_stands) for program in (*_BUILTIN, *_PROGRAMS)),
]


def rule_of(command: Command) -> Rule | NotRun | None:
    """Return what is done with a command, None where nobody knows."""
    for table in (NOT_RUN, RULES):
        for rule in table:
            if command.starts(rule.prefix):
                return rule
    return None


def is_shell(text: str) -> bool:
    """Whether a text without a language is one of commands that a rule here knows."""
    try:
        found = [command for step in steps(text) for command in commands(step.text)]
    except ValueError:
        return False
    return bool(found) and all(rule_of(command) for command in found)


def needs_broker(text: str) -> bool:
    """Whether one of the commands takes a broker."""
    return any(
        isinstance(rule := rule_of(command), Rule) and rule.broker
        for step in steps(text)
        for command in commands(step.text)
    )


def play(stage: Stage, step: Step) -> None:
    """Do what a command line of a page says.

    Raises
    ------
    NoRule
        Nothing is known of one of its commands.
    StepFailed
        It went wrong.
    """
    for command in commands(step.text):
        if rule_of(command) is None:
            raise NoRule(f"no rule knows the command `{' '.join(command.words)}`")
    pieces = parts(step.text)
    if all(_plain(command) for command in commands(step.text)):
        pieces = [step.text]
    for piece in pieces:
        found = commands(piece)
        if not found:  # a comment, or assignments alone
            stage.bash(piece)
            continue
        first = next((command for command in found if not _plain(command)), found[0])
        rule = rule_of(first)
        if isinstance(rule, NotRun):
            rule.check(first)
        elif rule is not None:
            rule.how(stage, first, piece)


def _plain(command: Command) -> bool:
    rule = rule_of(command)
    return isinstance(rule, Rule) and rule.how is as_it_stands


# Commands in sentences


def problem_of(words: Sequence[str]) -> str | None:
    """Return what is wrong with a command that stands in a sentence, perhaps shortened; None if nothing is."""
    if words[0] == "stream-svt":
        return _problem_of_ours(words[1:])
    if "/" in words[0]:
        return _problem_of_script(words)
    if words[:2] == ["python", "-m"] and len(words) > 2:
        return None if _module_exists(words[2]) else f"no module {words[2]}"
    if words[0] == "pip":
        try:
            _packages_are_known(Command(tuple(words)))
        except StepFailed as error:
            return str(error)
    return None


def _problem_of_script(words: Sequence[str]) -> str | None:
    if not (ROOT / words[0]).exists():
        return f"there is no {words[0]}"
    if words[0] == "benchmarks/run" and len(words) > 1 and words[1].islower():
        return None if (ROOT / f"benchmarks/{words[1]}.py").exists() else f"no benchmark {words[1]}"
    if words[:2] == ["tests/run", "soak"] and len(words) > 2 and words[2].islower():
        [names] = re.findall(r"soak NAME: (.*)\"", (ROOT / "tests/run").read_text())
        return None if words[2] in re.findall(r"\w+", names) else f"no soak {words[2]}"
    return None


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _problem_of_ours(words: Sequence[str]) -> str | None:
    command: click.Command = app
    waiting: click.Option | None = None
    for word in words:
        if waiting is not None:
            problem = _problem_of_value(waiting, word)
            waiting = None
            if problem:
                return problem
        elif word.startswith("-") and word != "-":
            name, equals, _ = word.partition("=")
            option = _option(command, name)
            if option is None:
                return f"{command.name} has no option {name}"
            waiting = option if not (option.is_flag or option.count or equals) else None
        elif isinstance(command, click.Group):
            below = command.commands.get(word)
            if below is None:
                return None if _is_placeholder(word) else f"stream-svt has no command {word}"
            command = below
    return None


def _problem_of_value(option: click.Option, value: str) -> str | None:
    if _is_placeholder(value):
        return None
    try:
        option.type.convert(value, option, None)
    except click.UsageError as error:
        return f"{option.opts[0]}: {error.message}"
    return None


def is_usage(line: str) -> bool:
    """Whether a line says how one of our commands is called: its name and what follows it."""
    command: click.Command = app
    context = click.Context(app, info_name="stream-svt")
    for word in line.split()[1:]:
        below = command.commands.get(word) if isinstance(command, click.Group) else None
        if below is None:
            break
        command, context = below, click.Context(below, info_name=word, parent=context)
    return line == " ".join([context.command_path, *command.collect_usage_pieces(context)])


def _option(command: click.Command, name: str) -> click.Option | None:
    if name in {"-h", "--help"}:
        return click.Option([name], is_flag=True)
    found = [one for one in command.params if isinstance(one, click.Option)]
    return next((one for one in found if name in (*one.opts, *one.secondary_opts)), None)


def _is_placeholder(word: str) -> bool:
    return word.isupper() or word in {"..", "...", "…"} or word[0] in "<[{"


def all_options() -> set[str]:
    """Return every option of every command, as pages may speak of one without its command."""
    found, waiting = {"--help", "--version"}, [app]
    while waiting:
        command: click.Command = waiting.pop()
        waiting += command.commands.values() if isinstance(command, click.Group) else ()
        for parameter in command.params:
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found
