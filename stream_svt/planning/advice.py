"""A recommendation as text: table, lines to paste, expectations, warnings."""

from __future__ import annotations

import math
from collections.abc import Callable

from stream_svt.planning.budget import SURE, PaidRuns, reported_margin
from stream_svt.planning.model import Workload
from stream_svt.planning.recommending import Candidate, Recommendation
from stream_svt.settings.fields import AnnealedOptions
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.wording import aligned, counted

_DAY = 86_400


def table(recommendation: Recommendation) -> list[str]:
    """Return the candidates as lines of a table, the recommended one first, the present settings last."""
    workload = recommendation.workload
    head = ["", "split", "correction", "tests", "lifetime", "precision", "recall", "false alerts"]
    head += ["sets per run"] if workload.finite else ["delay", "run lasts (queries)"]
    marked = [(">" if one is recommendation.best else "", one) for one in recommendation.candidates]
    if recommendation.present is not None:
        marked.append(("now", recommendation.present))
    return aligned([head, *([mark, *_row(one, workload)] for mark, one in marked)])


def settings(candidate: Candidate, written: MonitorSpec | None = None) -> list[str]:
    """Return the settings as lines of the configuration file.

    For a monitor ``written`` in the file: only the changes, each with a comment "add" or "replace".
    """
    lines = []
    for name, value in candidate.settings.items():
        line = f"{name}: {_yaml(value)}"
        if written is None:
            lines.append(line)
        elif getattr(candidate.monitor, name) != getattr(written, name):
            lines.append(f"{line} # {'replace' if name in written.model_fields_set else 'add'}")
    return lines


def expectations(recommendation: Recommendation, budget: PaidRuns | None) -> list[str]:
    """Return the expected effect of the recommended settings, as sentences."""
    best, workload = recommendation.best, recommendation.workload
    plan, positives, chance = best.forecast, workload.queries * workload.positives, best.forecast.recall_span
    recall, precision = best.range("recall"), best.range("precision")
    sure, half = (_number(float(reported_margin(best.monitor, level))) for level in (SURE, 0.5))
    when = "by the last pass alone" if workload.finite else "by its first test"
    return [
        " ".join(text.split())
        for text in (
            f"""Of {_number(positives)} positives, a run reports {_number(plan.true_alerts)}
            ({_number(recall.low * positives)} to {_number(recall.high * positives)} if the margins differ from those
            given). Of its {_number(plan.alerts)} alerts, {_number(plan.false_alerts)} are false (precision
            {precision.low:.2f} to {precision.high:.2f}).""",
            f"""The threshold noise alone makes runs differ: one run in ten finds fewer than {chance.low:.0%} of the
            positives, one in ten more than {chance.high:.0%}."""
            if chance.high - chance.low > 0.02
            else "",
            f"""A value {sure} above the threshold is reported {when} {SURE:.0%} of the time, one {half} above it
            half of the time.""",
            _lasts(recommendation, budget),
        )
        if text
    ]


def warnings(recommendation: Recommendation) -> list[str]:
    """Return what an operator must know before using the settings, as sentences."""
    return [" ".join(text.split()) for text, applies in _warnings(recommendation).items() if applies]


def _warnings(recommendation: Recommendation) -> dict[str, bool]:
    """Return every warning and whether it applies."""
    best, workload = recommendation.best, recommendation.workload
    monitor, rule, cutoff = best.monitor, best.monitor.correction, best.monitor.cutoff
    positives, queries = workload.queries * workload.positives, f"{workload.queries:,} queries"
    drift = 0.0 if workload.drift is None else workload.drift.queries
    stream, waits, lifetime = not workload.finite, best.lifetime is not None, best.lifetime or 0
    tolerated, bounded = float(best.tolerated or 0), monitor.threshold_noise.is_one_sided
    wastes, late = stream and tolerated > 0, waits and lifetime < drift
    claim = "Sensitivity and monotonicity" if monitor.monotonic else "Sensitivity"
    series = ", including all tests of a drifting series" if drift else ""
    falls = workload.finite and isinstance(rule, AnnealedOptions) and rule.end < 3
    raised = float(monitor.granularity / monitor.mechanism().branches[-1].rate) * math.log(monitor.attempts)
    return {
        """Margins must come from prior knowledge or from results paid for with budget: settings planned on the
        monitored data would leak information about it free of charge.""": True,
        "Look at the ranges: how many values lie near the threshold is usually unknown.": True,
        f"{claim} must hold for all answers that one privacy unit changes in a whole run{series}.": True,
        """If all items of a set are known at the same time and one answer is enough, a noisy top-k is more accurate:
        it needs no threshold.""": workload.finite,
        f"""A falling bar uses up the cutoff: with {_number(positives)} positives expected, the rest of {cutoff} alerts
        are the largest negatives. Lower the cutoff, or set the end of the correction to 3 to 6.""": falls
        and positives < cutoff,
        f"""At most {_number(tolerated)} alerts of a run of {queries} are wasted on average on values at or below the
        threshold, even if every query lies on it.""": wastes and bounded,
        f"""About {_number(tolerated)} of a run's alerts would be wasted if every query lay on the noisy threshold.
        Laplace noise may put that below the threshold; then more are wasted.""": wastes and not bounded,
        f"""So many tolerated false alerts pay off only if few negatives come near the threshold. If that is uncertain,
        set false_alerts to {_number(cutoff / 10)}, a tenth of the cutoff.""": stream
        and tolerated > cutoff / 10,
        f"""The run is likely to end within its {queries}. Later positives are missed until a new run begins, which
        costs its epsilon again.""": stream and best.forecast.ends > 0.5,
        """The plan counts the first query of each series and its retries. Without a retry queue, every query of a
        series is a test: plan that with all of them in --queries and without --drift.""": drift > 0,
        "Without drift, retries do not help: each further test raises the bar.": stream
        and not (waits or drift),
        f"Retries raise the bar: {monitor.attempts} tests raise it by {_number(raised)}.": waits,
        """The queue selects by arrival only: it cannot prefer near misses, and a full queue drops its oldest
        series.""": waits,
        f"A series waits {lifetime:,} queries but rises over {_number(drift)}: later rises are missed.": late,
        "The lifetime counts records of the partition: multiply it if other datasets share it.": waits,
        f"With {monitor.threshold_noise} threshold noise, alerts carry no certified bound.": not bounded,
    }


