"""Commands that an operator gives to shards: on their control topic, answered on the alert topic."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from stream_svt.cli.connection import cluster, config_option, load, wait_for
from stream_svt.cli.naming import Group
from stream_svt.errors import StreamSvtError
from stream_svt.monitor.commands import Action
from stream_svt.privacy.loss import exact
from stream_svt.service.config import Config
from stream_svt.service.control import Addressed, Reply, for_datasets, for_shards, send
from stream_svt.service.signatures import SigningKey, signing_key

Command = TypeVar("Command", bound=Callable[..., Any])

SHOWN_LETTERS = 80
"""Letters of a foreign command line that a message shows."""

_timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the next answer.",
)

_signing_option = click.option(
    "--signing-key",
    "key_file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="STREAM_SVT_SIGNING_KEY",
    metavar="FILE",
    help="Sign the commands with the key in this file (Ed25519 as PEM, or a shared key of 32 bytes); "
    "$STREAM_SVT_SIGNING_KEY names it too.",
)


@click.group(
    cls=Group,
    short_help="Give orders to monitors; raise budgets.",
    epilog="""\b
Examples:
  stream-svt control pause -c monitors.yaml retail-2026-w01
  stream-svt control raise-budget -c monitors.yaml retail-2026-w01 --limit 5
  stream-svt control accept-loss -c monitors.yaml --shard 2
  stream-svt control close -c monitors.yaml retail-2026-w01 --signing-key alice.pem
