"""How the commands of pages are run: ours with the topics and workers that they need, long ones in small."""

from __future__ import annotations

import gzip
import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import yaml

from stream_svt.demo.data import load
from tests.documentation.configurations import configuration_with
from tests.documentation.inline_commands import problem_of
from tests.documentation.not_executed import is_a_module, script_is_well_formed
from tests.documentation.pages import ROOT
from tests.documentation.shell import Command
from tests.documentation.stage import NoRule, Stage, StepFailed
from tests.support.process import free_port

# Commands of stream-svt


def run_to_its_end(stage: Stage, command: Command, text: str) -> None:
    """Run a command of `stream-svt` that ends by itself."""
    path = configuration_of(stage, command)
    stage.bash(text)
    if path is not None and "--create-topics" in command.words:
        stage.checked.add(path.resolve())


def with_a_worker(stage: Stage, command: Command, text: str) -> None:
    """Run a command that talks to a worker, which is there."""
    path = configuration_of(stage, command) or any_configuration(stage)
    stage.worker(path)
    if "-c" not in command.words and "--url" not in command.words:
        text = f"STREAM_SVT_CONFIG='{path}' {text}"  # names the port, which is not the usual one here
    stage.bash(text, noisy=True)


def apply_file(stage: Stage, command: Command, text: str) -> None:
    """Apply a configuration while a worker runs, and say yes where that is asked."""
    asks = not {"--dry-run", "--yes"} & set(command.words)
    with_a_worker(stage, command, f"{text} --yes" if asks else text)


def start_worker(stage: Stage, command: Command, text: str) -> None:
    """Start a worker, and go on when it is ready."""
    del text
    path = configuration_of(stage, command)
    options = {"stream-svt", "run", "-c", "--config", "--apply"}
    if path is None or len(set(command.words) - options) != 1:
        raise NoRule("only the configuration of a worker may be chosen here")
    stage.worker(path)


def follow_alerts(stage: Stage, command: Command, text: str) -> None:
    """Start what follows alerts, and go on when it has shown one, or has ended where it is told to."""
    path = configuration_of(stage, command) or any_configuration(stage)
    stage.worker(path)
    running = stage.start(text)
    stage.alerted(running, ends="--limit" in command.words, fed="--from-beginning" not in command.words)


def forward_alerts(stage: Stage, command: Command, text: str) -> None:
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


def play_demo(stage: Stage, command: Command, text: str) -> None:
    """Play the demo in its shortest form on the broker that is there; once, for it is on several pages."""
    if {"--help", "--show-config"} & set(command.words):
        stage.bash(text)
    elif command.words not in _PLAYED:
        stage.bash(f"{text.split('#', maxsplit=1)[0]} --duration 1 --broker {stage.servers}")
        _PLAYED.add(command.words)


_PLAYED: set[tuple[str, ...]] = set()


def take_the_broker(stage: Stage, command: Command, text: str) -> None:
    """Take the tests' broker for the one that a page starts; `tests/kafka/test_embedded.py` starts one."""
    del command
    stage.bash(f"{text} --help")


def configuration_of(stage: Stage, command: Command) -> Path | None:
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


# Scripts of the repository, git, and the tools of a release


def selects_tests(stage: Stage, command: Command, text: str) -> None:
    """See that a call of the tests selects some, by a place and a word of their names; without arguments it does."""
    del stage, text
    script_is_well_formed(command)
    match command.words[1:]:
        case ():
            return
        case ("coverage" | "quick" as word,):
            if not re.search(rf'"\$\S+" = {word} \]', (ROOT / command.program).read_text()):
                raise StepFailed(f"{command.program} does not know the word {word}")
        case (place,) | (place, "-k", _):
            files = [ROOT / place, *(ROOT / place).rglob("test_*.py")]
            names = {path.stem for path in files if path.is_file()}
            names |= {
                name
                for path in files
                if path.is_file()
                for name in re.findall(r"def (test_\w+)", path.read_text())
            }
            if not any(command.words[3:] == () or command.words[3] in name for name in names):
                raise StepFailed(f"no tests are found at {place}")
        case _:
            raise NoRule("only a place and a word after -k may select tests here")


