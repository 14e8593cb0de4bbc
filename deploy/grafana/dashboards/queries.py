"""Expressions that several dashboards share.

Everything is narrowed down to one application. A dataset or a shard moves from one worker to another, and a
monitor's counts with it: what belongs to a dataset is taken as the greatest figure of any worker, what a monitor
or a topic counts as the sum, and nothing is shown by worker but what belongs to one.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import QueryVariable

from deploy.grafana.dashboards.parts import BAD, CALM, CAREFUL, GOOD, Marks, variable

BURN = ((None, GOOD), (1, CAREFUL), (2, BAD))
"""Colours of a burn rate."""

LEFT = ((None, BAD), (0.1, CAREFUL), (0.25, GOOD))
"""Colours of a share of a budget that is left."""

STATES = {
    "0": ("idle", "text"),
    "1": ("running", GOOD),
    "2": ("paused", CALM),
    "3": ("halted", CAREFUL),
    "4": ("exhausted", BAD),
    "5": ("limited", BAD),
    "6": ("stopped", BAD),
}
"""The states of a monitor on a dataset, as numbers for a timeline, with their colours."""


def of(name: str, **labels: str) -> str:
    """Return a metric of the application chosen, with further labels; ``~`` before a value: a regular expression."""
    chosen = {"application": "$application"} | labels
    matchers = ", ".join(
        f'{label}=~"{value[1:]}"' if value.startswith("~") else f'{label}="{value}"'
        for label, value in chosen.items()
    )
    return f"{name}{{{matchers}}}"


def rate(name: str, **labels: str) -> str:
    """Return a counter's rate each second, over four scrapes or more."""
    return f"rate({of(name, **labels)}[$__rate_interval])"


def added(name: str, **labels: str) -> str:
    """Return by how much a counter grew within the time shown."""
    return f"increase({of(name, **labels)}[$__range])"


def counted(name: str, **labels: str) -> str:
    """Return how often something happened within the time shown, as a whole number."""
    return f"round(sum({added(name, **labels)}))"


def quantile(share: float, histogram: str) -> str:
    """Return a quantile of a histogram over time."""
    return f"histogram_quantile({share}, sum by (le) ({rate(histogram + '_bucket')}))"


def loss(name: str, **labels: str) -> str:
    """Return a gauge of privacy loss, whether the dataset counts epsilon or rho."""
    return f"({of(f'{name}_epsilon', **labels)} or {of(f'{name}_rho', **labels)})"


def by_dataset(amount: str, **labels: str) -> str:
    """Return an amount of the ledgers, by dataset."""
    return f"max by (dataset) ({loss(f'stream_svt_budget_{amount}', **labels)})"


def left(**labels: str) -> str:
    """Return the share of each budget that is not spent; what open runs reserved still buys tops."""
    return f"max by (dataset) ({of('stream_svt:budget_left:ratio', **labels)})"


def burn(window: str, **labels: str) -> str:
    """Return how fast budgets burn: 1 spends exactly the limit in exactly the horizon."""
    return f"max by (dataset) ({of('stream_svt:budget_burn:ratio', window=window, **labels)})"


def ends_in(bound: str, **labels: str) -> str:
    """Return in how many seconds budgets will be spent: early, expected or late."""
    return f"max by (dataset) ({of('stream_svt:budget_exhaustion:seconds', bound=bound, **labels)})"


def firing(**labels: str) -> str:
    """Return the alerts of Prometheus that fire."""
    return of("ALERTS", alertstate="firing", **labels)


def firing_marks(**labels: str) -> Marks:
    """Return marks for the times at which an alert of Prometheus fired."""
    return Marks(
        "Alerts of Prometheus",
        BAD,
        firing(**labels),
        title="{{alertname}} ({{severity}})",
        text="{{dataset}} {{monitor}} {{topic}} {{state}} {{reason}} {{instance}}",
    )


def application() -> QueryVariable:
    """Return the variable that says which application is shown."""
    return variable(
        "application", "label_values(stream_svt_build_info, application)", "Which application is shown."
    )
