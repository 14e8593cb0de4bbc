"""Commands to shards: sent on the control topic, answered on the alert topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import click

from stream_svt.application.config import Config
from stream_svt.cli import common
from stream_svt.cli.confirming import confirm, prices
from stream_svt.kafka.clients import cluster_id_of
from stream_svt.mechanisms.numbers import exact
from stream_svt.monitor.operations import SERIES_LENGTH, Action, Command
from stream_svt.operate.control import Addressed, for_all, for_datasets, for_shards, send
from stream_svt.settings.fields import END
from stream_svt.terminal import say


@click.group(
    cls=common.CommandGroup,
    epilog=common.examples(
        "control pause -c monitors.yaml retail-2026-w01 --for 2h",
        "control pause -c monitors.yaml 'web-*' mail",
        "control mute -c monitors.yaml retail-2026-w01 --series tea --for 1d",
        "control raise-budget -c monitors.yaml retail-2026-w01 --limit 5",
        "control accept-loss -c monitors.yaml --shard 2 --topic retail --offset 4711",
        "control close -c monitors.yaml retail-2026-w01 --signing-key alice.pem",
    ),
)
def control() -> None:
    """Send a command to shards, such as a pause or a larger budget.

    DATASETS are names or patterns ('web-*'). A command is carried out once, or refused if another command
    came first. Its shard must have started before. A command has no effect after the timeout, or --expires.
    Exit code 1: refused, even if only on one of several datasets; expired; or no answer in time.
    """


_expires_option = common.option(
    "--expires",
    "Validity of the command: 10m, 7d. Default: the timeout.",
    callback=common.duration,
    metavar="DURATION",
)


def _command(name: str, *arguments: str, summary: str | None = None) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator that adds a command; its function returns what to send, and 0 means that all was accepted."""

    def add(to_send: Callable[..., list[Addressed]]) -> None:
        @wraps(to_send)
        def command(
            path: Path,
            timeout: float,
            key_file: Path | None,
            expires: float | None = None,
            **options: Any,  # noqa: ANN401
        ) -> int:
            config = common.load(path)
            key = common.signing_key_of(config, key_file)
            commands = to_send(config, **options)
            sending = send(
                config, config.cluster(), commands, timeout=timeout, lifetime=expires, signing_key=key
            )
            replies = asyncio.run(sending)
            outcomes = {True: "accepted: ", False: "refused: ", None: ""}
            for reply in replies:
                subject = reply.addressed.command.dataset or f"shard {reply.addressed.shard}"
                say(f"{subject}: {outcomes[reply.accepted]}{reply.message}", err=not reply.complete)
            return 0 if all(reply.complete for reply in replies) else 1

        timeout = common.seconds_option("--timeout", 30, "Longest wait for the next answer.", least=0.1)
        own = common.signing_option(command if name == Action.WITHDRAW else _expires_option(command))
        options = common.config_option()(timeout(own))
        epilog = common.examples(*(f"control {name} -c monitors.yaml {rest}" for rest in arguments))
        control.add_command(click.command(name, help=summary, epilog=epilog)(options))

    return add


def _series(ctx: click.Context, option: click.Parameter, text: str) -> str:
    del ctx, option
    if not 1 <= len(text) <= SERIES_LENGTH:
        raise click.BadParameter(f"a series has 1 to {SERIES_LENGTH} characters, this one has {len(text)}.")
    return text


_series_option = common.option(
    "--series", "The series, as in the queries.", callback=_series, required=True, metavar="NAME"
)
_monitor_option = common.option("--monitor", "Only this monitor. Default: all.", default="", metavar="NAME")


