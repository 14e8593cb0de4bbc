"""Commands in sentences: they may be shortened, so they are looked at and not run."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from stream_svt.cli import app
from tests.documentation.not_executed import module_exists, packages_are_known
from tests.documentation.pages import ROOT
from tests.documentation.shell import Command
from tests.documentation.stage import StepFailed


def problem_of(words: Sequence[str]) -> str | None:
    """Return what is wrong with a command that stands in a sentence, perhaps shortened; None if nothing is."""
    if words[0] == "stream-svt":
        return _problem_of_ours(words[1:])
    if "/" in words[0]:
        return _problem_of_script(words)
    if [*words[:2]] == ["python", "-m"] and len(words) > 2:
        return None if module_exists(words[2]) else f"no module {words[2]}"
    if words[0] == "pip":
        try:
            packages_are_known(Command(tuple(words)))
        except StepFailed as error:
            return str(error)
    return None


def _problem_of_script(words: Sequence[str]) -> str | None:
    if not (ROOT / words[0]).exists():
        return f"there is no {words[0]}"
    if words[0] == "benchmarks/run" and len(words) > 1 and words[1].islower():
        places = (f"benchmarks/{words[1]}.py", f"benchmarks/{words[1]}/__main__.py")
        return None if any((ROOT / place).exists() for place in places) else f"no benchmark {words[1]}"
    if [*words[:2]] == ["tests/run", "soak"] and len(words) > 2 and words[2].islower():
        [names] = re.findall(r"soak NAME: (.*)\"", (ROOT / "tests/run").read_text())
        return None if words[2] in re.findall(r"\w+", names) else f"no soak {words[2]}"
    return None


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
