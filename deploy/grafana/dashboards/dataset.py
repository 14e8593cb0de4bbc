"""One dataset: its budget over time, when that is likely to end, who spends it, and what its monitors do."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboards import pages
from deploy.grafana.dashboards.parts import (
    BAD,
    CALM,
    CAREFUL,
    Column,
    Marks,
    Page,
    Query,
    color,
    datasource,
    drawn,
    lines,
    number,
    rows,
    timeline,
    variable,
)
from deploy.grafana.dashboards.queries import (
    BURN,
    LEFT,
    STATES,
    application,
    by_dataset,
    ends_in,
    firing_marks,
    left,
    loss,
    of,
)

_DATASET = {"dataset": "$dataset"}
_CHARGED = " or ".join(
    f"changes({of(f'stream_svt_monitor_spent_{measure}', **_DATASET)}[$__rate_interval])"
    for measure in ("epsilon", "rho")
)


def page() -> Page:
    """Return the dashboard."""
    page = Page(
        pages.DATASET,
        "stream-svt / Dataset",
        "One dataset and its budget: what was spent, what open runs hold in reserve, when the limit is likely to be "
        "reached, and which monitor spends it. Amounts are epsilon or rho, as the dataset was declared.",
        since="now-7d",
        variables=[
            datasource(),
            application(),
            variable(
                "dataset",
                f"label_values({of('stream_svt_budget_charges')}, dataset)",
                "Which dataset is shown.",
            ),
        ],
        annotations=[
            Marks(
                "Charges",
                CALM,
                f"max by (monitor) ({_CHARGED})",
                title="Charged",
                text="{{monitor}}",
            ),
            firing_marks(**_DATASET),
        ],
        links=[_ahead("a week", "7d"), _ahead("a quarter", "90d")],
    )
    page.row("Now", *_now())
    page.row("Budget", *_budget())
    page.row("Monitors", *_monitors())
    return page


def _now() -> tuple[Builder[Panel], ...]:
    def amount(name: str) -> Query:
        return Query(by_dataset(name, **_DATASET))

    measures = tuple(
        Query(f"max({of(f'stream_svt_budget_limit_{measure}', **_DATASET)})", name)
        for measure, name in (("epsilon", "epsilon (pure)"), ("rho", "rho (zCDP)"))
    )
    return (
        number(
            "Left",
            "Share of the limit that is not spent yet.",
            Query(left(**_DATASET)),
            unit="percentunit",
            width=6,
            decimals=1,
            colors=LEFT,
        ),
        number(
            "Spent", "Privacy loss spent, in the dataset's measure.", amount("spent"), unit="none", width=6
        ),
        number(
            "Reserved",
            "Privacy loss that open runs may still spend: it is kept for them, and comes back if they do not.",
            amount("reserved"),
            unit="none",
            width=6,
        ),
        number(
            "Limit",
            "The most that may ever be lost, in the dataset's measure: epsilon, or rho of zero-concentrated privacy.",
            *measures,
            unit="none",
            width=6,
            names=True,
        ),
    )


def _ahead(name: str, time: str) -> DashboardLink:
    """Return a link to this dashboard for a time that reaches as far into the future as into the past."""
    url = f"/d/{pages.DATASET}?from=now-{time}&to=now%2B{time}"
    return DashboardLink(f"Look {name} ahead").url(url).include_vars(include_vars=True)


def _projected(bound: str) -> str:
    """Return what will have been spent at a future time.

    Prometheus answers for the future, too, from what was seen last: when the ledger was last seen, the budget was to
    be spent in so many seconds, and of those a part has passed. A projection that had ended before is none.
    """

    def last(vector: str) -> str:
        return f"max by (dataset) (max_over_time({vector}[$__range:$__interval]))"

    spent, limit = (last(loss(f"stream_svt_budget_{name}", **_DATASET)) for name in ("spent", "limit"))
    end = of("stream_svt:budget_exhaustion:seconds", bound=bound, **_DATASET)
    seen = last(f"timestamp({of('stream_svt:budget_left:ratio', **_DATASET)})")
    lasts = f"max by (dataset) (last_over_time({end}[$__range:$__interval]))"
    left = f"({lasts} and {last(f'timestamp({end})')} > {seen} - 600)"
    return f"{spent} + ({limit} - {spent}) * clamp_max((time() - {seen} > 60) / {left}, 1)"


def _budget() -> tuple[Builder[Panel], ...]:
    budget = lines(
        "Budget over time",
        "Spent, and spent with what open runs reserved, against the limit. The links above let the time shown reach "
        "into the future: there the projection goes on if charges keep coming as they did, within a band that holds "
        "the truth in nine of ten cases.",
        Query(by_dataset("spent", **_DATASET), "spent"),
        Query(
            f"{by_dataset('spent', **_DATASET)} + {by_dataset('reserved', **_DATASET)}", "spent and reserved"
        ),
        Query(by_dataset("limit", **_DATASET), "limit"),
        Query(_projected("early"), "at the most"),
        Query(_projected("expected"), "expected"),
        Query(_projected("late"), "at the least"),
        unit="none",
        width=16,
        height=11,
    )
    drawn(budget, "spent", color=color(CALM), custom__fillOpacity=25)
    drawn(budget, "spent and reserved", color=color(CAREFUL), custom__fillOpacity=0)
    drawn(budget, "limit", color=color(BAD), custom__fillOpacity=0, custom__lineStyle=_DASHED)
    drawn(budget, "expected", color=color(CALM), custom__fillOpacity=0, custom__lineStyle=_DASHED)
    drawn(
        budget,
        "at the most",
        color=color(CALM),
        custom__lineWidth=0,
        custom__fillBelowTo="at the least",
        custom__fillOpacity=15,
    )
    drawn(budget, "at the least", color=color(CALM), custom__lineWidth=0, custom__fillOpacity=0)
    return (
        budget,
        number(
            "Spent in",
            "When the budget will be spent if charges continue at the present pace: with a probability of 90 % between "
            "the earliest and the latest.",
            *(
                Query(ends_in(bound, **_DATASET), name)
                for bound, name in (
                    ("early", "at the earliest"),
                    ("expected", "expected"),
                    ("late", "at the latest"),
                )
            ),
            unit="s",
            width=8,
            height=7,
            decimals=1,
            nothing="Too few payments to tell, or nothing left",
        ),
        number(
            "Horizon",
            "How long the budget is meant to last: the declared horizon, or the period's length.",
            Query(f"max({of('stream_svt_budget_horizon_seconds', **_DATASET)})"),
            unit="s",
            width=8,
            nothing="Not declared",
        ),
        lines(
            "Burn rate",
            "How fast the budget goes, over four windows that are shares of the horizon (a twelfth, a 36th, a 144th "
            "and a 432nd, about). 1 spends exactly the limit in exactly the horizon. Charges come one by one, so the "
            "shorter windows leap.",
            Query(
                f"max by (window) ({of('stream_svt:budget_burn:ratio', **_DATASET)})",
                "{{window}}",
            ),
            unit="none",
            width=24,
            colors=BURN,
            logarithmic=True,
        ),
    )


_DASHED = {"fill": "dash", "dash": [10, 10]}


def _monitors() -> tuple[Builder[Panel], ...]:
    state = " or ".join(
        f"{value} * {of('stream_svt_monitor_state', state=word, **_DATASET)}"
        for value, (word, _) in STATES.items()
    )

    def by_monitor(name: str) -> str:
        return f"max by (monitor) ({loss(f'stream_svt_monitor_{name}', **_DATASET)})"

    return (
        timeline(
            "State of each monitor",
            "What each monitor does on this dataset. Halted: its run is used up. Exhausted: the budget pays for no "
            "further run.",
            Query(f"max by (monitor) ({state})", "{{monitor}}"),
            words=STATES,
            width=24,
        ),
        rows(
            "Monitors",
            "What each monitor spent, and what its open run may still spend on alerts; under rho a run is charged as a "
            "whole when it begins, and the rest of it is in the run's own epsilon.",
            (
                Column("Monitor", label="monitor"),
                Column("Spent", by_monitor("spent"), decimals=4),
                Column("Left in the run", by_monitor("run_left"), decimals=4),
            ),
            height=7,
            sort="Spent",
            descending=True,
        ),
    )
