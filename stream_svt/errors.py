"""Exceptions of the package.

A message names the place, the found and the expected content, and the consequence. It never contains a query value,
the result of a comparison, noise or a noisy threshold: messages reach logs, and logs are released.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream_svt.plain_text import escaped
from stream_svt.wording import counted, more


class StreamSvtError(Exception):
    """Base class of the package's errors.

    ``retriable``: whether a retry can succeed. ``exit_code``: exit code of a command that the error ends.
    """

    retriable: bool = False
    exit_code: int = 1


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem of a configuration: its place, and a message with the remedy."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        """Return ``line N: field: message``; without the line number if it is 0."""
        line = f"line {self.line}: " if self.line else ""
        name = f"{self.field}: " if self.field else ""
        return f"{line}{name}{self.message}"


PROBLEMS_SHOWN = 20
"""Maximum number of problems that a message lists."""


class ConfigError(StreamSvtError):
    """The configuration cannot be used, for ``problems``, by line."""

    exit_code = 2

    def __init__(self, problems: list[Problem], source: str = "configuration") -> None:
        self.problems, self.source = sorted(problems), source
        lines = "".join(f"\n  {escaped(str(problem))}" for problem in self.problems[:PROBLEMS_SHOWN])
        if left_out := more(len(problems) - PROBLEMS_SHOWN):
            lines += f"\n {left_out}"
        super().__init__(f"{escaped(source)}: {counted(len(problems), 'problem')}{lines}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[Problem], str]]:
        return ConfigError, (self.problems, self.source)


class MisuseError(StreamSvtError):
    """A bug of the caller: the call violates the object's contract. The object's state is unchanged."""


class RunExhausted(MisuseError):
    """A step of a run without tops left; no noise was drawn."""


class PackingError(MisuseError):
    """The identity of a test does not fit the packed form that keys its noise; the test is refused."""


class BudgetExceeded(StreamSvtError):
    """A charge or reservation exceeds the limit; nothing was changed. This is expected, and not a fault."""


class UnreadableState(StreamSvtError):
    """Stored state cannot be read or trusted; the shard parks, and must never start with empty state instead."""

    exit_code = 4


class UnknownKey(UnreadableState):
    """A state record is sealed with a key that this process does not have."""


class StateRolledBack(UnreadableState):
    """The stored state is older than the published alerts; continuing would spend budgets twice."""


class ApplicationClosed(StreamSvtError):
    """The shard was closed permanently; a successor takes over the rest of each budget."""

    exit_code = 4


class ConfigurationBehind(StreamSvtError):
    """The shard has adopted a newer configuration than this worker has read."""

    exit_code = 2


class RecordsLost(StreamSvtError):
    """Retention or deletion removed query records that were not processed yet."""

    exit_code = 4


class RecordsUnreadable(StreamSvtError):
    """The next records of a topic are damaged, or decompress to more than the allowed size."""

    exit_code = 4


class TimestampAhead(StreamSvtError):
    """The timestamp of a query record is far ahead of this worker's clock, until ``passes_at`` (Unix time in seconds).

    Durations run on the latest timestamp read: one such record would end every mute and every period.
    """

    exit_code = 4

    def __init__(self, message: str, passes_at: float) -> None:
        super().__init__(message)
        self.passes_at = passes_at


class BrokerError(StreamSvtError):
    """The brokers refused a call or could not be reached; the message names cause and remedy."""

    exit_code = 3


class CommandRefused(StreamSvtError):
    """A control command does not apply; the reason is in the reply."""
