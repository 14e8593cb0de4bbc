"""The command that tries neighbouring streams on a configuration."""

from __future__ import annotations

import random
from pathlib import Path

import click

from stream_svt.cli.connection import config_option, count, examples, load


@click.command(
    short_help="Try whether neighbouring streams can be told apart.",
    epilog=examples("prove -c monitors.yaml", "prove -c monitors.yaml --cases 2000 --seed 7"),
)
@config_option()
@click.option(
    "--cases", type=click.IntRange(1), default=100, show_default=True, help="Pairs of streams to try."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another one tries other streams.")
def prove(path: Path, cases: int, seed: int) -> int:
    """Play random streams and their neighbours through the engine, under the monitors of a configuration.

    The neighbour differs by at most the declared sensitivity in every answer. With its noise moved as the
    proof says, everything that can be seen must be the same, and the move must cost at most what was charged.
    Needs no broker, reads no data, spends nothing.
    """
    from stream_svt.proving import prove as try_neighbours

    config = load(path)
    errors = click.get_text_stream("stderr")
    with click.progressbar(length=cases, label="Trying", file=errors, hidden=not errors.isatty()) as bar:
        summary = try_neighbours(
            config.current,
            cases=cases,
            chance_of=lambda number: random.Random(f"{seed} {number}"),  # noqa: S311 - streams, not noise
            progress=lambda _: bar.update(1),
        )
    click.echo(
        f"Tried {count(summary.cases, 'pair')} of neighbouring streams on "
        f"{count(len(config.spec.monitors), 'monitor')}: {count(summary.queries, 'test')}, "
        f"{count(summary.alerts, 'alert')}, {count(summary.runs, 'run')}, {count(summary.commits, 'commit')}; "
        f"{count(summary.crashes, 'restart')} and {count(summary.commands, 'command')} in between."
    )
    if summary.found is not None:
        click.echo(f"COUNTEREXAMPLE in case {summary.found.case} of seed {seed}: {summary.found.what}.")
        click.echo(
            "The guarantee does not hold as declared. Please report this, with the configuration and the seed."
        )
        return 1
    click.echo(
        "Every comparison held: events, rejects, positions, counts, which step asked for a commit, and keys and "
        "lengths of all state records were the same. Moving the noise cost at most what was charged, in the closest "
        f"case {float(summary.closest):.1%} of it."
    )
    if summary.unaligned:
        left_out = count(summary.unaligned, "pair")
        click.echo(f"{left_out} had threshold noise that no entropy leads to, and were left out.")
    click.echo(
        "This is a test of the program, not the proof: docs/privacy-guarantee.md has that, and what it assumes."
    )
    return 0
