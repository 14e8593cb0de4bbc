"""The command line `stream-svt`: parse, call, print, exit code. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import NoReturn

import click

import stream_svt
from stream_svt.cli.common import CommandGroup
from stream_svt.cli.configuring import apply, check, prove, schema, show_config
from stream_svt.cli.controlling import control
from stream_svt.cli.planning import plan
from stream_svt.cli.running import demo, forward, run
from stream_svt.cli.showing import audit, carry_over, status, watch
from stream_svt.errors import StreamSvtError

_INTERRUPTED = 130

_EPILOG = """\b
Exit codes:
  0    done; `run`, `watch` and `forward`: also when a signal stops them
  1    failure: refused, ledgers do not balance, no answer or no stop in time, or an unexpected error
  2    usage or configuration: the message names the problem; also if topics do not fit the configuration
  3    broker: not reachable, login refused, permission missing; `watch`, `audit`, `control`: topic missing
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
    cls=CommandGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(stream_svt.__version__, prog_name="stream-svt")
def app() -> None:
    """Differentially private alerts on Kafka streams with the Sparse Vector Technique."""


for _command in (demo, run, apply, show_config, check, prove, plan, schema):
    app.add_command(_command)
for _command in (watch, forward, status, control, carry_over, audit):
    app.add_command(_command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; an error is one message on standard error."""
    # Errors name a failed connection; without a handler Python would print aiokafka's log messages, too.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        code = app.main(args=arguments, prog_name="stream-svt", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt, asyncio.CancelledError):
        code = _INTERRUPTED
    except StreamSvtError as error:
        click.echo(f"stream-svt: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        sys.stdout = None
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