def _correction(candidate: Candidate) -> str:
    rule = candidate.monitor.correction
    if isinstance(rule, AnnealedOptions):
        return f"annealed {float(rule.start):g} to {float(rule.end):g}"
    if candidate.tolerated is not None:
        return f"exposure, F = {float(candidate.tolerated):.4g}"
    return rule.kind


def _row(candidate: Candidate, workload: Workload) -> list[str]:
    plan, split = candidate.forecast, candidate.monitor.split

    def ranged(figure: str, shown: Callable[[float], str]) -> str:
        span = candidate.range(figure)
        middle, low, high = shown(span.middle), shown(span.low), shown(span.high)
        return middle if low == high else f"{middle} ({low}-{high})"

    return [
        "default" if split is None else f"{float(split):g}",
        _correction(candidate),
        str(candidate.monitor.attempts),
        "-" if candidate.lifetime is None else _short(candidate.lifetime),
        ranged("precision", "{:.2f}".format),
        ranged("recall", "{:.2f}".format),
        ranged("false_alerts", _short),
        *([] if workload.finite else [_short(plan.delay)]),
        ranged("life", _short),
    ]


def _lasts(recommendation: Recommendation, budget: PaidRuns | None) -> str:
    best, workload = recommendation.best, recommendation.workload
    life, lives, cutoff = best.forecast.life, best.range("life"), best.monitor.cutoff
    runs = ""
    if budget is not None:
        runs = counted(budget.runs, "such run")
        runs += f" and {budget.last_run_alerts} further alerts" if budget.last_run_alerts else ""
    if workload.finite:
        paid = f"; the limit pays for {runs}" if runs else ""
        return f"A run of {cutoff} alerts lasts for about {_number(life)} such sets{paid}."
    if math.isinf(life):
        text = "On such a stream a run hardly ever uses up its alerts"
    else:
        text = (
            f"A run uses up its {cutoff} alerts after about {_number(life)} queries{_time(life, workload)}; after "
            f"{_number(lives.low)} to {_number(lives.high)} if the margins differ from those given"
        )
    text += f". It ends within {workload.queries:,} queries with probability {best.forecast.ends:.2f}"
    if budget is not None:
        text += f". The limit pays for {runs}"
        if budget.together is not None:
            text += f", or {budget.together} if each other monitor of the dataset begins as many"
        if budget.runs and math.isfinite(life):
            total = budget.runs * life
            text += f", about {_number(total)} queries{_time(total, workload)}"
        if budget.runs > 1 and budget.at_once is not None:
            text += f"; of these, {budget.at_once} may begin (max_runs)"
    return f"{text}."


def _yaml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_yaml(part)}" for name, part in value.items()) + "}"
    return str(value)


def _time(queries: float, workload: Workload) -> str:
    if workload.rate is None:
        return ""
    seconds = queries / workload.rate
    for size, unit in ((365 * _DAY, "years"), (_DAY, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f" ({_number(seconds / size)} {unit})"
    return f" ({_number(seconds)} seconds)"


def _short(value: float) -> str:
    """Return a number with about three digits for a table, such as 1.23M for 1,230,000."""
    if value < 0.1:
        return "0" if value < 0.005 else f"{value:.2f}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}" if math.isfinite(value) else "unlimited"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _number(value: float) -> str:
    """Return a number with about three digits for a sentence, such as 1,230,000."""
    return f"{float(f'{value:.3g}'):,.0f}" if 100 <= value < math.inf else _short(value)
