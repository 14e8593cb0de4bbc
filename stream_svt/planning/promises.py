"""What limits that renew promise, as text for the operator."""

from __future__ import annotations

from collections import Counter

from stream_svt.monitor.operations import utc
from stream_svt.planning.lengths import proposal
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.fields import LAST_MS
from stream_svt.settings.periods import Renewal, in_words, period_at, written


def promises(spec: ApplicationSpec, now_ms: int) -> list[str]:
    """Return what each limit that renews promises, as a line that begins with its generator as it is written."""
    found = [
        (one.from_ms, LAST_MS, one.pattern, len(one.names), next(one.named(one.from_ms)))
        for one in spec.generators
    ]
    going_on = {(one.pattern, one.each.renewal) for one in spec.generators}
    begins: dict[tuple[str, Renewal], Counter[int]] = {}
    samples: dict[tuple[str, Renewal], DatasetSpec] = {}
    for one in spec.datasets:
        terms = one.terms
        if terms.renewal and (key := (terms.pattern, terms.renewal)) not in going_on:
            begins.setdefault(key, Counter())[terms.from_ms or 0] += 1
            samples.setdefault(key, one)
    found += [
        (min(each), max(each) + key[1].length_ms, key[0], max(each.values()), samples[key])
        for key, each in begins.items()
    ]
    lines = []
    for from_ms, until_ms, pattern, names, one in sorted(found, key=lambda one: one[:3]):
        if (renewal := one.terms.renewal) and now_ms < (
            over_ms := until_ms + renewal.per_ms + renewal.looks_back_ms
        ):
            parts = _promise(renewal), proposal(spec, one), _each(names)
            lines.append(f"{written(pattern)}: {' '.join(filter(None, parts))}")
            if (begin := max(from_ms, period_at(pattern, now_ms)[1])) < until_ms:
                lines[-1] += f" The next one begins at {utc(begin)}."
            if until_ms < LAST_MS:
                adds = f"until {utc(over_ms)} this limit and later ones add up"
                lines[-1] += f" The last one ends at {utc(until_ms)}; {adds}."
    return lines


def _promise(renewal: Renewal) -> str:
    back = f" and {in_words(renewal.looks_back_ms)} of look-back" if renewal.looks_back_ms else ""
    limit, share = (f"epsilon {as_text(units, Kind.PURE)}" for units in (renewal.limit, renewal.share))
    return (
        f"the events of a privacy unit in any {in_words(renewal.per_ms)}{back} cost at most {limit}. At most "
        f"{renewal.periods} periods of {in_words(renewal.length_ms)} read them, each with {share}."
    )


def _each(names: int) -> str:
    return f"That holds for each of {names} names: a unit with several loses the sum." if names > 1 else ""
