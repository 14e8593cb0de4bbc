"""Times in which a monitor tests nothing: intervals, or times of each week, in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_svt.settings.document import did_you_mean, quote
from stream_svt.settings.fields import Form
from stream_svt.settings.periods import DAY_MS, EPOCH_MS

_Integers: TypeAlias = NDArray[np.int64]

_WEEK_MS: Final = 7 * DAY_MS
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEKLY: Final = r"([A-Z][a-z]{2}) ([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])"
_MOMENT: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z"
_EXPECTED: Final = "expected {from: 2026-12-01T22:00Z, until: 2026-12-02T02:00Z}, or {every: Sun 02:00-04:00}"


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The time from ``from_ms`` until before ``until_ms``, in UTC milliseconds; if ``weekly``, also in other weeks.

    The first times of each week begin in the week from 5 January 1970.
    """

    from_ms: int
    until_ms: int
    weekly: bool = False

    def overlaps(self, begins: _Integers, ends: _Integers) -> NDArray[np.bool_]:
        """Return which of some windows overlap it, from their begins until before their ends."""
        if not self.weekly:
            found: NDArray[np.bool_] = (begins < self.until_ms) & (ends > self.from_ms)
            return found
        since = (begins - self.from_ms) % _WEEK_MS
        return (since < self.until_ms - self.from_ms) | (since + (ends - begins) > _WEEK_MS)

    def is_late(self, now_ms: int) -> bool:
        """Return whether it may no longer be declared at a moment: it has begun, or is a weekly time that lasts."""
        return self.lasts(now_ms, 0) if self.weekly else self.from_ms <= now_ms

    def lasts(self, now_ms: int, until_asked_ms: int) -> bool:
        """Return whether it may not be removed at a moment: from its begin until the windows that it touches are asked.

        The last of these is asked ``until_asked_ms`` after its end. Where times of each week follow one another, such a
        window is nearly always open, so they count until their end.
        """
        if self.weekly:
            return (now_ms - self.from_ms) % _WEEK_MS < self.until_ms - self.from_ms
        return self.from_ms <= now_ms < self.until_ms + until_asked_ms

    def written(self) -> dict[str, str]:
        """Return it as written in a file."""
        if not self.weekly:
            return {"from": _written(self.from_ms), "until": _written(self.until_ms)}
        day, begin = divmod(self.from_ms - EPOCH_MS, DAY_MS)
        times = (f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}" for ms in (begin, self.until_ms % DAY_MS))
        return {"every": f"{_DAYS[day]} {'-'.join(times)}"}

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key}: {text}' for key, text in self.written().items())}}}"


def _written(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M}{f':{moment:%S}' if moment.second else ''}Z"


def _moment_ms(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(_MOMENT, value):
        try:
            return int(datetime.fromisoformat(value).timestamp()) * 1000
        except ValueError:
            pass
    raise ValueError(f"expected a moment in UTC such as 2026-12-01T22:00Z, found {quote(value)}")


def _weekly(value: object) -> Maintenance:
    found = re.fullmatch(_WEEKLY, value) if isinstance(value, str) else None
    if found is None or found[1] not in _DAYS:
        near = did_you_mean(found[1], _DAYS) if found else ""
        raise ValueError(
            f"expected a day and times in UTC such as Sun 02:00-04:00, found {quote(value)}{near}"
        )
    begin, end = (int(found[at]) * 3_600_000 + int(found[at + 1]) * 60_000 for at in (2, 4))
    day_ms = EPOCH_MS + _DAYS.index(found[1]) * DAY_MS
    return Maintenance(day_ms + begin, day_ms + end + (DAY_MS if end <= begin else 0), weekly=True)


def _maintenance(value: object) -> Maintenance:
    if isinstance(value, Maintenance):
        return value
    if isinstance(value, dict) and value.keys() == {"every"}:
        return _weekly(value["every"])
    if not isinstance(value, dict) or value.keys() != {"from", "until"}:
        raise ValueError(f"{_EXPECTED}, found {quote(value)}")
    found = Maintenance(_moment_ms(value["from"]), _moment_ms(value["until"]))
    if found.until_ms <= found.from_ms:
        raise ValueError(f"must end after it begins, found {found}")
    return found


def _schema(**patterns: str) -> dict[str, Any]:
    keys = {name: {"type": "string", "pattern": f"^{pattern}$"} for name, pattern in patterns.items()}
    return {"type": "object", "properties": keys, "required": [*keys], "additionalProperties": False}


MaintenanceField = Annotated[
    Maintenance,
    Form(
        _maintenance,
        {"anyOf": [_schema(**{"from": _MOMENT, "until": _MOMENT}), _schema(every=_WEEKLY)]},
        Maintenance.written,
    ),
]
