"""Exact probabilities of the outputs of rankings: top-k, its hybrids with a threshold, exponential mechanism.

Entries are ranked by noisy value, equal ones by index. An entry reads a test's answer, or, where it is the
noisy threshold of a hybrid, none. Of the first k - 1 gaps those above `largest_gap` are one output; so they are
of the last gap, whose tail P(gap >= g) is one sum over the last place's noisy value y: every loser s has a noisy
value of at most y - g - [s < j_k].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations, product
from typing import Any

from stream_svt.mechanisms import Noise
from tests.exact.enumeration import Hidden, Kind, Output, Told, X


@dataclass(frozen=True)
class Entry:
    """Something that is ranked: the answer of a test, or a public number with noise of its own."""

    index: int
    test: int | None
    value: int = 0


@dataclass(frozen=True)
class Ranking:
    """Top-k (k at most 2, so that one integer stays hidden), its last gap, and what may end the list.

    Attributes:
        queries, count: Answers, and k.
        noise, rate: Of every entry; the rate in units of u.
        charge: Of an output with k answers.
        last_gap: "lexicographic", "plain" or "none".
        threshold: Value of an entry of index 0 that ends the list, where there is one; answer i has index i +
            1 then.
        threshold_gap: Whether the threshold's own gap is told.
        lift: D in units of rate, which the threshold costs where it ends the list.
    """

    queries: int
    count: int
    noise: Noise
    rate: int
    charge: int
    last_gap: str = "lexicographic"
    threshold: int | None = None
    threshold_gap: bool = False
    lift: int = 0
    largest_gap: int = 1

    def entries(self) -> list[Entry]:
        if self.threshold is None:
            return [Entry(i, i) for i in range(self.queries)]
        return [Entry(0, None, self.threshold), *(Entry(i + 1, i) for i in range(self.queries))]

    def told(self, kind: Kind, entry: Entry, shift: int) -> Told:
        """What is known of an entry's noise when its noisy value is compared with y + shift."""
        return Told(kind, self.noise, self.rate, shift - entry.value, entry.test)

    def outputs(self) -> Iterator[Output]:
        entries = self.entries()
        for places in permutations(entries, min(self.count, len(entries))):
            at = next((n for n, entry in enumerate(places) if entry.test is None), None)
            if at is None:
                yield from self._full(places, [e for e in entries if e not in places])
        if self.threshold is not None:
            for answers in range(self.count):
                for places in permutations(entries[1:], answers):
                    yield from self._stopped((*places, entries[0]), [e for e in entries if e not in places])

    def _heads(self, places: Sequence[Entry]) -> Iterator[tuple[tuple[int, ...], tuple[Told, ...]]]:
        """Gaps of all places but the last, and what they tell, in terms of the last one's noisy value y."""
        if len(places) > 2:
            raise ValueError("one hidden integer describes two places only")
        told = (self.told(Kind.EQUAL, places[-1], 0),)
        if len(places) == 1:
            yield (), told
            return
        winner, loser = places
        for gap in range(self.largest_gap + 2):
            if gap == 0 and winner.index > loser.index:
                continue  # the loser would come first
            kind = Kind.EQUAL if gap <= self.largest_gap else Kind.AT_LEAST
            yield (gap,), (self.told(kind, winner, gap), *told)

    def _below(self, losers: Sequence[Entry], last: Entry, gap: int, *, ties: bool) -> tuple[Told, ...]:
        """Every loser has a noisy value of at most y - gap, less one where it would win a tie."""
        return tuple(
            self.told(Kind.BELOW, loser, 1 - gap - (ties and loser.index < last.index)) for loser in losers
        )

    def _last(
        self, losers: Sequence[Entry], last: Entry, head: tuple[Told, ...]
    ) -> Iterator[tuple[int | None, tuple[tuple[int, tuple[Hidden, ...]], ...]]]:
        """Last gaps with the terms of their probability: P(gap >= g) - P(gap >= g + 1)."""

        def at_least(gap: int) -> Hidden:
            ties = self.last_gap != "plain" or gap == 0
            return Hidden((*head, *self._below(losers, last, gap, ties=ties)), None, 0)

        if self.last_gap == "none":
            yield None, ((1, (at_least(0),)),)
            return
        for gap in range(self.largest_gap + 1):
            yield gap, ((1, (at_least(gap),)), (-1, (at_least(gap + 1),)))
        yield self.largest_gap + 1, ((1, (at_least(self.largest_gap + 1),)),)

    def _full(self, places: Sequence[Entry], losers: Sequence[Entry]) -> Iterator[Output]:
        for gaps, head in self._heads(places):
            for gap, terms in self._last(losers, places[-1], head):
                yield Output((*zip(_tests(places), (*gaps, gap), strict=True),), self.charge, terms)

    def _stopped(self, places: Sequence[Entry], others: Sequence[Entry]) -> Iterator[Output]:
        """Fewer than k answers, then the threshold, which wins all ties."""
        threshold, answers = places[-1], len(places) - 1
        losers = [entry for entry in others if entry is not threshold]
        for gaps, head in self._heads(places):
            told = (*zip(_tests(places[:-1]), gaps, strict=True),)
            if self.threshold_gap and losers:
                charge = (answers + 1) * self.charge // self.count
                for gap, terms in self._last(losers, threshold, head):
                    yield Output((*told, ("threshold", gap)), charge, terms)
            else:
                charge = answers * self.charge // self.count + self.lift
                below = self._below(losers, threshold, 0, ties=True)
                yield Output((*told, "threshold"), charge, ((1, (Hidden((*head, *below), None, 0),)),))


