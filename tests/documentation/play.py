"""Plays the code of a page from its first block to its last, each by the rule of its language."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.documentation import commands as table
from tests.documentation.configurations import configuration_with
from tests.documentation.documents import check_json, check_yaml
from tests.documentation.inline_commands import problem_of
from tests.documentation.pages import Block, Span, blocks, code_of
from tests.documentation.programs import any_configuration
from tests.documentation.sentences import unknown_setting
from tests.documentation.shell import Command, commands, steps
from tests.documentation.stage import BROKERS, NoRule, Stage, StepFailed
from tests.documentation.unique_blocks import check_of

_KINDS = {"sh": "shell", "": "shell", "python": "python", "yaml": "yaml", "json": "json", "text": "output"}
"""How a block is played, by its language; what only stands indented is for the shell."""


def kind_of(block: Block) -> str:
    """Return how a block is played: unique, shell, python, yaml, json, output; "" where no rule covers it."""
    if check_of(block):
        return "unique"
    return "" if block.form == "html" else _KINDS.get(block.language, "")


def page_needs_broker(page: Path) -> bool:
    """Whether a page cannot be played without a broker."""
    return str(page) not in READ_ONLY and any(map(_needs_broker, blocks(page)))


def _needs_broker(block: Block) -> bool:
    kind = kind_of(block)
    if kind == "shell":
        return any(table.needs_broker(command) for command in commands_of(block))
    return kind == "python" and any(broker in block.text for broker in BROKERS)


def commands_of(block: Block) -> list[Command]:
    """Return all commands of a block for the shell."""
    return [command for step in steps(block.text) for command in commands(step.text)]


def uncovered(block: Block) -> list[str]:
    """Return why a block, or a command in it, has no rule; nothing is run."""
    kind = kind_of(block)
    if unknown := unknown_setting(block.text):
        return [f"{block}: {unknown}"]
    if not kind:
        return [f"{block}: no rule covers this block: {block.text.strip().splitlines()[0]}"]
    if kind != "shell":
        return []
    try:
        found = steps(block.text)
    except ValueError as error:
        return [f"{block}: {error}"]
    return [
        f"{block.page}:{block.line + step.line}: no rule knows the command `{' '.join(command.words)}`"
        for step in found
        for command in commands(step.text)
        if table.rule_of(command) is None
    ]


READ_ONLY = {"docs/command-line.md": "it shows what --help does, for configurations of its reader"}
"""Pages whose commands are looked at like those in sentences, and why."""


def play_page(stage: Stage, page: Path, *, but: str = "") -> list[str]:
    """Play a page, perhaps without a section, and return what went wrong, each with its place."""
    problems = []
    for code in code_of(page):
        if isinstance(code, Span):
            stage.said = code.text if code.text.startswith("stream-svt ") else stage.said
        elif not but or code.section != but:
            problems += read(code) if str(page) in READ_ONLY else play(stage, code)
    return problems


def read(block: Block) -> list[str]:
    """Look at the commands of a block without running them."""
    kind = kind_of(block)
    if kind == "output":
        return [f"{block}: shows an output, and nothing is run on this page"]
    if kind != "shell":
        return uncovered(block)
    return uncovered(block) + [
        f"{block}: {said}" for one in commands_of(block) if (said := problem_of(one.words))
    ]


def play(stage: Stage, block: Block) -> list[str]:
    """Play a block and return what went wrong, each with its place; a shell block goes on after a failure."""
    kind = kind_of(block)
    if not kind or unknown_setting(block.text):
        return uncovered(block)
    if kind == "shell":
        return _play_shell(stage, block)
    try:
        _PLAYERS[kind](stage, block)
    except (NoRule, StepFailed) as error:
        return [f"{block}: {error}"]
    return []


def _play_shell(stage: Stage, block: Block) -> list[str]:
    problems = []
    try:
        found = steps(block.text)
    except ValueError as error:
        return [f"{block}: {error}"]
    for step in found:
        try:
            table.play(stage, step)
        except (NoRule, StepFailed) as error:
            problems.append(f"{block.page}:{block.line + step.line}: {error}")
    return problems


def _python(stage: Stage, block: Block) -> None:
    """Run a program, unless the page does so by its name; one that follows alerts must show one."""
    path = stage.write(block.name or f"block-{block.line}.py", block.text)
    if block.name and any(
        block.name in other.text and kind_of(other) == "shell" for other in blocks(block.page)
    ):
        return
    text = f"python '{path}'"
    if ".subscribe(" in block.text or "async for" in block.text:
        stage.worker(any_configuration(stage))
        stage.alerted(stage.start(text))
    else:
        stage.bash(text)


def _output(stage: Stage, block: Block) -> None:
    if not stage.lines and stage.said:  # the command stands in a sentence
        (stage.here / "usual.yaml").write_text(configuration_with({}))
        stage.bash(stage.said.replace("FILE", "usual.yaml"))
    if not stage.lines:
        raise NoRule("shows an output, and no command before it printed any")
    check_printed(stage, block.text)


def check_printed(stage: Stage, text: str) -> None:
    """Hold what a page shows as printed to what its commands printed, line by line and in order.

    ``...`` stands for anything, on a line of its own for any lines. Numbers need not be those of this run where noise
    or the time of day is in them.

    Raises:
        StepFailed: A line was not printed.
    """
    place = 0
    for line in map(_same_words, text.splitlines()):
        if not line or line in {"...", "…"}:
            continue
        place = next((at + 1 for at in range(place, len(stage.lines)) if _alike(line, *stage.lines[at])), 0)
        if not place:
            raise StepFailed(f"this line was not printed: {line}\nprinted:\n{stage.printed[-1500:]}")


def _same_words(text: str) -> str:
    return " ".join(text.split())


def _alike(shown: str, printed: str, noisy: bool) -> bool:
    printed = _same_words(printed)
    if noisy:
        shown, printed = _NUMBER.sub("0", shown), _NUMBER.sub("0", printed)
    return re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*").replace("…", ".*"), printed) is not None


_NUMBER = re.compile(r"\d+(?:[.:]\d+)*")


_PLAYERS: Mapping[str, Callable[[Stage, Block], None]] = {
    "unique": lambda stage, block: check_of(block)(block.text),
    "python": _python,
    "yaml": check_yaml,
    "json": check_json,
    "output": _output,
}
