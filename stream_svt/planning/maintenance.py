"""What `apply` refuses of maintenance: it is declared before it begins, and stays as long as it lasts."""

from __future__ import annotations

from collections.abc import Iterator

from stream_svt.errors import Problem
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec


def late_maintenance(old: ApplicationSpec, new: ApplicationSpec, now_ms: int) -> Iterator[Problem]:
    """Yield maintenance that has begun when it is declared, or is removed while it lasts, at a moment in UTC ms.

    A new monitor may have what another one had before.
    """
    before = {one.name: one for one in old.monitors}
    declared = {one for monitor in old.monitors for one in monitor.maintenance}
    for monitor in new.monitors:
        known, asked_ms = before.get(monitor.name), _until_asked_ms(new, monitor)
        had = declared if known is None else {*known.maintenance}
        field = f"monitors.{monitor.name}.maintenance"
        for one in monitor.maintenance:
            if one not in had and one.is_late(now_ms):
                yield Problem(0, field, f"{one} has begun: declare maintenance before it begins")
        for one in known.maintenance if known else ():
            if one not in monitor.maintenance and one.lasts(now_ms, asked_ms):
                message = f"{one} has begun, and stays until the windows that it touches were asked"
                yield Problem(0, field, f"{message}: remove it later")


def _until_asked_ms(spec: ApplicationSpec, monitor: MonitorSpec) -> int:
    """Return how long after a moment the windows are asked that have begun at it."""
    if monitor.source is None:
        return 0
    source = spec.source(monitor.source)
    return source.every if source.answers is not None else source.window + source.lateness
