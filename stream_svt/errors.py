"""Every exception of the package, grouped by who can mend it.

A message names the place, what was found, what was expected and what happens next. It never holds a query
value, the result of a comparison, noise or a noisy threshold: messages reach logs, and logs are released.
"""

from __future__ import annotations

from dataclasses import dataclass


class StreamSvtError(Exception):
    """Root of all errors raised on purpose by this package.

    ``retriable`` tells a supervisor whether doing the same again can succeed; ``exit_code`` is what the
    command line returns when the error ends a command.
    """

    retriable: bool = False
    exit_code: int = 1


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with a configuration: where it stands, what is wrong and what to write instead."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        """Return ``line N: field: message``; without the line where the text has none to show."""
        place = f"line {self.line}: " if self.line else ""
        name = f"{self.field}: " if self.field else ""
        return f"{place}{name}{self.message}"


PROBLEMS_SHOWN = 20
"""Problems that an error lists one by one: a log line and a reader take no hundred thousand."""


class ConfigError(StreamSvtError):
    """The operator's configuration cannot be used; the first problems are in ``problems``, by line.

    ``more`` is the number of those that are only counted.
    """

    exit_code = 2

    def __init__(self, problems: list[Problem], source: str = "configuration", more: int = 0) -> None:
        found = sorted(problems)
        self.problems, self.more = found[:PROBLEMS_SHOWN], more + len(found[PROBLEMS_SHOWN:])
        self.source = source
        count = len(self.problems) + self.more
        noun = f"problem{'s' * (count != 1)}"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        others = f"\n  and {self.more} more" if self.more else ""
        super().__init__(f"{source}: {count} {noun}{lines}{others}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[Problem], str, int]]:
        return ConfigError, (self.problems, self.source, self.more)


class MisuseError(StreamSvtError):
    """A caller's bug: the object was asked for something its contract excludes. Its state is unchanged."""


class RunExhausted(MisuseError):
    """A run whose tops are all used was stepped again; no noise was drawn."""


class PackingError(MisuseError):
    """The identity of a test does not fit the packing that keys its noise; the test is refused."""


class BudgetExceeded(StreamSvtError):
    """A charge or reservation does not fit the limit; nothing was changed. The design working, not a fault."""


class UnreadableState(StreamSvtError):
    """Stored state cannot be trusted or read; the shard parks and must never start afresh in its place."""

    exit_code = 4


class UnknownKey(UnreadableState):
    """A state record is sealed with a key that this process does not have."""


class StateRolledBack(UnreadableState):
    """The stored state is older than the alerts already published; going on would refill spent budgets."""


class ApplicationClosed(StreamSvtError):
    """The shard was closed for ever; a successor goes on with what is left of each budget."""

    exit_code = 4


class ConfigurationBehind(StreamSvtError):
    """The shard has adopted a newer configuration than this worker has read so far."""

    exit_code = 2


class RecordsLost(StreamSvtError):
    """Retention or deletion took query records that were not processed yet."""

    exit_code = 4


class TimestampAhead(StreamSvtError):
    """A query record is stamped far ahead of this worker's clock; ``passes_at`` is when it no longer is (seconds).

    Every duration runs on the latest timestamp seen: one record would end every mute and every period.
    """

    exit_code = 4

    def __init__(self, message: str, passes_at: float) -> None:
        super().__init__(message)
        self.passes_at = passes_at


class BrokerError(StreamSvtError):
    """The brokers refused or could not be reached; the message names the cause and the remedy."""

    exit_code = 3


class CommandRefused(StreamSvtError):
    """A control command does not apply; the reason is sent back to who issued it."""
