"""The command line `stream-svt`: parse, call, print, exit code. Decides nothing."""

from __future__ import annotations

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
  0    done; also where a signal stops `run`, `watch` or `forward`
  1    failure: refused, unbalanced, not answered, not stopped in time, or an unexpected error
  2    configuration or usage: the message says which; also where it and the topics do not fit
  3    broker: not reachable, login refused, permission missing; `watch`, `audit`, `control`: topic missing
  4    state: `forward`: events were lost
  130  interrupted

\b
A first look:
  stream-svt demo
\b
Completion in a shell, the same for zsh and fish:
  eval "$(_STREAM_SVT_COMPLETE=bash_source stream-svt)"
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
    # A failed connection is explained in our words; without a handler Python prints the library's as well.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        code = app.main(args=arguments, prog_name="stream-svt", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except StreamSvtError as error:
        click.echo(f"stream-svt: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stdout = None
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
