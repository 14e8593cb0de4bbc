"""The command `backtest`: what the monitors of sources would have found in what topics retain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from stream_svt.cli import common
from stream_svt.cli.common import option
from stream_svt.cli.planning import belief_of, belief_options
from stream_svt.errors import ConfigError, MisuseError, Problem
from stream_svt.terminal import say, say_lines, say_progress
from stream_svt.wording import counted

if TYPE_CHECKING:
    from stream_svt.settings.monitors import MonitorSpec
    from stream_svt.settings.sources import SourceSpec
    from stream_svt.sources.replay import Replay

_PROGRESS_SECONDS = 2.0

_FORMATS = (".svg", ".png", ".pdf")

_SENSITIVE = """The report is as sensitive as the data. Settings tuned on it reveal data: the guarantee does not cover
them."""


def value(text: str) -> Fraction:
    """Return the value of an option, an exact number."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(f"{text!r} is not a number such as 700.") from None


@common.command(
    "backtest -c monitors.yaml --from 30d",
    "backtest -c monitors.yaml --monitor many --surely-from 700",
    "backtest -c monitors.yaml --monitor many --synthetic --positives 0.1% --above 200 --below 300",
)
@common.config_option()
@option("--from since", "How far back.", default="30d", metavar="DURATION", callback=common.duration)
@option("--monitor name", "Only this monitor; those that share its budgets are played, too.", metavar="NAME")
@option("--draws", "Draws of noise.", click.IntRange(1, 1000), default=20, show_default=True)
@option("--surely-from", "Least value of an incident. Default: reported 95 times in 100.", value)
@common.flag(
    "--synthetic", "Play what --positives, --above and --below say of one monitor, and read nothing."
)
@belief_options
@common.file_option(
    "--output", "New file of the report; - to print it. Default: backtest-APPLICATION.txt.", metavar="FILE"
)
@common.file_option("--plot", "Draw it in this new file, too: .svg, .png or .pdf.", metavar="FILE")
def backtest(
    path: Path,
    since: float,
    name: str | None,
    draws: int,
    surely_from: Fraction | None,
    output: Path | None,
    plot: Path | None,
    synthetic: bool,
    **believed: Any,  # noqa: ANN401  a share and margins
) -> None:
    """Say what monitors of sources would have found.

    Replays retained raw events, or counts where they reach further back, through the counter and the monitors, with
    fresh noise and whole budgets that are thrown away. Spends no budget, writes no record, joins no group. The report
    depends on raw events, in a file for its owner alone: do not tune settings on it. With --synthetic it reads nothing.
    """
    from stream_svt.operate import backtesting

    config = common.load(path, for_counter=True)
    counting = {one.name: one for one in config.spec.sources if one.answers is None}
    of_sources = [one for one in config.spec.monitors if one.source in counting]
    if not of_sources:
        problem = (
            "none tests counts of a source of events, and only these are replayed: see 'stream-svt plan'"
        )
        raise ConfigError([Problem(0, "monitors", problem)], config.source)
    chosen = [one for one in of_sources if name in (None, one.name) and not one.ends]
    if not chosen:
        raise click.UsageError(f"--monitor must be one of {', '.join(one.name for one in of_sources)}.")
    if (synthetic or surely_from is not None) and len(chosen) > 1:
        raise click.UsageError("--synthetic and --surely-from are for one monitor: name it with --monitor.")
    if not synthetic and any(one is not None for one in believed.values()):
        raise click.UsageError("--positives, --above and --below need --synthetic.")
    replays: list[tuple[Replay, list[str]]] = []
    output = output or Path(f"backtest-{config.spec.application}.txt")

    def lines() -> Iterator[str]:
        yield from _SENSITIVE.split("\n")
        for source in (counting[one] for one in dict.fromkeys(one.source or "" for one in chosen)):
            levels = {one.name: _level(one, surely_from) for one in of_sources if one.source == source.name}
            played = (config, source, int(since * 1000), levels, draws, _announce(source, since, draws))
            replay, covered = asyncio.run(backtesting.backtest(*played))
            names = [one.name for one in chosen if one.source == source.name]
            replays.append((replay, names))
            yield from ("", *covered, "", *backtesting.table(replay, names))

    with ExitStack() as stack:
        draw = _picture(stack, plot, f"Backtest of {config.spec.application}", len(chosen))
        if synthetic:
            [one], belief = chosen, belief_of(**believed).central(1)
            source, levels = counting[one.source or ""], {one.name: _level(one, surely_from)}
            note = _announce(source, since, draws)
            replay = backtesting.synthesize(config, source, int(since * 1000), levels, draws, belief, note)
            draw([(replay, [one.name])], "on values as believed; no data was read")
            say("Values as believed, each by itself. No data was read, and nothing was spent.")
            say_lines("\n".join(["", *backtesting.table(replay, [one.name])]))
            return
        if str(output) == "-":
            text = "\n".join(lines())
        else:
            file, text = _new(stack, "--output", output), ""
            file.writelines(f"{one}\n".encode() for one in lines())
        draw(replays, "as sensitive as the raw events")
    if text:
        say_lines(text)
        return
    drawn = "" if plot is None else f" and the picture to {plot}"
    say(
        f"Read what topics retain of {', '.join(dict.fromkeys(one.source or '' for one in chosen))}, and wrote the "
        f"report to {output}{drawn}, for {'their' if drawn else 'its'} owner alone."
    )
    say_lines(_SENSITIVE)


