"""The same in plain words, for whoever has to agree to a budget."""

from __future__ import annotations

from stream_svt.planning.budget import Purchase, purchase
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.options import OnHalt, Sweep


def explain(spec: ApplicationSpec) -> list[str]:
    """Return what each monitor can do with a dataset's budget, as lines of text.

    Datasets that share limit and unit are described once.
    """
    lines: list[str] = []
    for monitor in spec.monitors:
        groups: dict[tuple[Kind, int, str], list[DatasetSpec]] = {}
        for dataset in spec.datasets:
            if monitor.covers(dataset.name):
                groups.setdefault((dataset.kind, dataset.limit, dataset.unit), []).append(dataset)
        for datasets in groups.values():
            others = [
                other.name for other in spec.monitors_of(datasets[0].name) if other.name != monitor.name
            ]
            lines += [*_paragraph(monitor, datasets, others), ""]
    return lines[:-1]


def _paragraph(monitor: MonitorSpec, datasets: list[DatasetSpec], others: list[str]) -> list[str]:
    first = max(datasets, key=lambda dataset: dataset.spent_before)
    bought = purchase(monitor, first)
    measure = first.kind.measure
    which = first.name if len(datasets) == 1 else f"each of {len(datasets)} datasets ({datasets[0].name}, ..)"
    limit = as_text(bought.limit, first.kind)
    lines = [
        f"Monitor {monitor.name} on {which}:",
        f"  Protects {first.unit}: whatever is published about it costs at most {measure} {limit}.",
        f"  Detects  {_detects(monitor, bought)}",
        f"  Wastes   {_wastes(monitor, bought)}",
        f"  Reports  {_reports(bought)}",
        f"  Lasts    {_lasts(monitor, bought)}",
    ]
    if first.spent_before:
        spent = f"{measure} {as_text(first.spent_before, first.kind)}"
        most = "" if len(datasets) == 1 else f", the most of any, of {first.name}"
        lines.append(f"  Carried  over: {spent} of the limit was spent before{most}; it lasts for the rest.")
    if others:
        names = ", ".join(others)
        lines.append(f"  Shares   the budget with {names}: what they spend comes off these figures.")
    return lines


def _detects(monitor: MonitorSpec, bought: Purchase) -> str:
    when = "on the last pass over its set" if isinstance(monitor.append, Sweep) else "at its first test"
    sure, even = (f"{float(margin):,.6g}" for margin in (bought.sure_margin, bought.even_margin))
    return (
        f"a value {sure} above the threshold {when} 19 times in 20, one {even} above it every other time (noise: "
        f"{bought.query_scale:.3g} on each test, {bought.threshold_scale:.3g} on the threshold)."
    )


def _wastes(monitor: MonitorSpec, bought: Purchase) -> str:
    if bought.false_alerts is not None:
        return (
            f"at most {bought.false_alerts:.3g} of a run's {bought.alerts_per_run} alerts on values at or "
            f"below the threshold on average, if a run lasts for {bought.expected_queries:,} queries; "
            "far fewer if few values come near it."
        )
    if isinstance(monitor.append, Sweep):
        return (
            "alerts on the best of what is below the threshold where a set holds fewer values above it "
            "than its passes look for."
        )
    return "an unknown share on values below the threshold: only the correction `exposure` bounds it."


def _reports(bought: Purchase) -> str:
    most, price = bought.most_alerts_per_run, as_text(bought.run_price, bought.kind)
    more = f" (up to {most} if all lie far above the threshold)" if most > bought.alerts_per_run else ""
    cost = (
        f"a run costs {bought.kind.measure} {price}, and queries that are not reported cost nothing further"
    )
    return f"{bought.alerts_per_run} alerts a run{more}; {cost}."


def _lasts(monitor: MonitorSpec, bought: Purchase) -> str:
    if monitor.on_halt is OnHalt.STOP:
        return (
            f"for 1 run: {bought.alerts_per_run} alerts in all; then it stops until an operator resamples it."
        )
    runs = f"{bought.runs} whole run{'s' if bought.runs != 1 else ''}"
    if bought.last_run_alerts:
        runs += f" and a shorter one of {bought.last_run_alerts}"
    return (
        f"for {runs}: {bought.alerts} alerts in all; then the monitor is exhausted, skips its queries and "
        "says so once, until an operator raises the budget or a new period's dataset begins."
    )
