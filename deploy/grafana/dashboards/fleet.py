"""All datasets of an application at a glance: whose budget ends first, what has stopped, what lags behind."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboards import pages
from deploy.grafana.dashboards.parts import (
    BAD,
    CAREFUL,
    GOOD,
    Column,
    Page,
    Query,
    address,
    datasource,
    leads_to,
    number,
    rows,
)
from deploy.grafana.dashboards.queries import (
    BURN,
    LEFT,
    added,
    application,
    burn,
    by_dataset,
    counted,
    ends_in,
    firing,
    firing_marks,
    left,
    of,
)

_DATASET = address(pages.DATASET, dataset="${__value.text:percentencode}")
_SERVICE = leads_to("Open service", address(pages.SERVICE))


def page() -> Page:
    """Return the dashboard."""
    page = Page(
        pages.FLEET,
        "stream-svt / Fleet",
        "All datasets of one application: the rest of their budgets, its pace, stopped monitors, and lag. "
        "Budgets do not refill. Like the other dashboards, it needs the rules of deploy/prometheus/rules.",
        since="now-24h",
        variables=[datasource(), application()],
        annotations=[firing_marks()],
    )
    page.row("Alerts of Prometheus", _firing())
    page.row("Now", *_now())
    page.row("Budgets", *_budgets())
    page.row("Monitors", *_monitors())
    return page


def _now() -> tuple[Builder[Panel], ...]:
    def in_state(state: str) -> Query:
        return Query(f"sum({of('stream_svt_monitor_datasets', state=state)})")

    return (
        number(
            "Lowest budget left",
            "What the dataset that is nearest its limit has left.",
            Query(f"min({left()})"),
            unit="percentunit",
            width=5,
            decimals=1,
            colors=LEFT,
        ),
        number(
            "Exhausted",
            "Pairs of dataset and monitor whose budget pays for no further run: nothing is tested there.",
            in_state("exhausted"),
            unit="none",
            width=5,
            colors=((None, GOOD), (1, BAD)),
        ),
        number(
            "Stopped",
            "Pairs of dataset and monitor that open no run until an operator resamples: `on_halt: stop`, or closed.",
            in_state("stopped"),
            unit="none",
            width=5,
            colors=((None, GOOD), (1, BAD)),
        ),
        number(
            "Alerts",
            "Alerts charged within the time shown.",
            Query(counted("stream_svt_alerts_total")),
            unit="none",
            width=4,
        ),
        number(
            "Lag",
            "Records after the committed positions, over all topics and shards.",
            Query(f"sum({of('stream_svt_lag_records')})"),
            unit="short",
            width=5,
            link=_SERVICE,
        ),
    )


def _budgets() -> tuple[Builder[Panel], ...]:
    return (
        rows(
            "Datasets by budget left",
            "Every dataset, the one nearest its limit first. Epsilon and rho are different measures and cannot be "
            "compared in absolute figures; shares can.",
            (
                Column("Dataset", label="dataset", link=_DATASET),
                Column("Left", left(), unit="percentunit", decimals=1, steps=LEFT, bar=True),
                Column("Spent", by_dataset("spent"), decimals=3),
                Column("Limit", by_dataset("limit"), decimals=3),
                Column(
                    "Burn rate",
                    burn("slow"),
                    decimals=2,
                    steps=BURN,
                    description="1 spends exactly the limit in exactly the horizon; empty without a horizon.",
                ),
                Column(
                    "Spent in, at the earliest",
                    ends_in("early"),
                    unit="s",
                    decimals=1,
                    description="If charges continue at the present pace; empty if there were too few.",
                ),
            ),
            sort="Left",
            height=10,
        ),
    )


def _monitors() -> tuple[Builder[Panel], ...]:
    def by_monitor(expr: str) -> str:
        return f"sum by (monitor) ({expr})"

    return (
        rows(
            "Monitors",
            "Every monitor over all its datasets; counts are of the time shown.",
            (
                Column("Monitor", label="monitor"),
                Column("Tops", f"round({by_monitor(added('stream_svt_alerts_total'))})"),
                Column("Runs", f"round({by_monitor(added('stream_svt_runs_total'))})"),
                Column(
                    "Stopped on",
                    by_monitor(of("stream_svt_monitor_datasets", state="stopped")),
                    steps=((None, "text"), (1, CAREFUL)),
                    description="Datasets on which it opens no run until an operator resamples.",
                ),
                Column(
                    "Limited on",
                    by_monitor(of("stream_svt_monitor_datasets", state="limited")),
                    steps=((None, "text"), (1, CAREFUL)),
                    description="Datasets on which `max_runs` runs have begun: queries are skipped until later.",
                ),
                Column(
                    "Exhausted on",
                    by_monitor(of("stream_svt_monitor_datasets", state="exhausted")),
                    steps=((None, "text"), (1, BAD)),
                    description="Datasets whose budget pays for no further run of it.",
                ),
                Column("Muted", by_monitor(of("stream_svt_monitor_muted_series")), unit="short"),
                Column("Queries", by_monitor(added("stream_svt_queries_total")), unit="short"),
            ),
            height=8,
            sort="Monitor",
        ),
    )


def _firing() -> Builder[Panel]:
    labels = (
        "alertname",
        "severity",
        "dataset",
        "monitor",
        "shard",
        "cause",
        "topic",
        "source",
        "reason",
        "instance",
    )
    since = f"{of('ALERTS_FOR_STATE')} and ignoring (alertstate) {firing()}"
    return rows(
        "Firing now",
        "What the rules say somebody should know; the runbook has a section on each. The monitors' own alerts are "
        "on the alert topic, and are not these.",
        (
            Column("Alert", label="alertname"),
            Column("Severity", label="severity"),
            Column("Dataset", label="dataset", link=_DATASET),
            Column("Monitor", label="monitor"),
            *(Column(label.capitalize(), label=label) for label in labels[4:]),
            Column(
                "For",
                f"time() - max by ({', '.join(labels)}) ({since})",
                unit="s",
                decimals=0,
            ),
        ),
        height=8,
        sort="Severity",
    )
