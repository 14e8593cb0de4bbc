"""The service: how much it does, how fast, and which worker holds which shard in what state."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboards import pages
from deploy.grafana.dashboards.parts import (
    BAD,
    CALM,
    GOOD,
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
)
from deploy.grafana.dashboards.queries import application, of, quantile, rate


def page() -> Page:
    """Return the dashboard."""
    page = Page(
        pages.SERVICE,
        "stream-svt / Service",
        "What the workers of one application do, how fast, and how the shards are spread over them. Times and "
        "counts of records are public; nothing here depends on a value but through an outcome already released.",
        since="now-3h",
        variables=[datasource(), application()],
        annotations=[_starts()],
    )
    page.row("Now", *_now())
    page.row("Failures", *_throughput())
    page.row("Latency", *_latency())
    page.row("Shards", *_shards())
    page.row("Workers", *_workers())
    return page


def _starts() -> Marks:
    return Marks(
        "Starts of workers",
        "purple",
        f"1000 * {of('stream_svt_start_timestamp_seconds')}",
        title="Worker started",
        text="{{instance}}",
        moments=True,
    )


def _now() -> tuple[Builder[Panel], ...]:
    return (
        number(
            "Workers up",
            "Workers that answer the scrape and belong to the application.",
            Query(f"count({of('stream_svt_build_info')})"),
            unit="none",
            width=8,
        ),
        number(
            "Shards without an owner",
            "Partitions of the application's topics that no worker holds open. Queries on them wait; nothing is "
            "lost while retention keeps them.",
            Query(f"clamp_min(max({of('stream_svt:shards_unowned:count')}), 0)"),
            unit="none",
            width=8,
            colors=((None, GOOD), (1, BAD)),
        ),
        number(
            "Lag",
            "Records after the committed positions, over all topics and shards.",
            Query(f"sum({of('stream_svt:lag:records')})"),
            unit="short",
            width=8,
        ),
    )


def _throughput() -> tuple[Builder[Panel], ...]:
    return (
        lines(
            "Records refused",
            "Records refused by structural reason. A value is never a reason; places and reasons are on the "
            "reject topic.",
            Query(f"sum by (reason) ({rate('stream_svt_records_rejected_total')}) > 0", "{{reason}}"),
            unit="rps",
            width=12,
            stacked=True,
        ),
        lines(
            "Failures an hour",
            "Sessions that ended in an error, at the rate of the moment. `fenced` follows a rebalance; what was "
            "`parked` waits until its cause is removed.",
            Query(f"3600 * sum by (reason) ({rate('stream_svt_failures_total')})", "{{reason}}"),
            unit="none",
            width=12,
        ),
    )


def _latency() -> tuple[Builder[Panel], ...]:
    def quantiles(histogram: str) -> tuple[Query, ...]:
        return tuple(
            Query(quantile(share, f"stream_svt_{histogram}_seconds"), name)
            for share, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
        )

    return (
        lines(
            "Alerts: read to readable",
            "From reading a query to its alert being readable. Shown after publication, so it tells of nothing "
            "unreleased; with `commit.cadence` it tells nothing of how long the work took either.",
            *quantiles("alert_latency"),
            unit="s",
            width=24,
        ),
    )


def _shards() -> tuple[Builder[Panel], ...]:
    states = lines(
        "Shards by state",
        "What the shards do. `parked` waits until its cause is removed; `not-member` belongs to another worker; "
        "`retrying` opens its state again.",
        Query(f"sum by (state) ({of('stream_svt_shards')}) > 0", "{{state}}"),
        unit="none",
        stacked=True,
        steps_only=True,
        width=8,
    )
    for state, name in (("running", GOOD), ("replaying", CALM), ("parked", BAD)):
        drawn(states, state, color=color(name))
    return (
        states,
        lines(
            "Lag by topic and shard",
            "Records after the committed position. A shard that falls behind while others do not has the busiest "
            "datasets. Topics of counts show no lag: the page on sources shows their ticks.",
            Query(f"max by (topic, shard) ({of('stream_svt_lag_records')})", "{{topic}} / {{shard}}"),
            unit="short",
            width=8,
            logarithmic=True,
        ),
        lines(
            "Charged and not yet published",
            "Events in the outbox, by shard. It empties with the next transaction; if it does not, the brokers refuse "
            "transactions.",
            Query(f"max by (shard) ({of('stream_svt_outbox_events')})", "shard {{shard}}"),
            unit="none",
            width=8,
            steps_only=True,
        ),
        lines(
            "Newest tick of counts, ago",
            "Of each topic of counts, the time since the newest tick that was tested. It grows to a window's length, "
            "or a tick's, and beyond if no counter runs or its source waits.",
            Query(f"max by (topic) ({of('stream_svt:source_waits:seconds')})", "{{topic}}"),
            unit="s",
            width=24,
        ),
    )


def _workers() -> tuple[Builder[Panel], ...]:
    return (
        rows(
            "Workers",
            "What runs where. All workers of an application show one specification, but while one is rolled out.",
            (
                Column("Worker", label="instance"),
                Column("Version", label="version"),
                Column("Specification", label="application_hash"),
                Column(
                    "Up for",
                    f"time() - {of('stream_svt_start_timestamp_seconds')} "
                    f"+ on (job, instance) group_left (version, python, application_hash) "
                    f"0 * {of('stream_svt_build_info')}",
                    unit="s",
                    decimals=0,
                ),
            ),
            height=7,
            sort="Worker",
        ),
    )
