"""What is done with each command that a page shows: run as it stands, in small, in the background, or not at all.

The first rule that matches a command counts. A command that none matches is an error of the page or of this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.documentation import programs
from tests.documentation.not_executed import NOT_RUN, NotRun
from tests.documentation.shell import Command, Step, commands, parts
from tests.documentation.stage import NoRule, Stage

How = Callable[[Stage, Command, str], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do with commands that begin with some words; ``broker`` says whether it takes one."""

    prefix: tuple[str, ...]
    how: How
    broker: bool = False


def as_it_stands(stage: Stage, command: Command, text: str) -> None:
    """Run it, if the program is on this machine."""
    if command.program not in _BUILTIN:
        stage.need(command.program)
    stage.bash(text, noisy="curl" in text or "kcat" in text)


_BUILTIN = ". source cd echo export false printf pwd set test true umask unset".split()  # noqa: SIM905
_PROGRAMS = (  # noqa: SIM905
    "base64 cat chmod cp curl cut find grep head ls mkdir mv openssl rm sed sha256sum sleep sort ssh-keygen tail tee "
    "touch tr wc kcat promtool amtool jq"
).split()

RULES = [
    Rule(("deploy/demo",), programs.play_demo, broker=True),
    Rule(("stream-svt", "demo"), programs.play_demo, broker=True),
    Rule(("stream-svt", "run"), programs.start_worker, broker=True),
    Rule(("stream-svt", "watch"), programs.follow_alerts, broker=True),
    Rule(("stream-svt", "forward"), programs.forward_alerts, broker=True),
    Rule(("stream-svt", "status"), programs.with_a_worker, broker=True),
    Rule(("stream-svt", "control"), programs.with_a_worker, broker=True),
    Rule(("stream-svt", "audit"), programs.with_a_worker, broker=True),
    Rule(("stream-svt", "apply"), programs.apply_file, broker=True),
    Rule(("stream-svt", "config"), programs.with_a_worker, broker=True),
    Rule(("stream-svt", "check"), programs.run_to_its_end, broker=True),
    Rule(("stream-svt",), programs.run_to_its_end),
    Rule(("tests/run", "soak"), programs.play_soak),
    Rule(("tests/run",), programs.selects_tests),
    Rule(("benchmarks/run",), programs.ask_benchmark),
    Rule(("python", "-m", "build"), programs.build_package),
    Rule(("python", "-m", "stream_svt.service.embedded"), programs.take_the_broker, broker=True),
    Rule(("python", "-m", "stream_svt.demo.data"), programs.pack_data),
    Rule(("deploy/compose/make-secrets",), programs.make_secrets),
    Rule(("kill",), programs.signal_worker, broker=True),
    Rule(("git",), programs.in_a_repository),
    Rule(("ssh-keygen", "-Y", "sign"), programs.sign_files),
    Rule(("ssh-keygen", "-Y", "verify"), programs.verify_files),
    Rule(("python",), programs.run_program),
    *(Rule((program,), as_it_stands) for program in (*_BUILTIN, *_PROGRAMS)),
]


def rule_of(command: Command) -> Rule | NotRun | None:
    """Return what is done with a command, None where nobody knows."""
    for table in (NOT_RUN, RULES):
        for rule in table:
            if command.starts(rule.prefix):
                return rule
    return None


def needs_broker(command: Command) -> bool:
    """Whether a command takes a broker."""
    rule = rule_of(command)
    return isinstance(rule, Rule) and rule.broker


def play(stage: Stage, step: Step) -> None:
    """Do what a command line of a page says.

    Raises:
        NoRule: Nothing is known of one of its commands.
        StepFailed: It went wrong.
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
