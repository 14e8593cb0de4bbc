"""What `apply` refuses of maintenance: it is declared before it begins, and stays as long as it lasts."""

from __future__ import annotations

from collections.abc import Iterator

from stream_svt.errors import Problem
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec


def late_maintenance(old: ApplicationSpec, new: ApplicationSpec, now_ms: int) -> Iterator[Problem]:
    """Yield maintenance that has begun when it is declared, or is removed while it lasts, at a moment in UTC ms.

    A new monitor may have what another one had before. What is wrong with each of several monitors is yielded once.
    """
    found: dict[str, list[str]] = {}
    for name, message in _late(old, new, now_ms):
        found.setdefault(message, []).append(name)
    for message, names in found.items():
        everywhere = len(names) == len(new.monitors) > 1
        for field in ["maintenance"] if everywhere else [f"monitors.{name}.maintenance" for name in names]:
            yield Problem(0, field, message)


def _late(old: ApplicationSpec, new: ApplicationSpec, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yield each monitor with maintenance that is late, and what is wrong with it."""
    before = {one.name: one for one in old.monitors}
    declared = {one for monitor in old.monitors for one in monitor.maintenance}
    for monitor in new.monitors:
        known, asked_ms = before.get(monitor.name), _until_asked_ms(new, monitor)
        had = declared if known is None else {*known.maintenance}
        for one in monitor.maintenance:
            if one not in had and one.is_late(now_ms):
                rest = "to rest now, 'stream-svt control pause -c FILE DATASET --for 1h'"
                yield monitor.name, f"{one} has begun: declare maintenance before it begins; {rest}"
        for one in known.maintenance if known else ():
            if one not in monitor.maintenance and one.lasts(now_ms, asked_ms):
                message = f"{one} has begun, and stays until the windows that it touches were asked"
                yield monitor.name, f"{message}: remove it later"


def _until_asked_ms(spec: ApplicationSpec, monitor: MonitorSpec) -> int:
    """Return how long after a moment the windows are asked that have begun at it."""
    if monitor.source is None:
        return 0
    source = spec.source(monitor.source)
    return source.every if source.answers is not None else source.window + source.lateness
