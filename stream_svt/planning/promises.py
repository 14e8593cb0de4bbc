"""What limits that renew promise, as text for the operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from stream_svt.monitor.operations import utc
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.fields import LAST_MS
from stream_svt.settings.periods import DAY_MS, Renewal, in_words, period_at, written


def promises(spec: ApplicationSpec, now_ms: int) -> list[str]:
    """Return what each limit that renews promises, as a line that begins with its generator as it is written."""
    found = [(one.from_ms, LAST_MS, one.pattern, one.each.renewal, len(one.names)) for one in spec.generators]
    going_on = {(pattern, renewal) for _, _, pattern, renewal, _ in found}
    begins: dict[tuple[str, Renewal | None], Counter[int]] = {}
    for terms in (one.terms for one in spec.datasets):
        if terms.renewal and (key := (terms.pattern, terms.renewal)) not in going_on:
            begins.setdefault(key, Counter())[terms.from_ms or 0] += 1
    found += [
        (min(each), max(each) + renewal.length_ms, pattern, renewal, max(each.values()))
        for (pattern, renewal), each in begins.items()
        if renewal
    ]
    lines = []
    for from_ms, until_ms, pattern, renewal, names in sorted(found, key=lambda one: one[:3]):
        if renewal and now_ms < (over_ms := until_ms + renewal.per_ms + renewal.looks_back_ms):
            lines.append(f"{written(pattern)}: {_promise(renewal, names)}")
            if (begin := max(from_ms, period_at(pattern, now_ms)[1])) < until_ms:
                lines[-1] += f" The next one begins at {utc(begin)}."
            if until_ms < LAST_MS:
                adds = f"until {utc(over_ms)} this limit and later ones add up"
                lines[-1] += f" The last one ends at {utc(until_ms)}; {adds}."
    return lines


def _promise(renewal: Renewal, names: int) -> str:
    back = f" and {in_words(renewal.looks_back_ms)} of look-back" if renewal.looks_back_ms else ""
    limit, share = (f"epsilon {as_text(units, Kind.PURE)}" for units in (renewal.limit, renewal.share))
    each = f" That holds for each of {names} names: a unit with several loses the sum." if names > 1 else ""
    text = (
        f"the events of a privacy unit in any {in_words(renewal.per_ms)}{back} cost at most {limit}. At most "
        f"{renewal.periods} periods of {in_words(renewal.length_ms)} read them, each with {share}"
    )
    longer = replace(renewal, length_ms=renewal.length_ms + DAY_MS)
    if longer.periods < renewal.periods and renewal.length_ms % DAY_MS == 0:
        more = f"{longer.periods} periods of epsilon {as_text(longer.share, Kind.PURE)}"
        text += f" (every: {longer.length_ms // DAY_MS}d would give {more})"
    return f"{text}.{each}"
