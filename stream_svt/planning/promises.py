"""What limits that renew promise, as text for the operator."""

from __future__ import annotations

from dataclasses import dataclass

from stream_svt.monitor.operations import utc
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.periods import Renewal, in_words, period_at, written


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The periods of one declaration: their pattern, their begin and end (None: without), and names in each."""

    pattern: str
    renewal: Renewal
    from_ms: int
    until_ms: int | None
    names: int


def promises(spec: ApplicationSpec, now_ms: int) -> dict[str, str]:
    """Return by generator, as it is written, what its limit promises if that renews.

    ``spec`` has no datasets of open generators listed.
    """
    alike: dict[str, list[_Stretch]] = {}
    for one in _stretches(spec):
        if one.until_ms is None or one.until_ms + one.renewal.reach_ms > now_ms:
            alike.setdefault(written(one.pattern), []).append(one)
    return {
        name: _promise(name, sorted(found, key=lambda one: one.from_ms), now_ms)
        for name, found in alike.items()
    }


def _stretches(spec: ApplicationSpec) -> list[_Stretch]:
    found = [
        _Stretch(one.pattern, one.each.renewal, one.from_ms, None, len(one.names))
        for one in spec.generators
        if one.each.renewal is not None
    ]
    going_on = {(one.pattern, one.renewal) for one in found}
    listed: dict[tuple[str, Renewal], dict[int, int]] = {}
    for one in spec.datasets:
        terms = one.terms
        if terms.renewal is not None and terms.from_ms is not None:
            begins = listed.setdefault((terms.pattern, terms.renewal), {})
            begins[terms.from_ms] = begins.get(terms.from_ms, 0) + 1
    for (pattern, renewal), begins in listed.items():
        if (pattern, renewal) not in going_on:
            until_ms = max(begins) + renewal.length_ms
            found.append(_Stretch(pattern, renewal, min(begins), until_ms, max(begins.values())))
    return found


def _promise(name: str, found: list[_Stretch], now_ms: int) -> str:
    """Return the promise of the last of some declarations, and how earlier ones add to it."""
    *earlier, last = found
    renewal, per = last.renewal, in_words(last.renewal.per_ms)
    back = f" and {in_words(renewal.looks_back_ms)} of look-back" if renewal.looks_back_ms else ""
    share, length = _epsilon(renewal.share), in_words(renewal.length_ms)
    text = (
        f"{name}: the events of a privacy unit in any {per} cost at most {_epsilon(renewal.limit)}, for at most "
        f"{renewal.periods} periods read them{back}: each of {length}, with {share}."
    )
    if last.names > 1:
        text += f" That holds for each of {last.names} names: a unit with several loses the sum."
    for one in earlier:
        if one.until_ms is not None and (over := one.until_ms + one.renewal.reach_ms) > now_ms:
            text += f" Until {utc(over)} the limit {_epsilon(one.renewal.limit)} of the periods before comes on top."
    begin = max(last.from_ms, period_at(last.pattern, now_ms)[1])
    if last.until_ms is not None and begin >= last.until_ms:
        return f"{text} No period begins after {utc(last.until_ms)}."
    return f"{text} The next one begins at {utc(begin)}."


def _epsilon(units: int) -> str:
    return f"epsilon {as_text(units, Kind.PURE)}"