def _add(action: Action, summary: str) -> None:
    text = "Pause even during the replay after a takeover; open runs end at their full price."
    end = "Length: 30m, 2h. The first query with a later timestamp is tested. Default: until 'resume'."
    lasts = common.option("--for lasts", end, callback=common.duration, metavar="DURATION")
    own_option: Callable[[Any], Any] = {
        Action.PAUSE: lambda function: common.flag("--now", text)(lasts(function)),
        Action.RESAMPLE: common.yes_option,
    }.get(action, lambda function: function)

    @_command(action.value, "retail-2026-w01", summary=summary)
    @click.argument("datasets", nargs=-1)
    @common.flag("--all every", "All declared datasets.")
    @_monitor_option
    @own_option
    def to_send(
        config: Config,
        datasets: tuple[str, ...],
        every: bool,
        monitor: str,
        now: bool = False,
        lasts: float | None = None,
        yes: bool = False,
    ) -> list[Addressed]:
        commands = _to(config, datasets, every, Command("", action, monitor=monitor, now=now), lasts)
        is_one = len(commands) == 1 and commands[0].command.dataset
        if action is Action.RESAMPLE and not yes and not is_one:
            # The runs of a monitor and those that test for its ends are addressed together, by either name.
            wanted = monitor.removesuffix(END)
            monitors = [one for one in config.spec.monitors if wanted in ("", one.name.removesuffix(END))]
            effect = f"open runs end, and new ones cost up to: {prices(config, monitors)}"
            confirm(config, commands, effect, "Resample all of them?")
        return commands


_add(Action.PAUSE, "Skip the queries of datasets, for one monitor or all. Open runs stay open.")
_add(Action.RESUME, "Test the queries of paused datasets again, from the next query on.")
_add(Action.CLOSE, "End open runs. With epsilon, their unspent reserve is released.")
_add(Action.RESAMPLE, "End open runs and start new ones, which are charged for new thresholds.")


@_command(
    "mute", "retail-2026-w01 --series tea --for 2h", "--all --series tea --monitor hot-items --until period"
)
@click.argument("datasets", nargs=-1)
@common.flag("--all every", "All declared datasets.")
@_series_option
@_monitor_option
@common.option("--for lasts", "Length: 30m, 2h.", callback=common.duration, metavar="DURATION")
@common.option(
    "--until word",
    "As long as the dataset lives, or until the open run ends.",
    click.Choice(["period", "run"]),
)
def _mute(
    config: Config,
    datasets: tuple[str, ...],
    every: bool,
    series: str,
    monitor: str,
    lasts: float | None,
    word: Literal["period", "run"] | None,
) -> list[Addressed]:
    """Skip the queries of one series that floods.

    A mute costs nothing and replaces the mute after an alert. It ends by the timestamps of the query topic.
    Beyond max_mutes the oldest mute ends.
    """
    if (lasts is None) == (word is None):
        raise click.UsageError("Give the end: --for DURATION, or --until period or run.")
    command = Command("", Action.MUTE, monitor=monitor, series=series, until_word=word or "")
    return _to(config, datasets, every, command, lasts)


@_command("unmute", "retail-2026-w01 --series tea")
@click.argument("datasets", nargs=-1)
@common.flag("--all every", "All declared datasets.")
@_series_option
@_monitor_option
def _unmute(
    config: Config, datasets: tuple[str, ...], every: bool, series: str, monitor: str
) -> list[Addressed]:
    """Test the queries of a series again, whether an operator or an alert muted it."""
    return _to(config, datasets, every, Command("", Action.UNMUTE, monitor=monitor, series=series))


def _to(
    config: Config, datasets: tuple[str, ...], every: bool, command: Command, lasts: float | None = None
) -> list[Addressed]:
    if every == bool(datasets):
        raise click.UsageError("Name one or more datasets, or give --all.")
    commands = for_all(config, command) if every else for_datasets(config, datasets, command)
    return [one._replace(lasts_ms=int(1000 * (lasts or 0))) for one in commands]


@_command("raise-budget", "retail-2026-w01 --limit 11/2")
@click.argument("datasets", nargs=-1, required=True)
@common.option("--limit", "New limit in the dataset's measure: 5, 5.5, 11/2.", required=True, metavar="LOSS")
@common.yes_option
def _raise_budget(config: Config, datasets: tuple[str, ...], limit: str, yes: bool) -> list[Addressed]:
    """Raise the limit of datasets permanently, which weakens the guarantee for everyone in the data.

    The ledger keeps every raise. Afterwards write the new limit into the configuration, which may declare
    only the limit before or after the raise.
    """
    try:
        exact(limit)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--limit") from None
    commands = for_datasets(config, datasets, Command("", Action.RAISE_BUDGET, limit=limit))
    if not yes:
        effect = "everyone in the data loses the difference; no command lowers a limit"
        confirm(config, commands, effect, f"Raise the limit to {limit} permanently?", limit=limit)
    return commands


