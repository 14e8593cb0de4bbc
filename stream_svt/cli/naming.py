"""What the command line says of names it does not know, and how it counts."""

from __future__ import annotations

import click

from stream_svt.settings.messages import did_you_mean


class Group(click.Group):
    """Suggests a command where the name given is near to its."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, self.list_commands(ctx)) or "."
            ctx.fail(f"No such command {name!r}{hint}")
        return super().resolve_command(ctx, args)


class FileOption(click.Option):
    """An option that a variable of the environment can replace, and says so where it is missing."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return what a message calls the option."""
        hint = super().get_error_hint(ctx)  # type: ignore[arg-type]  # older ones do without a context, too
        return f"{hint} (or ${self.envvar})"


def count(number: int, noun: str) -> str:
    """Return a number of things: 1 event, 2 events."""
    return f"{number} {noun}{'s' * (number != 1)}"
