"""What one person loses over all datasets that may hold its data, as text for the operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from stream_svt.privacy.loss import Kind, amount_text, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import HORIZON_MS, DatasetSpec, Terms
from stream_svt.settings.periods import in_words, length_ms, written
from stream_svt.wording import SHOWN, listed


@dataclass
class _Ledgers:
    """Datasets that are alike: their number by the begin of their period, and what they have in common with others."""

    name: str
    terms: Terms
    shared: frozenset[str]
    is_endless: bool
    begins: Counter[int | None] = field(default_factory=Counter)

    def factors(self, span_ms: int) -> tuple[int, int, int]:
        """Return a loss, how often it adds up over the periods that read the events of a time, and over names."""
        terms, count = self.terms, max(self.begins.values())
        if terms.renewal is not None:
            return terms.renewal.limit, -(-span_ms // terms.renewal.per_ms), count
        # Wherever the time begins.
        touched = -(-span_ms // length_ms(terms.pattern)) + 1 if terms.pattern else 1
        return terms.limit, touched if self.is_endless else min(touched, len(self.begins)), count


def explain_persons(spec: ApplicationSpec) -> list[str]:
    """Return what one person loses in datasets that share a raw topic or a unit, as lines of text.

    It is for the longest time for which a limit among them renews, without one 30 days. Nothing is said where one
    ledger, or one promise, is all.
    """
    groups: list[list[_Ledgers]] = []
    for one in _ledgers(spec):
        joined = [group for group in groups if any(other.shared & one.shared for other in group)]
        groups = [group for group in groups if group not in joined] + [[*chain.from_iterable(joined), one]]
    return [line for group in groups for line in ("", *_lines(group))][1:]


def _ledgers(spec: ApplicationSpec) -> list[_Ledgers]:
    endless = {one.pattern for one in spec.generators}
    generated = chain.from_iterable(one.named(one.from_ms) for one in spec.generators)
    found: dict[object, _Ledgers] = {}
    for one in chain((one for one in spec.datasets if one.terms.pattern not in endless), generated):
        terms, shared = one.terms, _shared(spec, one)
        alike = (terms.pattern, terms.kind, terms.limit, terms.renewal, shared)
        if alike not in found:
            found[alike] = _Ledgers(
                written(terms.pattern) or one.name, terms, shared, terms.pattern in endless
            )
        found[alike].begins[terms.from_ms] += 1
    return [*found.values()]


def _shared(spec: ApplicationSpec, dataset: DatasetSpec) -> frozenset[str]:
    """Return the raw topics and the unit of a dataset, in words."""
    by_field = {one.source for one in spec.monitors if one.source and one.covers(dataset.name)}
    sources = [
        one
        for one in spec.sources
        if (one.covers(dataset.name) if one.dataset_pattern else one.name in by_field)
    ]
    units = {f"unit `{one.unit}`" for one in sources if one.answers is None}
    promise = "" if dataset.terms.renewal is None else f" ({dataset.terms.renewal.promise})"
    return frozenset(units or {f"unit {dataset.terms.unit.removesuffix(promise)!r}"}).union(
        f"topic {one.topic}" for one in sources
    )


def _lines(group: list[_Ledgers]) -> Iterator[str]:
    """Yield what a person loses in a group; nothing where that is the promise of one ledger."""
    span_ms = max((one.terms.renewal.per_ms for one in group if one.terms.renewal), default=HORIZON_MS)
    losses, parts = Counter[Kind](), list[str]()
    for one in group:
        loss, periods, names = one.factors(span_ms)
        losses[one.terms.kind] += loss * periods * names
        renewal, of = one.terms.renewal, "names" if one.terms.pattern else "datasets"
        words = {"periods" if renewal is None else f"times {in_words(renewal.per_ms)}": periods, of: names}
        times = "".join(f" x {number} {word}" for word, number in words.items() if number > 1)
        parts.append(f"{one.name} {as_text(loss, one.terms.kind)}{times}")
    if len(group) == 1 and " x " not in parts[0]:
        return
    total = " and ".join(amount_text(loss, kind) for kind, loss in losses.items())
    when = f"in any {in_words(span_ms)}" if any(one.terms.pattern for one in group) else "in all"
    yield f"A person in {listed([one.name for one in group], SHOWN)}:"
    yield f"  Loses    at most {total} {when}: {listed(parts, SHOWN)}."
    found = Counter(chain.from_iterable(one.shared for one in group))
    if shared := sorted(key for key, count in found.items() if count > 1):
        yield f"  Shares   {listed(shared, SHOWN)}: the same persons may be in several of them."
    yield (
        "  Readers  of one of these ledgers alone may learn as much, not its limit only: what others released may "
        "change what people do, and so its data."
    )
