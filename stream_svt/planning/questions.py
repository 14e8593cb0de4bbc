"""Questions of monitors as text for the operator: what is tested, what one unit changes, when nothing is asked."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from stream_svt.settings.document import quote
from stream_svt.settings.fields import duration_text
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.questions import Question
from stream_svt.settings.sources import SourceSpec


def explain_question(monitor: MonitorSpec, question: Question, source: SourceSpec) -> str:
    """Return in words what a monitor tests in place of the counts of a source."""
    down, up = (quote(Fraction(one, question.parts)) for one in question.moves)
    moves = f"one `{source.unit}` moves it by -{down} to {up}" if question.moves[0] else f"one adds 0 to {up}"
    turned = f"with the sign turned, after alerts of {monitor.ends}, " if question.ends else ""
    text = f"{monitor.name} tests {turned}{value_in_words(monitor, question, source)}: {moves}."
    for more in (_silence(question, source), _least(monitor, question)):
        text += f" {more}" if more else ""
    return text


def value_in_words(monitor: MonitorSpec, question: Question, source: SourceSpec) -> str:
    """Return the operators of a question in words, the last one first, without the sign of an end."""
    window = source.window
    text = question.measure
    if question.share is not None:
        measure, part, whole = question.share
        text = f"{measure} less {quote(Fraction(100 * part, whole))} % of {text}"
    if monitor.thresholds is not None:
        text += " less the threshold of the series"
    if question.usual is not None:
        every, times, factor, per = question.usual
        by = "" if factor == per else f"{quote(Fraction(factor, per))} times "
        text += f", less {by}its mean of {times} times every {duration_text(every * window)} before"
    if question.mean > 1:
        text = f"the mean of {question.mean} windows of {text}"
    if question.over != (1, 1):
        short, long = (duration_text(one * window) for one in question.over)
        which = "larger" if question.ends else "smaller"
        text = f"the {which} of the means over {short} and {long} of {text}"
    if question.excess[1] > 1:
        usual, most = question.excess
        over = quote(Fraction(usual, question.parts))
        text = f"the largest sum of what the last 1 to {most} windows have above {over}, of {text}"
    if (visits := question.visits) is not None:
        text += f", each unit counted in {visits.at_most} of any {visits.among} windows at most"
    if question.holds[0] > 1:
        windows, at_least = question.holds
        which = "the smallest" if at_least == windows else f"the {ordinal(at_least)} largest"
        text = f"{'the largest' if question.ends else which} of {windows} windows of {text}"
    return text


def ordinal(number: int) -> str:
    """Return "2nd" for 2.

    >>> [ordinal(number) for number in (2, 3, 4, 11, 21)]
    ['2nd', '3rd', '4th', '11th', '21st']
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def _silence(question: Question, source: SourceSpec) -> str:
    """Return when nothing is asked."""
    if not question.look_back:
        return ""
    first = question.earlier - (question.excess[1] - 1)  # sums begin again with fewer windows
    parts: list[str] = []
    if first and source.period_ms:
        parts.append(f"in the first {duration_text(first * source.window)} of each period")
    parts.append(
        f"in the first {duration_text(question.look_back * source.window)} of the source and of a series"
    )
    return f"Nothing is asked {', nor '.join([*parts, 'where a window that it reads was lost'])}."


def _least(monitor: MonitorSpec, question: Question) -> str:
    """Return which traffic is too small for an alert about a share."""
    if question.share is None:
        return ""
    _, part, whole = question.share
    least = ceil(monitor.threshold / (1 - Fraction(part, whole)))
    return f"A series with fewer than {least} {question.measure} in a window is never above the threshold."
