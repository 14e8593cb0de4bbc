"""Sources: whether counters keep up, what became of the events, and what holds a source up.

Counters' metrics depend on raw events. The dashboard asks a Prometheus of the trusted zone, and belongs into a Grafana
of that zone.
"""

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
    datasource,
    lines,
    number,
    rows,
    variable,
)
from deploy.grafana.dashboards.queries import added, of, rate

_LATE = ((None, GOOD), (60, CAREFUL), (300, BAD))


def page() -> Page:
    """Return the dashboard."""
    page = Page(
        pages.SOURCES,
        "stream-svt / Sources",
        "How raw events are counted. It depends on them, so it is for who may read them: choose a Prometheus of the "
        "trusted zone, and show it in a Grafana of that zone only.",
        since="now-6h",
        variables=[
            datasource(),
            variable(
                "application",
                "label_values(stream_svt_counter_tick_timestamp_seconds, application)",
                "Which application is shown.",
            ),
        ],
    )
    page.row("Now", *_now())
    page.row("Events", *_events())
    return page


def _each(name: str) -> str:
    return f"max by (source) ({of(f'stream_svt_counter_{name}')})"


def _now() -> tuple[Builder[Panel], ...]:
    counted = added("stream_svt_counter_events_total", fate="counted")
    return (
        number(
            "Parked",
            "Sources that ask no tick until an operator acts.",
            Query(f"count({_each('parked')}) or vector(0)"),
            unit="none",
            width=8,
            colors=((None, GOOD), (1, BAD)),
        ),
        number(
            "Furthest behind",
            "Time since the oldest tick that is due and not asked, over all sources.",
            Query(f"max({_each('behind_seconds')})"),
            unit="s",
            width=8,
            colors=_LATE,
        ),
        number(
            "Clocks apart",
            "Greatest difference between the brokers' clock and a counter's. From a minute on, the source waits.",
            Query(f"max(abs({of('stream_svt_counter_clocks_apart_seconds')}))"),
            unit="s",
            width=8,
            decimals=1,
            colors=((None, GOOD), (10, CAREFUL), (60, BAD)),
        ),
        rows(
            "Sources",
            "Every source of the application; counts are of the time shown.",
            (
                Column("Source", label="source"),
                Column(
                    "Newest tick, ago", f"time() - {_each('tick_timestamp_seconds')}", unit="s", decimals=0
                ),
                Column("Behind", _each("behind_seconds"), unit="s", decimals=0, steps=_LATE),
                Column("Open windows", _each("open_windows")),
                Column(
                    "Pairs",
                    _each("pairs"),
                    unit="short",
                    description="Pairs of cell and unit in memory, at 8 bytes and up to 24 while they are merged.",
                ),
                Column("Counted", f"round(sum by (source) ({counted}))", unit="short"),
            ),
            height=7,
            sort="Source",
        ),
    )


def _events() -> tuple[Builder[Panel], ...]:
    return (
        lines(
            "Events by fate",
            "What became of the events that were read. Silent zeros show here first: if nothing is counted, a field "
            "is misspelt, or a time has another unit.",
            Query(
                f"sum by (source, fate) ({rate('stream_svt_counter_events_total')}) > 0",
                "{{source}}: {{fate}}",
            ),
            unit="eps",
            width=12,
        ),
        lines(
            "Behind",
            "Time since the oldest tick that is due and not asked, by source.",
            Query(_each("behind_seconds"), "{{source}}"),
            unit="s",
            width=12,
        ),
        lines(
            "Records after their look",
            "Records that a broker stamped before a look that did not cover them: clocks or replication are off by "
            "more than `settle`.",
            Query(f"sum by (source) ({rate('stream_svt_counter_late_records_total')})", "{{source}}"),
            unit="rps",
            width=24,
        ),
    )
