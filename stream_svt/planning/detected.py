"""What a monitor with `detect` finds, wastes and costs, as text for the operator."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from stream_svt.mechanisms.accuracy import report_probability
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.datasets import Terms
from stream_svt.settings.detection import WASTED, DetectOptions, RunProblem, numbers_of, solve
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
        return f"{100 * chance:.2g} times in 100"
    return f"once in {float(f'{1 / chance:.2g}'):,.12g} tests" if chance > _NEVER else "never in a lifetime"


def odds(monitor: MonitorSpec, detect: DetectOptions) -> str:
    """Return how often one test finds `surely_from`, and values between."""
    mechanism = monitor.mechanism()
    (query,), bar = mechanism.branch_laws, mechanism.branches[0].correction(0)
    distance = RunProblem.of(numbers_of(monitor, detect).of).distance
    texts: list[str] = []
    for part in _PARTS:
        value = detect.above + part * (detect.surely_from - detect.above)
        chance = report_probability(
            int(part * distance), corrections=[bar], query=query, threshold=mechanism.threshold_law
        )
        how_often = often(chance).removesuffix(" in 100" if texts else "")
        texts.append(f"{float(value):,.12g} {'' if texts else 'is found at its first test '}{how_often}")
    return f"{', '.join(texts)}."


WASTE: Final = f"1 alert in {WASTED} at most, on average, on values at or below the threshold."


def price(monitor: MonitorSpec, detect: DetectOptions, terms: Terms, source: SourceSpec) -> str:
    """Return what alerts cost a person, and what more of them would cost."""
    renewal, kind = terms.renewal, terms.kind
    periods = 1 if renewal is None else renewal.periods
    cost = f"Its alerts about one dataset cost at most {_amount(monitor.run_price(kind), kind)}."
    if renewal is not None:
        cost = (
            f"Any {in_words(renewal.per_ms)} of one `{source.unit}` cost at most "
            f"{_amount(periods * monitor.run_price(kind), kind)}. Periods of {in_words(renewal.length_ms)}, "
            f"{counted(monitor.cutoff, 'alert')} each."
        )
    text = f"{counted(monitor.cutoff, 'alert')} in one run; then it stops until {{}}an operator resamples it. {cost}"
    text = text.format("the next period begins or " if terms.pattern else "")
    more = detect.alerts * _MORE
    cutoff = detect.model_copy(update={"alerts": more}).cutoff(source.period_ms)
    if (solved := solve(RunProblem.of(numbers_of(monitor, detect).of | {"cutoff": str(cutoff)}))) is not None:
        units = monitor.price_with(kind, cutoff=cutoff, epsilon=solved[0], split=solved[1])
        text += f" {counted(more, 'alert')}: {_amount(periods * units, kind)}."
    return text


def _amount(units: int, kind: Kind) -> str:
    return f"{kind.measure} {as_text(units, kind)}"