def play_soak(stage: Stage, command: Command, text: str) -> None:
    """Play a long test with the smallest count; one name is played once."""
    del text
    name = command.words[2]
    _options_exist(stage, command, 3)
    if name in _SMALLEST:
        stage.bash(f"tests/run soak {name} {_SMALLEST[name]}", seconds=240)


_SMALLEST = {"simulation": "--count 20", "alignment": "--count 20", "fuzz": "--count 200"}
"""Those that need brokers of their own have their short form in the suite already."""


def ask_benchmark(stage: Stage, command: Command, text: str) -> None:
    """Ask a benchmark for its options; `tests/benchmarks` runs each in a small form."""
    if len(command.words) == 1:
        stage.bash(text)
    else:
        _options_exist(stage, command, 2)


def _options_exist(stage: Stage, command: Command, place: int) -> None:
    """The name before ``place`` exists, and its own help has the options after it."""
    if problem := problem_of(command.words):
        raise StepFailed(problem)
    options = [word.split("=")[0] for word in command.words[place:] if word.startswith("-")]
    if not options:
        return
    text = " ".join(command.words[:place])
    if text not in stage.helps:
        stage.helps[text] = stage.bash(f"{text} --help")
    for option in options:
        if not re.search(rf"{re.escape(option)}\b", stage.helps[text]):
            raise StepFailed(f"{text} has no option {option}")


def in_a_repository(stage: Stage, command: Command, text: str) -> None:
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


def sign_files(stage: Stage, command: Command, text: str) -> None:
    """Sign with the page's key; its reader has one, and publishes who may sign."""
    key = stage.here / command.words[command.words.index("-f") + 1]
    if not key.exists():
        shutil.copy(stage.directory / "signing_key", key)
        shutil.copy(stage.directory / "signing_key.pub", f"{key}.pub")
    stage.bash(text)


def verify_files(stage: Stage, command: Command, text: str) -> None:
    """Verify what was published, beside the list of signers."""
    for path in (stage.here / "dist").iterdir():
        shutil.copy(path, stage.here)
    shutil.copy(stage.directory / "signers", stage.here / command.words[command.words.index("-f") + 1])
    stage.bash(text)


def run_program(stage: Stage, command: Command, text: str) -> None:
    """Run a program that the page has shown, or a module of the repository."""
    if command.words[1:2] == ("-m",):
        is_a_module(command)
    elif not (stage.here / command.words[1]).exists():
        raise NoRule(f"the page shows no file {command.words[1]}, and the repository has none")
    stage.bash(text)


def pack_data(stage: Stage, command: Command, text: str) -> None:
    """Pack the text that the shipped data came from, and find them again."""
    baskets, place = load(), stage.here / command.words[3]
    with gzip.open(place, "wt", encoding="ascii", compresslevel=1) as lines:
        for start, end in itertools.pairwise(baskets.start.tolist()):
            lines.write(" ".join(map(str, baskets.items[start:end].tolist())) + "\n")
    stage.bash(text)
    again = load(stage.here / command.words[4])
    if not (np.array_equal(again.start, baskets.start) and np.array_equal(again.items, baskets.items)):
        raise StepFailed("what it wrote is not what the package ships")


def signal_worker(stage: Stage, command: Command, text: str) -> None:
    """Signal the page's worker, which goes on."""
    if "-HUP" not in command.words:
        raise NoRule("only a worker is signalled here, to read its configuration again")
    worker = stage.worker(any_configuration(stage))
    stage.bash(re.sub(r"\bPID\b", str(worker.process.pid), text))
    stage.until(lambda: "read again" in worker.said() or "reload" in worker.said(), "reading again", worker)


def make_secrets(stage: Stage, command: Command, text: str) -> None:
    """Make what the stack mounts, in the page's copy."""
    stage.bash(text)
    for line in (ROOT / "docker-compose.yml").read_text().splitlines():
        if (named := re.search(r"file: (\S*/secrets/\S+)", line)) and not (stage.here / named[1]).exists():
            raise StepFailed(f"{command.program} did not make {named[1]}")


def build_package(stage: Stage, command: Command, text: str) -> None:
    """Build without an isolated environment, for what builds is installed; a second time the bytes are the same."""
    del command
    stage.bash(text.replace("python -m build", "python -m build --no-isolation"), seconds=240)
    if (stage.here / "SHA256SUMS").exists():
        stage.bash("cd dist && sha256sum --check --ignore-missing --strict ../SHA256SUMS; cd ..")