@_command("accept-loss", "--shard 2 --topic retail --offset 4711")
@common.option("--shard", "The waiting shard.", int, required=True)
@common.option("--topic", "The query topic that lost records.", required=True)
@common.option(
    "--offset",
    "The lost offset at which the shard waits; none for counts of a source.",
    click.IntRange(0),
    default=0,
)
@common.yes_option
def _accept_loss(config: Config, shard: int, topic: str, offset: int, yes: bool) -> list[Addressed]:
    """Continue after queries were lost; open runs close at their full price.

    A shard that lost queries waits for this command; its log and 'stream-svt status' show the command in
    full. Other shards refuse it.
    """
    commands = for_shards(config, [shard], Command("", Action.ACCEPT_LOSS, topic=topic, offset=offset))
    if not yes:
        names = ", ".join(one.name for one in config.spec.monitors if one.topic == topic) or "no monitor"
        effect = f"open runs of {names} close at their full price, and what they reserved is spent"
        confirm(config, commands, effect, f"Continue shard {shard} without the lost records of {topic}?")
    return commands


@_command("withdraw", "retail-2026-w01", "--all")
@click.argument("datasets", nargs=-1)
@common.flag("--all every", "All shards.")
@common.option("--shard", "A shard, instead of a dataset's shard.", int)
def _withdraw(config: Config, datasets: tuple[str, ...], every: bool, shard: int | None) -> list[Addressed]:
    """Take back the command that waits at the shards of datasets.

    The withdrawal takes precedence over an earlier command, even if no worker owns the shard yet. Its answer
    says what happened to that command. It cannot withdraw close-application --give-up-state, which takes
    effect at once. Exit code 1: the command was carried out, or none waits.
    """
    if [bool(datasets), every, shard is not None].count(True) != 1:
        raise click.UsageError("Name one or more datasets, or give --shard or --all.")
    command = Command("", Action.WITHDRAW)
    shards = [one.shard for one in for_datasets(config, datasets, command)] if datasets else None
    return for_shards(config, [shard] if shard is not None else shards and sorted(set(shards)), command)


@_command("close-application", "--successor retail-2", "--successor retail-2 --shard 3 --give-up-state")
@common.option(
    "--successor",
    "The only application that may continue with the budgets.",
    callback=common.name,
    required=True,
    metavar="NAME",
)
@common.option("--shard", "Only this shard. Default: all.", int)
@common.flag(
    "--give-up-state",
    "Close a parked shard whose state is lost, older than the alerts, damaged, or sealed with a lost key. Open runs "
    "then count in full; if alerts are missing, more counts as spent.",
)
@common.yes_option
def _close_application(
    config: Config, successor: str, shard: int | None, give_up_state: bool, yes: bool
) -> list[Addressed]:
    """Close the application permanently: end open runs and publish the balance of each dataset.

    With epsilon, the unspent part of open runs is released; with rho it stays charged. A closed shard never
    opens again. A shard without a worker is closed if a worker owns it before the command expires, a parked
    shard only with --give-up-state.
    """
    if give_up_state and shard is None:
        raise click.UsageError("--give-up-state needs --shard: name each shard that cannot be opened.")
    if successor == config.spec.application:
        raise click.BadParameter("the successor needs another name.", param_hint="--successor")
    cluster_id = asyncio.run(cluster_id_of(config.cluster())) if give_up_state else ""
    command = Command("", Action.CLOSE_APPLICATION, successor=successor, cluster=cluster_id)
    commands = for_shards(config, None if shard is None else [shard], command)
    if not yes:
        where = f"shard {shard}" if shard is not None else "all shards"
        lost = ", and give up its state" if give_up_state else ""
        kept = "epsilon that they did not spend is left, rho stays spent"
        left = "what they reserved counts as spent" if give_up_state else kept
        effect = f"open runs end, {left}; only {successor} may continue with what is left"
        question = f"Close {where} of {config.spec.application} permanently{lost}?"
        confirm(config, commands, effect, question)
    return commands
