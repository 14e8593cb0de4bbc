"""Shared by the commands: options, tables, loading the configuration, asking for confirmation."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import click

from stream_svt import logs, plain_text
from stream_svt.application.config import Config, load_config
from stream_svt.application.signatures import SigningKey, signing_key
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.kafka.clients import Cluster
from stream_svt.plain_text import escaped
from stream_svt.settings.document import did_you_mean
from stream_svt.settings.fields import duration_ms, plain_name
from stream_svt.terminal import say, write

WRAPPED = 14
"""Least width of a column of a table whose text is wrapped."""

Command = TypeVar("Command", bound=Callable[..., Any])


class CommandGroup(click.Group):
    """Lists commands in the order of their registration; suggests the command with the nearest name."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; the list shows the whole first sentence of its help, which click would cut."""
        cmd.short_help = cmd.short_help or re.split(r"(?<=\.)\s", cmd.help or "", maxsplit=1)[0]
        super().add_command(cmd, name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        del ctx
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, self.list_commands(ctx)) or "."
            ctx.fail(f"No such command {name!r}{hint}")
        return super().resolve_command(ctx, args)


def print_json(data: object) -> None:
    """Print a JSON document."""
    write(json.dumps(data, indent=2))


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, spare: Iterable[str] = ()) -> None:
    """Print a table as wide as the terminal, or 160 columns wide without a terminal.

    A column whose cells have no space is not wrapped. Columns of ``spare`` are left out, the first one first, while the
    table is too wide.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 160
    columns = {
        str(name): [escaped(str(cell)) for cell in cells]
        for name, *cells in zip_longest(head, *rows, fillvalue="")
    }
    wraps = {name: any(" " in cell for cell in cells) for name, cells in columns.items()}
    least = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
    least |= {name: min(width, WRAPPED) for name, width in least.items() if wraps[name]}
    left_out = []
    for name in spare:
        if (
            sum(least[name] + 3 for name in columns) < console.width
        ):  # a bar and two blanks each, and a last bar
            break
        del columns[name]
        left_out.append(name)
    table = Table()
    for name in columns:
        table.add_column(name, no_wrap=not wraps[name], min_width=least[name], overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)
    if left_out:
        say(f"Left out: {', '.join(left_out)}; a wider terminal shows them, and --json.")


def examples(*lines: str) -> str:
    """Return the examples that end a command's help, one a line."""
    return "\b\nExamples:\n" + "".join(f"  stream-svt {line}\n" for line in lines)


def command(*lines: str, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function a command, with examples in its help."""
    return click.command(name, epilog=examples(*lines))


def option(names: str, text: str, kind: Any = None, **more: Any) -> Callable[[Command], Command]:  # noqa: ANN401
    """Return an option with its help and type; the last of ``names`` may name the parameter of the function."""
    return click.option(*names.split(), help=text, type=kind, **more)


def flag(names: str, text: str) -> Callable[[Command], Command]:
    """Return an option without a value."""
    return option(names, text, is_flag=True)


def file_option(names: str, text: str, **kind: Any) -> Callable[[Command], Command]:  # noqa: ANN401
    """Return an option that is the path of a file."""
    return option(names, text, click.Path(dir_okay=False, path_type=Path), **kind)


def config_option(
    *, required: bool = True, variable: str = "STREAM_SVT_CONFIG"
) -> Callable[[Command], Command]:
    """Return the option for the configuration file, which an environment variable can name, too."""
    text = "Configuration file (YAML)."
    return file_option("-c --config path", text, required=required, envvar=variable, show_envvar=True)


def seconds_option(
    name: str, default: float | None, text: str, least: float = 0
) -> Callable[[Command], Command]:
    """Return an option for a time in seconds; the help shows its default."""
    shown = {"default": default, "show_default": default is not None}
    return option(name, text, click.FloatRange(min=least), metavar="SECONDS", **shown)


def duration(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return the value of an option, a duration, in seconds."""
    del ctx, option
    try:
        return None if text is None else duration_ms(text) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def name(ctx: click.Context, option: click.Parameter, text: str) -> str:
    """Return the value of an option, the name of an application."""
    del ctx, option
    try:
        return plain_name(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


_LEVELS = click.Choice(["debug", "info", "warning", "error"])
_TEXT = "Lowest level that is logged (on standard error)."
log_level_option = option("--log-level", _TEXT, _LEVELS, default="info", show_default=True)
log_format_option = option(
    "--log-format",
    "Format of the log: lines of text, or one JSON object a line.",
    click.Choice(logs.FORMATS),
    default="text",
    show_default=True,
    envvar="STREAM_SVT_LOG_FORMAT",
    show_envvar=True,
)
json_option = flag("--json as_json", "Print JSON.")
yes_option = flag("--yes", "Do not ask for confirmation.")
signing_option = file_option(
    "--signing-key key_file",
    "File of the key that signs the commands (Ed25519 as PEM, or a shared key of 32 bytes).",
    envvar="STREAM_SVT_SIGNING_KEY",
    show_envvar=True,
    metavar="FILE",
)


def load(path: Path, *, is_whole: bool = True, for_counter: bool = False) -> Config:
    """Return the configuration in a file; environment variables replace some of its keys."""
    return load_config(path, os.environ, is_whole=is_whole, for_counter=for_counter)


def alert_topic(config: Config | None, servers: str | None, topic: str | None) -> tuple[Cluster, str]:
    """Return brokers and alert topic from the configuration, unless options replace them."""
    cluster = Cluster({"bootstrap_servers": ["127.0.0.1:9092"]})
    if config is not None:
        cluster, topic = config.cluster(), topic or config.topics.alerts
    if topic is None:
        message = "give -c FILE, or --topic TOPIC, with --bootstrap-servers HOST:PORT unless the broker is"
        raise ConfigError([Problem(0, "", f"{message} 127.0.0.1:9092")], "alert topic")
    if servers is not None:
        cluster = Cluster({**cluster.arguments, "bootstrap_servers": servers.split(",")}, cluster.config)
    return cluster, topic


def alert_topic_options(command: Command) -> Command:
    """Add the options that `alert_topic` reads."""
    topic = option("--topic", "Alert topic, instead of the configuration's.", metavar="TOPIC")
    text = "Brokers, instead of the configuration's. Default with --topic alone: 127.0.0.1:9092."
    servers = option("--bootstrap-servers servers", text, metavar="HOST:PORT")
    return config_option(required=False)(servers(topic(command)))


def signing_key_of(config: Config, path: Path | None) -> SigningKey | None:
    """Return the key in a file; raise if the shards would refuse it, or need a key and ``path`` is None."""
    known = {key.name for key in config.command_keys}
    if path is None:
        if known:
            raise click.UsageError(
                f"{config.source} requires signed commands: name your key with --signing-key."
            )
        return None
    try:
        key = signing_key(plain_text.decoded(path.read_bytes()))
        if known and key.name not in known:
            raise ValueError(f"key {key.name} is not in section control, which has {', '.join(known)}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.BadParameter(f"{path}: {reason}.", param_hint="--signing-key") from None
    return key


def confirm(question: str) -> None:
    """Ask for confirmation; raises unless the answer is yes."""
    try:
        agreed = click.confirm(escaped(question), err=True)
    except click.Abort as aborted:
        # Click raises Abort for Ctrl-C and for the end of the input: the cause tells them apart.
        if not isinstance(aborted.__context__, EOFError):
            raise
        say("", err=True)
        message = "not confirmed; nothing was changed (use --yes where nobody can answer)"
        raise StreamSvtError(message) from None
    if not agreed:
        raise StreamSvtError("not confirmed; nothing was changed")
