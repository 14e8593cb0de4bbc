"""The command that prints shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_STREAM_SVT_COMPLETE"


@click.command(
    short_help="Print a shell's completion script.",
    epilog="""\b
Examples:
  stream-svt completion bash > ~/.local/share/bash-completion/completions/stream-svt
  stream-svt completion zsh > ~/.zfunc/_stream-svt
  stream-svt completion fish > ~/.config/fish/completions/stream-svt.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands and options."""
    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover - the three are click's own
        raise click.BadParameter(shell)
    script = kind(context.find_root().command, {}, "stream-svt", _VARIABLE)
    click.echo(script.source_template % script.source_vars())
