"""The command that carries alerts onward: forward."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from stream_svt.cli.connection import (
    FILE,
    examples,
    flag,
    log_level_option,
    log_to_stderr,
    print_json,
    wait_for,
)


@click.command(
    short_help="Post alerts to Alertmanager and webhooks.",
    epilog=examples(
        "forward -c forward.yaml --check", "forward -c forward.yaml --test", "forward -c forward.yaml"
    ),
)
@click.option(
    "-c",
    "--config",
    "path",
    type=FILE,
    envvar="STREAM_SVT_FORWARD_CONFIG",
    help="The forwarder's configuration (YAML); $STREAM_SVT_FORWARD_CONFIG names it too.",
)
@flag("--check only_check", "Check the configuration, topics and permissions, and end.")
@flag("--test only_test", "Post a test event to every destination, and end.")
@flag("--schema", "Print the JSON Schema of the configuration, and end.")
@flag("--accept-loss", "Go on where retention took events before they were delivered.")
@log_level_option
def forward(
    path: Path | None, only_check: bool, only_test: bool, schema: bool, accept_loss: bool, log_level: str
) -> int:
    """Post the events of an alert topic to Alertmanager and webhooks, until stopped.

    At least once, in order for each dataset, with the same id each time. More forwarders share the
    partitions.
    """
    from stream_svt.forward.config import json_schema, load_forward_config

    if schema:
        print_json(json_schema())
        return 0
    if path is None:
        raise click.UsageError("Missing option '-c' / '--config' (or $STREAM_SVT_FORWARD_CONFIG).")
    if only_check and only_test:
        raise click.UsageError("--check and --test are two things: give one of them.")
    config = load_forward_config(path, os.environ)
    for note in config.notes:
        click.echo(f"{click.style('note', fg='yellow')} {note}", err=True)
    from stream_svt.forward import app

    if only_check:
        wait_for(app.check(config))
        names = ", ".join(one.name for one in config.destinations)
        click.echo(f"Ready to forward {config.topic} to {names}.")
        return 0
    if only_test:
        answers = wait_for(app.send_test(config))
        for name, answer in answers:
            click.echo(f"{name}: {answer.result} ({answer.reason})")
        return 0 if all(answer.result == "accepted" for _, answer in answers) else 1
    log_to_stderr(log_level)
    # Its errors name a wrong password; its progress nothing.
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    return wait_for(app.forward(config, accept_loss=accept_loss))
