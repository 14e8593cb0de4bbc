"""Which changes of a monitor a live application takes, and when they take effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from stream_svt.errors import Problem
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.validation import quote

_NOW = frozenset(
    {"datasets", "threshold", "append", "mute", "max_mutes", "on_halt", "resample_every", "reserve", "beta"}
)
"""Fields that bear on no open run, and may change at once; any other field ends open runs."""


def changed_fields(old: MonitorSpec, new: MonitorSpec) -> list[str]:
    """Return the fields that differ, by their names in the file."""
    fields = MonitorSpec.model_fields.items()
    return [info.alias or name for name, info in fields if getattr(old, name) != getattr(new, name)]


def ends_runs(old: MonitorSpec, new: MonitorSpec) -> bool:
    """Tell whether open runs end: their noise or price changes, and all runs of a monitor are of one specification."""
    return not _NOW.issuperset({*changed_fields(old, new)} - {"topic"})


@dataclass(frozen=True, slots=True)
class Declared:
    """What was declared about the answers on a query topic, the most cautious of several declarations.

    Attributes:
        sensitivity: In real units.
        monotonic: Whether neighbours move all answers of one run the same way.
    """

    sensitivity: Fraction
    monotonic: bool

    @classmethod
    def by(cls, spec: MonitorSpec) -> Declared:
        """Return what a monitor declares."""
        return cls(spec.sensitivity, spec.monotonic)

    def __or__(self, other: Declared | None) -> Declared:
        """Return what this and another declaration, if there is one, declare together."""
        other = other or self
        return Declared(max(self.sensitivity, other.sensitivity), self.monotonic and other.monotonic)

    def undercut(self, spec: MonitorSpec) -> dict[str, str]:
        """Return the fields in which a monitor declares less, each with what to do.

        Answers that were made under the older declaration may still lie in the topic, whatever was read of it.
        """
        undercut = {}
        if spec.sensitivity < self.sensitivity:
            least = quote(self.sensitivity)
            undercut["sensitivity"] = f"with sensitivity {least}", f"Declare at least {least}"
        if spec.monotonic and not self.monotonic:
            undercut["monotonic"] = "not monotonic", "Declare monotonic: false"
        return {
            field: f"the queries on topic {spec.topic!r} were declared {declared}, and answers made under that may "
            f"still lie there. {remedy}, or let the monitor read another query topic"
            for field, (declared, remedy) in undercut.items()
        }


def changes_refused(old: MonitorSpec, new: MonitorSpec) -> Iterator[Problem]:
    """Yield what of a changed monitor cannot take effect while the application lives.

    Runs are tied to the offsets of their topic, and what waits to its form of ``append``, whose options may change.
    """
    tied = {"topic": old.topic != new.topic, "append": type(old.append) is not type(new.append)}
    message = (
        "cannot change in a live monitor: its runs are tied to it. Declare a monitor of another name instead"
    )
    for name in (name for name, changes in tied.items() if changes):
        yield Problem(0, f"monitors.{new.name}.{name}", message)
    if old.topic == new.topic:
        yield from declaration_refused(Declared.by(old), new)


def declaration_refused(declared: Declared, new: MonitorSpec) -> Iterator[Problem]:
    """Yield where a monitor declares less than what was declared about its topic before."""
    for name, message in declared.undercut(new).items():
        yield Problem(0, f"monitors.{new.name}.{name}", message)