def _tests(places: Sequence[Entry]) -> list[int]:
    return [entry.test for entry in places if entry.test is not None]


@dataclass(frozen=True)
class Estimates:
    """The k largest answers (k at most 2) above a noisy threshold of 0, with their gaps to it.

    Where two or more answers are further above it than the largest listed gap, that is one output: their order
    would be a second hidden integer.
    """

    queries: int
    count: int
    threshold_noise: Noise
    query_noise: Noise
    threshold_charge: int
    query_charge: int
    threshold_rate: int = 1
    query_rate: int = 1
    largest_gap: int = 1

    def outputs(self) -> Iterator[Output]:
        """All outputs; what lies far above the threshold is listed by name only where one answer does."""
        far = self.largest_gap + 1
        tests = range(self.queries)

        def told(kind: Kind, test: int, shift: int) -> Told:
            return Told(kind, self.query_noise, self.query_rate, shift, test)

        def hidden(*parts: Told) -> tuple[Hidden, ...]:
            return (Hidden(parts, self.threshold_noise, self.threshold_rate),)

        def charge(answers: int) -> int:
            return self.threshold_charge + answers * self.query_charge

        none_far = hidden(*(told(Kind.BELOW, i, far) for i in tests))
        one_far = {
            j: hidden(told(Kind.AT_LEAST, j, far), *(told(Kind.BELOW, i, far) for i in tests if i != j))
            for j in tests
        }
        if self.count == 1:
            yield Output(("far",), charge(1), ((1, hidden()), (-1, none_far)))
        else:
            terms = ((1, hidden()), (-1, none_far), *((-1, one) for one in one_far.values()))
            yield Output(("far", "far"), charge(2), terms)
        yield Output((), charge(0), ((1, hidden(*(told(Kind.BELOW, i, 0) for i in tests))),))
        for answers in range(1, self.count + 1):
            for places in permutations(tests, answers):
                firsts = range(far + (self.count > 1))
                for gaps in product(firsts, *[range(far)] * (answers - 1)):
                    listed = list(zip(places, gaps, strict=True))
                    if any(g < h or (g == h and a > b) for (a, g), (b, h) in pairwise(listed)):
                        continue  # not in order
                    parts = [
                        told(Kind.EQUAL if gap < far else Kind.AT_LEAST, test, gap) for test, gap in listed
                    ]
                    for other in tests:
                        if other not in places:
                            # Below the threshold, or, where the list is full, behind its last place.
                            bar = gaps[-1] + 1 - (other < places[-1]) if answers == self.count else 0
                            parts.append(told(Kind.BELOW, other, bar))
                    yield Output(tuple(listed), charge(answers), ((1, hidden(*parts)),))


def tail_probability(utilities: Sequence[int], row: int, gap: int, ratio: Any) -> Any:
    """P(index = row and gap >= `gap`) for `ratio` = e^-rate and `gap` >= 0; exact when that is a Fraction."""
    top = max(utilities)
    own = ratio ** (top - utilities[row] + gap)
    return own / (own + sum(ratio ** (top - u) for i, u in enumerate(utilities) if i != row))


def gap_probability(
    utilities: Sequence[int], row: int, gap: int, ratio: Any, tail: Any = tail_probability
) -> Any:
    """P(index = row and gap = `gap`)."""
    return tail(utilities, row, gap, ratio) - tail(utilities, row, gap + 1, ratio)


@dataclass(frozen=True)
class Selected:
    """An output of the exponential mechanism with gap: the index, and the gap in grid steps."""

    outcome: tuple[int, int]
    charge: int
    largest_gap: int

    def probability(self, values: Sequence[int]) -> Fraction:
        """Of this gap or, beyond the largest listed one, of a gap at least that; the rate is u."""
        row, gap = self.outcome
        return (gap_probability if gap <= self.largest_gap else tail_probability)(values, row, gap, X)


def exponential_mechanism(queries: int, charge: int, largest_gap: int = 1) -> Iterator[Selected]:
    """All outputs of the exponential mechanism with grid gap at rate u."""
    for index, gap in product(range(queries), range(largest_gap + 2)):
        yield Selected((index, gap), charge, largest_gap)