def _new(stack: ExitStack, key: str, path: Path) -> BinaryIO:
    """Create a file for its owner alone, which is removed if the stack ends with an error."""
    from stream_svt.operate.backtesting import private_file

    try:
        return stack.enter_context(private_file(path))
    except FileExistsError:
        raise click.UsageError(f"{key}: {path} is there; remove it, or name another file.") from None
    except OSError as error:
        raise click.UsageError(f"{key}: {path}: {error.strerror}.") from None


def _picture(
    stack: ExitStack, path: Path | None, head: str, monitors: int
) -> Callable[[Sequence[tuple[Replay, list[str]]], str], None]:
    """Create the file of a picture, if there is to be one; return what draws replays in it."""
    from stream_svt.operate import backtest_plot

    if path is None:
        return lambda _, __: None
    if path.suffix not in _FORMATS:
        raise click.UsageError(f"--plot: {path} must end in {', '.join(_FORMATS)}.")
    if monitors > backtest_plot.MOST:
        raise click.UsageError(
            f"--plot is for {backtest_plot.MOST} monitors at most, of {monitors}: name one with --monitor."
        )
    try:
        backtest_plot.new_figure(1, 1)
    except MisuseError as error:
        raise click.UsageError(f"--plot: {error}.") from None
    file = _new(stack, "--plot", path)

    def draw(replays: Sequence[tuple[Replay, list[str]]], about: str) -> None:
        figure = backtest_plot.draw(replays, f"{head}: {about}")
        figure.savefig(file, format=path.suffix[1:], dpi=150)

    return draw


def _is_terminal() -> bool:
    return click.get_text_stream("stderr").isatty()


def _announce(source: SourceSpec, since: float, draws: int) -> Callable[[int], None]:
    """Say what is played; return what shows on a terminal up to which window it was."""
    from stream_svt.monitor.operations import utc
    from stream_svt.settings.fields import duration_text

    windows = max(int(since * 1000) // source.window, 1)
    say(
        f"Source {source.name}: plays {counted(windows, 'window')} of {duration_text(source.window)} in "
        f"{counted(draws, 'draw')} of noise; fewer with --from and --draws.",
        err=True,
    )
    shown = time.monotonic()

    def note(window_ms: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _PROGRESS_SECONDS and _is_terminal():
            shown = time.monotonic()
            say_progress(f"played up to {utc(window_ms)}")

    return note


def _level(monitor: MonitorSpec, surely_from: Fraction | None) -> Fraction:
    """Return the least value of an incident."""
    from stream_svt.planning.budget import SURE, reported_margin

    if surely_from is None and monitor.detect is not None:
        return monitor.detect.surely_from
    if surely_from is None:
        return monitor.threshold + max(reported_margin(monitor, SURE), Fraction(0))
    return max(surely_from, monitor.threshold)
