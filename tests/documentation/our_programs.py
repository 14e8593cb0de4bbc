"""How the commands of `stream-svt` are run: with topics, a worker and queries where they need them."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.documentation.configurations import configuration_with
from tests.documentation.shell import Command
from tests.documentation.stage import NoRule, Stage, StepFailed
from tests.support.process import free_port


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