""",
)
def control() -> None:
    """Pause, resume, close or resample monitors; raise budgets; go on after losses.

    A command is stored on the control topic and carried out exactly once, at a commit barrier,
    even if no worker runs at the moment. The answer comes on the alert topic.
    Where the configuration requires signatures, --signing-key names the key.
    Exit code 1: refused, or no answer in time.
    """


def _dataset_options(command: Command) -> Command:
    for option in (
        _timeout_option,
        _signing_option,
        click.option(
            "--monitor", default="", metavar="NAME", help="This monitor only. Default: all of them."
        ),
        click.option("--all", "everything", is_flag=True, help="Every declared dataset."),
        click.argument("datasets", nargs=-1),
        config_option(),
    ):
        command = option(command)
    return command


def _add(action: Action, summary: str) -> None:
    @_dataset_options
    def command(
        path: Path,
        datasets: tuple[str, ...],
        everything: bool,
        monitor: str,
        timeout: float,
        key_file: Path | None,
        now: bool = False,
    ) -> int:
        config = load(path)
        names = _names(config, datasets, everything=everything, monitor=monitor)
        return _send(config, for_datasets(config, action, names, monitor=monitor, now=now), timeout, key_file)

    if action is Action.PAUSE:
        text = "Also during the replay after a takeover. Open runs end, at their full price."
        command = click.option("--now", is_flag=True, help=text)(command)

    epilog = f"\b\nExample:\n  stream-svt control {action.value} -c monitors.yaml retail-2026-w01\n"
    control.add_command(click.command(action.value, help=summary, epilog=epilog)(command))


def _names(config: Config, datasets: Sequence[str], *, everything: bool, monitor: str = "") -> Sequence[str]:
    if everything == bool(datasets):
        raise click.UsageError("Name one or more datasets, or give --all.")
    if not everything:
        return datasets
    return [
        dataset.name
        for dataset in config.spec.datasets
        if not monitor or any(one.name == monitor for one in config.spec.monitors_of(dataset.name))
    ]


_add(
    Action.PAUSE, "Skip the queries of datasets, for some monitors or all. Open runs stay open; others go on."
)
_add(Action.RESUME, "Test the queries of paused datasets again, from the next one on.")
_add(Action.CLOSE, "End open runs. With epsilon, what they had reserved and not spent is released.")
_add(Action.RESAMPLE, "End open runs and begin new ones, which costs their thresholds again.")


@control.command(
    "raise-budget",
    epilog="\b\nExample:\n  stream-svt control raise-budget -c monitors.yaml retail-2026-w01 --limit 11/2\n",
)
@config_option()
@click.argument("datasets", nargs=-1, required=True)
@click.option(
    "--limit", required=True, metavar="LOSS", help="New limit in the dataset's measure: 5, 5.5, 11/2."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_timeout_option
@_signing_option
def raise_budget(
    path: Path, datasets: tuple[str, ...], limit: str, yes: bool, timeout: float, key_file: Path | None
) -> int:
    """Raise the limit of datasets, for ever: it weakens the guarantee of everyone in the data.

    The books keep every raise. Afterwards write the new limit into the configuration, so that the
    file says what holds; a third figure is refused.
    """
    try:
        exact(limit)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--limit") from None
    config = load(path)
    commands = for_datasets(config, Action.RAISE_BUDGET, datasets, limit=limit)
    if not yes:
        _confirm(f"Raise the limit of {', '.join(datasets)} to {limit} for ever?")
    return _send(config, commands, timeout, key_file)


@control.command(
    "accept-loss", epilog="\b\nExample:\n  stream-svt control accept-loss -c monitors.yaml --shard 2\n"
)
@config_option()
@click.option("--shard", "shards", type=int, multiple=True, help="This shard; may be repeated. Default: all.")
@_timeout_option
@_signing_option
def accept_loss(path: Path, shards: tuple[int, ...], timeout: float, key_file: Path | None) -> int:
    """Go on although queries were lost: open runs close at their full price.

    Shards that lost nothing refuse, which changes nothing.
    """
    config = load(path)
    commands = for_shards(config, Action.ACCEPT_LOSS, shards or None)
    return _send(config, commands, timeout, key_file, enough=1)


@control.command(
    "mark-exhausted",
    epilog="\b\nExample:\n  stream-svt control mark-exhausted -c monitors.yaml --shard 2\n",
)
@config_option()
@click.option("--shard", "shards", type=int, multiple=True, help="This shard; may be repeated.")
@click.option("--all-shards", is_flag=True, help="Every shard.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_timeout_option
@_signing_option
def mark_exhausted(
    path: Path, shards: tuple[int, ...], all_shards: bool, yes: bool, timeout: float, key_file: Path | None
) -> int:
    """Give up all budgets of shards, for ever, as after their state was lost or rolled back.

    The way out when a worker refuses a state that is older than the published alerts: what was spent is
    not known any more, so all of it counts as spent. All that is left of the budgets of every dataset of
    these shards is given up, also where their books are sound.
    """
    if all_shards == bool(shards):
        raise click.UsageError("Name the shards with --shard, or give --all-shards.")
    config = load(path)
    commands = for_shards(config, Action.MARK_EXHAUSTED, None if all_shards else shards)
    if not yes:
        which = ", ".join(str(addressed.shard) for addressed in commands)
        shard, its = ("shard", "its") if len(commands) == 1 else ("shards", "their")
        _confirm(
            f"All that is left of the budgets of every dataset of {shard} {which} is given up, for ever, also where "
            f"{its} books are sound. Go on?"
        )
    return _send(config, commands, timeout, key_file)


@control.command(epilog="\b\nExample:\n  stream-svt control reload -c monitors.yaml --pid 4711\n")
@config_option()
@click.option(
    "--pid", type=click.IntRange(min=1), required=True, help="Process id of the worker, on this machine."
)
def reload(path: Path, pid: int) -> None:
    """Let a worker on this machine read its configuration again, after checking it here.

    Sends SIGHUP, to a process of `stream-svt run` only; where the system does not tell what a process
    runs (no /proc), to any. Thresholds, mute and pace change at the next barrier, epsilon, cutoff and
    noise with the next run. Reload every worker of an application.
    """
    load(path)
    arguments = _arguments_of(pid)
    if arguments is not None and not _is_worker(arguments):
        shown = f"'{_shortened(arguments)}'" if arguments else "it has no command line"
        message = (
            f"process {pid} is not a stream-svt worker ({shown}); nothing was signalled. "
            "'pgrep -f \"stream-svt run\"' lists workers"
        )
        raise StreamSvtError(message)
    try:
        os.kill(pid, signal.SIGHUP)
    except (ProcessLookupError, PermissionError) as error:
        raise StreamSvtError(f"process {pid} was not signalled: {error.strerror}") from None
    click.echo(f"process {pid} was told to reload; its log and the alert topic say what changed")


def _arguments_of(pid: int) -> list[str] | None:
    """Return the command line of a process, or None where the system does not tell.

    A process that is not there is not told of either: the signal finds that out.
    """
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return [part.decode(errors="backslashreplace") for part in text.split(b"\0") if part]


def _is_worker(arguments: Sequence[str]) -> bool:
    """Tell whether a command line runs a worker: as the script, as a module, or from a wrapper's ``-c``."""
    for number, argument in enumerate(arguments):
        if Path(argument).name == "stream-svt" or "stream_svt" in argument:
            return "run" in arguments[number + 1 :]
    return False


