"""What a monitor with `detect` finds, wastes and costs, as text for the operator."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from stream_svt.mechanisms.accuracy import report_probability
from stream_svt.privacy.loss import amount_text
from stream_svt.settings.datasets import Terms
from stream_svt.settings.detection import WASTED, DetectOptions, SolvedRun, solve
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.periods import in_words
from stream_svt.settings.sources import SourceSpec
from stream_svt.wording import counted

_FEW, _NEVER = 0.01, 1e-12
_PARTS: Final = (Fraction(1), Fraction(3, 4), Fraction(1, 2))
"""Parts of the distance whose odds are given."""
_MORE: Final = 10
"""The price of so many times the alerts is given, too."""


def often(chance: float) -> str:
    """Return a probability in words."""
    if chance >= _FEW:
        return f"{float(f'{100 * chance:.2g}'):g} times in 100"
    return f"once in {float(f'{1 / chance:.2g}'):,.12g} tests" if chance > _NEVER else "never in a lifetime"


def odds(monitor: MonitorSpec, detect: DetectOptions) -> str:
    """Return how often one test finds `surely_from`, and values between."""
    mechanism, distance = monitor.mechanism(), SolvedRun.by(monitor, detect).of.distance
    [query], bars = mechanism.branch_laws, mechanism.branches[0].corrections
    texts = list[str]()
    for part in _PARTS:
        law, value = mechanism.threshold_law, detect.above + part * (detect.surely_from - detect.above)
        chance = report_probability(int(part * distance), corrections=bars, query=query, threshold=law)
        is_found = "" if texts else "is found at its first test "
        texts.append(
            f"{float(value):,.12g} {is_found}{often(chance).removesuffix(' in 100' if texts else '')}"
        )
    return f"{', '.join(texts)}."


WASTE: Final = f"1 alert in {WASTED} at most, on average, on values at or below the threshold."


def price(monitor: MonitorSpec, detect: DetectOptions, terms: Terms, source: SourceSpec) -> str:
    """Return what alerts cost a person, and what more of them would cost."""
    renewal, kind, each = terms.renewal, terms.kind, counted(monitor.cutoff, "alert")
    periods = 1 if renewal is None else renewal.periods
    cost = amount_text(periods * monitor.run_price(kind), kind)
    text = f"Its alerts about one dataset cost at most {cost}."
    if renewal is not None:
        text = (
            f"With one run in each period of {in_words(renewal.length_ms)}: {cost} in any {in_words(renewal.per_ms)} "
            f"for one `{source.unit}`. Runs that an operator resamples cost more, within the limit."
        )
    ends = (
        "the next period begins or an operator resamples it" if terms.pattern else "an operator resamples it"
    )
    text, more = f"{each} in one run; then it stops until {ends}. {text}", detect.alerts * _MORE
    cutoff = detect.model_copy(update={"alerts": more}).cutoff(source.period_ms)
    if (solved := solve(replace(SolvedRun.by(monitor, detect).of, cutoff=cutoff))) is not None:
        units = monitor.price_with(kind, cutoff=cutoff, epsilon=solved[0], split=solved[1])
        text += f" With {counted(more, 'alert')}: {amount_text(periods * units, kind)}."
    return text
