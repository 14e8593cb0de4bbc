"""Which changes of a monitor a live application takes, and when they take effect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from stream_svt.errors import Problem
from stream_svt.settings.messages import quote
from stream_svt.settings.monitors import MonitorSpec


class TakesEffect(StrEnum):
    """When a changed field takes effect in a live application: `NEXT_RUN` ends the open run."""

    NOW = "now"
    NEXT_RUN = "next_run"
    NEVER = "never"


_NEVER = frozenset({"name", "topic"})
_NOW = frozenset(
    {"datasets", "threshold", "append", "mute", "max_mutes", "on_halt", "resample_every", "reserve", "beta"}
)
"""Fields that bear on no open run; any other field waits for the next one."""


def changed_fields(old: MonitorSpec, new: MonitorSpec) -> dict[str, TakesEffect]:
    """Return when each changed field takes effect, by its name in the file; empty where nothing changed.

    A change that can never take effect (another topic) needs a monitor of another name: its runs are tied to
    the offsets of the topic they began on. Caps and pace of `append` change at once; another form of it is refused.
    """
    changed = {}
    for name, info in MonitorSpec.model_fields.items():
        if getattr(old, name) != getattr(new, name):
            kind = TakesEffect.NOW if name in _NOW else TakesEffect.NEXT_RUN
            changed[info.alias or name] = TakesEffect.NEVER if name in _NEVER else kind
    return changed


def ends_runs(old: MonitorSpec, new: MonitorSpec) -> bool:
    """Tell whether open runs end: their noise or price changes, and all runs of a monitor are of one specification."""
    return TakesEffect.NEXT_RUN in changed_fields(old, new).values()


@dataclass(frozen=True, slots=True)
class Declared:
    """What was declared about the answers on a query topic, the most cautious of several declarations.

    Attributes:
        sensitivity: In real units.
        general: Whether neighbours may move answers of one run both ways.
    """

    sensitivity: Fraction
    general: bool

    @classmethod
    def by(cls, spec: MonitorSpec) -> Declared:
        """Return what a monitor declares."""
        return cls(spec.sensitivity, not spec.monotonic)

    def and_by(self, spec: MonitorSpec) -> Declared:
        """Return what this and a monitor declare together."""
        return Declared(max(self.sensitivity, spec.sensitivity), self.general or not spec.monotonic)

    def undercut(self, spec: MonitorSpec) -> dict[str, str]:
        """Return the fields in which a monitor declares less, each with what to do.

        Answers that were made under the older declaration may still lie in the topic, whatever was read of it.
        """
        undercut = {}
        if spec.sensitivity < self.sensitivity:
            least = quote(self.sensitivity)
            undercut["sensitivity"] = f"with sensitivity {least}", f"Declare at least {least}"
        if spec.monotonic and self.general:
            undercut["monotonic"] = "not monotonic", "Declare monotonic: false"
        return {
            field: f"the queries on topic {spec.topic!r} were declared {declared}, and answers made under that may "
            f"still lie there. {remedy}, or let the monitor read another query topic"
            for field, (declared, remedy) in undercut.items()
        }

    def raised(self, spec: MonitorSpec) -> bool:
        """Whether a monitor declares more: runs opened before would test its answers with too little noise."""
        return spec.sensitivity > self.sensitivity or not (spec.monotonic or self.general)


def changes_refused(old: MonitorSpec, new: MonitorSpec) -> list[Problem]:
    """Return what of a changed monitor cannot take effect while the application lives."""
    fields = [name for name, kind in changed_fields(old, new).items() if kind is TakesEffect.NEVER]
    if type(old.append) is not type(new.append):
        fields.append("append")
    message = (
        "cannot change in a live monitor: its runs are tied to it. Declare a monitor of another name instead"
    )
    refused = [Problem(0, f"monitors.{new.name}.{name}", message) for name in fields]
    return refused + (declaration_refused(Declared.by(old), new) if old.topic == new.topic else [])


def declaration_refused(declared: Declared, new: MonitorSpec) -> list[Problem]:
    """Return where a monitor declares less than what was declared about its topic before."""
    undercut = declared.undercut(new)
    return [Problem(0, f"monitors.{new.name}.{name}", message) for name, message in undercut.items()]