def _shortened(arguments: Sequence[str]) -> str:
    """Return a command line as one short, printable line."""
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(arguments))
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 3] + "..."


def _signing_key(config: Config, path: Path | None) -> SigningKey | None:
    """Return the key in a file; refuse, before anything is sent, what the shards would refuse."""
    known = {key.name for key in config.command_keys}
    if path is None:
        if known:
            raise click.UsageError(
                f"{config.source} requires signed commands: name your key with --signing-key."
            )
        return None
    try:
        key = signing_key(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        wrong = "is not text"
    except OSError as error:
        wrong = f"cannot be read: {error.strerror or 'unknown reason'}"
    except ValueError as error:
        wrong = str(error)
    else:
        if not known or key.name in known:
            return key
        wrong = f"key {key.name} may not give commands here; section control knows {', '.join(known)}"
    raise click.BadParameter(f"{path}: {wrong}.", param_hint="--signing-key")


def _confirm(question: str) -> None:
    """Ask, and go on only where the answer is yes.

    Raises
    ------
    StreamSvtError
        The answer is no, or nobody can answer.
    click.Abort
        The question was interrupted.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as aborted:
        # The same for Ctrl-C and the end of the input, but for where it comes from.
        if not isinstance(aborted.__context__, EOFError):
            raise
        click.echo(err=True)
        message = "not confirmed; nothing was changed (--yes where nobody can answer)"
        raise StreamSvtError(message) from None
    if not agreed:
        raise StreamSvtError("not confirmed; nothing was changed")


def _send(
    config: Config,
    commands: Sequence[Addressed],
    timeout: float,
    key_file: Path | None,
    *,
    enough: int | None = None,
) -> int:
    """Send, print the answers, and return 0 where all, or ``enough`` of them, were accepted."""
    key = _signing_key(config, key_file)
    replies = wait_for(
        send(
            cluster(config),
            control=config.topics.control,
            alerts=config.topics.alerts,
            commands=commands,
            patience=timeout,
            application=config.spec.application,
            signing_key=key,
        )
    )
    for reply in replies:
        click.echo(_in_words(reply), err=not reply.accepted)
    accepted = sum(reply.accepted is True for reply in replies)
    return 0 if accepted >= (len(replies) if enough is None else enough) else 1


def _in_words(reply: Reply) -> str:
    command = reply.addressed.command
    subject = command.dataset or f"shard {reply.addressed.shard}"
    if reply.accepted is None:
        return (
            f"{subject}: no answer in time; {command.action.value} is on the control topic and will be "
            "carried out once a worker owns the shard"
        )
    outcome = "accepted" if reply.accepted else "refused"
    return f"{subject}: {outcome}: {reply.message}"
