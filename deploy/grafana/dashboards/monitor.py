"""One monitor: what it found, how clearly, what that cost, and what it is waiting for."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboards import pages
from deploy.grafana.dashboards.parts import (
    BAD,
    CALM,
    CAREFUL,
    GOOD,
    Column,
    Marks,
    Page,
    Query,
    address,
    bar_gauge,
    color,
    datasource,
    drawn,
    heat,
    leads_to,
    lines,
    number,
    rows,
    variable,
)
from deploy.grafana.dashboards.queries import added, application, buckets, counted, loss, of, rate

_MONITOR = {"monitor": "$monitor"}
_NEWEST = of("stream_svt_last_top_timestamp_seconds", **_MONITOR)


def page() -> Page:
    """Return the dashboard."""
    page = Page(
        pages.MONITOR,
        "stream-svt / Monitor",
        "One monitor over all its datasets. Everything here is public configuration or the outcome of a test that "
        "was charged before anybody could see it.",
        since="now-24h",
        variables=[
            datasource(),
            application(),
            variable(
                "monitor",
                f"label_values({of('stream_svt_monitor_threshold')}, monitor)",
                "Which monitor is shown.",
            ),
        ],
        annotations=[
            Marks(
                "Tops",
                "orange",
                f"1000 * {_NEWEST}",
                title="Top",
                text="The newest committed top of {{monitor}} at {{instance}}",
                moments=True,
            )
        ],
    )
    page.row("Configuration and use", *_numbers())
    page.row("What it found", *_found())
    page.row("What it cost", *_cost())
    page.row("What it does", *_work())
    return page


def _newest(name: str) -> str:
    """Return a figure of the newest top, from the worker that committed it."""
    newest = f"({_NEWEST} == on (monitor) group_left () max by (monitor) ({_NEWEST}))"
    return f"max by (monitor) ({of(name, **_MONITOR)} and on (job, instance, monitor) {newest})"


def _numbers() -> tuple[Builder[Panel], ...]:
    def of_configuration(name: str) -> Query:
        return Query(f"max({of(f'stream_svt_monitor_{name}', **_MONITOR)})")

    def of_counter(name: str) -> Query:
        return Query(counted(f"stream_svt_{name}_total", **_MONITOR))

    def of_state(state: str) -> Query:
        return Query(f"sum({of('stream_svt_monitor_datasets', state=state, **_MONITOR)})")

    return (
        number(
            "Threshold",
            "The public bar that answers are tested against, in their own unit.",
            of_configuration("threshold"),
            unit="short",
            width=3,
        ),
        number(
            "Query noise scale",
            "Scale of the noise added to every answer, in its own unit: differences much smaller than this cannot be "
            "told apart.",
            of_configuration("query_noise_scale"),
            unit="short",
            width=3,
        ),
        number(
            "Cutoff",
            "Tops that one run pays for; with the last of them it halts.",
            of_configuration("cutoff"),
            unit="none",
            width=3,
        ),
        number(
            "Tops",
            "Alerts charged within the time shown.",
            of_counter("tops"),
            unit="none",
            width=3,
        ),
        number(
            "Runs",
            "Runs opened within the time shown, each with a new threshold noise.",
            of_counter("runs"),
            unit="none",
            width=3,
        ),
        number(
            "Halts",
            "Runs that used all their tops within the time shown.",
            of_counter("halts"),
            unit="none",
            width=3,
        ),
        number(
            "Halted now",
            "Datasets on which the monitor has halted and opens no further run by itself.",
            of_state("halted"),
            unit="none",
            width=3,
            colors=((None, GOOD), (1, CAREFUL)),
        ),
        number(
            "Exhausted now",
            "Datasets whose budget pays for no further run of this monitor: it tests nothing there.",
            of_state("exhausted"),
            unit="none",
            width=3,
            colors=((None, GOOD), (1, BAD)),
        ),
    )


def _found() -> tuple[Builder[Panel], ...]:
    newest = lines(
        "Newest top, with its interval",
        "The newest committed top: the true value is at least the bound, but for the declared share of cases; the "
        "estimate is what the gap says. Both are missing where nothing can be certified. The band is their distance.",
        Query(_newest("stream_svt_last_top_estimate"), "estimate"),
        Query(_newest("stream_svt_last_top_bound"), "bound"),
        Query(f"max({of('stream_svt_monitor_threshold', **_MONITOR)})", "threshold"),
        unit="short",
        floor=None,
        steps_only=True,
    )
    drawn(newest, "estimate", color=color(CALM), custom__fillBelowTo="bound", custom__fillOpacity=25)
    drawn(newest, "bound", color=color(CALM), custom__lineStyle={"fill": "dot", "dash": [2, 6]})
    drawn(
        newest,
        "threshold",
        color=color(CAREFUL),
        custom__fillOpacity=0,
        custom__lineStyle={"fill": "dash", "dash": [10, 10]},
    )
    return (
        newest,
        lines(
            "Tops, runs and halts an hour",
            "How often tops were charged, runs opened and runs used up.",
            *(
                Query(f"3600 * sum({rate(f'stream_svt_{name}_total', **_MONITOR)})", name)
                for name in ("tops", "runs", "halts")
            ),
            unit="none",
        ),
        heat(
            "Gaps of the tops",
            "By how much the tops cleared their noisy threshold, in multiples of the query noise scale, over time. "
            "Noise alone reaches beyond one scale in 37 of 100 cases, beyond three in 5.",
            Query(buckets("stream_svt_top_gap_scales", **_MONITOR), "{{le}}"),
            unit="none",
        ),
        bar_gauge(
            "Gaps within the time shown",
            "How many tops cleared their noisy threshold by up to so many query noise scales, and more than the bar "
            "above it.",
            Query(f"sum by (le) ({added('stream_svt_top_gap_scales_bucket', **_MONITOR)})", "{{le}}"),
            unit="none",
            width=6,
            colors=((None, CALM),),
            ceiling=None,
            histogram=True,
        ),
        number(
            "Newest gap",
            "By how much the newest top cleared its noisy threshold: in the unit of the answers, and in noise scales.",
            Query(_newest("stream_svt_last_top_gap"), "gap"),
            Query(
                f"{_newest('stream_svt_last_top_gap')} / on (monitor) "
                f"max by (monitor) ({of('stream_svt_monitor_query_noise_scale', **_MONITOR)})",
                "in noise scales",
            ),
            unit="short",
            width=6,
        ),
        number(
            "Gaps below one noise scale",
            "Share of the last day's tops with a gap below one noise scale. Of tops that are nothing but noise it is "
            "63 %, wherever the threshold lies: the nearer to that, the more of them are false. It says nothing of "
            "monitors that sweep.",
            Query(f"max({of('stream_svt:gaps_below_scale:ratio1d', **_MONITOR)})"),
            unit="percentunit",
            width=6,
            decimals=0,
            colors=((None, GOOD), (0.4, CAREFUL), (0.55, BAD)),
        ),
    )


def _cost() -> tuple[Builder[Panel], ...]:
    def by_dataset(name: str) -> str:
        return f"max by (dataset) {loss(f'stream_svt_monitor_{name}', **_MONITOR)}"

    return (
        lines(
            "Spent on each dataset",
            "Privacy loss spent by this monitor: epsilon or rho, as the dataset counts. The ten that spent most.",
            Query(f"topk(10, {by_dataset('spent')})", "{{dataset}}"),
            unit="none",
            steps_only=True,
            link=leads_to(
                "Open dataset", address(pages.DATASET, dataset="${__field.labels.dataset:percentencode}")
            ),
        ),
        rows(
            "On each dataset",
            "What this monitor spent, and what its open run may still spend: once that is 0 the run has halted.",
            (
                Column(
                    "Dataset",
                    label="dataset",
                    link=address(pages.DATASET, dataset="${__value.text:percentencode}"),
                ),
                Column("Spent", by_dataset("spent"), decimals=4),
                Column("Left in the run", by_dataset("run_left"), decimals=4),
            ),
            width=12,
            height=8,
            sort="Spent",
            descending=True,
        ),
    )


def _work() -> tuple[Builder[Panel], ...]:
    states = lines(
        "Datasets by state",
        "On how many datasets the monitor is in which state.",
        Query(f"sum by (state) ({of('stream_svt_monitor_datasets', **_MONITOR)})", "{{state}}"),
        unit="none",
        stacked=True,
        steps_only=True,
        width=8,
    )
    for state, name in (("running", GOOD), ("halted", CAREFUL), ("exhausted", BAD), ("idle", CALM)):
        drawn(states, state, color=color(name))
    return (
        states,
        lines(
            "Waiting and muted",
            "Queries that wait for another test, and series that are not tested for a while after a top.",
            Query(f"sum({of('stream_svt_monitor_queued_series', **_MONITOR)})", "waiting"),
            Query(f"sum({of('stream_svt_monitor_muted_series', **_MONITOR)})", "muted"),
            unit="none",
            width=8,
        ),
        lines(
            "Queries tested and skipped",
            "Queries a second that were tested, and those that were not, by the public reason.",
            Query(f"sum({rate('stream_svt_queries_total', **_MONITOR)})", "tested"),
            Query(
                f"sum by (reason) ({rate('stream_svt_queries_skipped_total', **_MONITOR)}) > 0",
                "skipped: {{reason}}",
            ),
            unit="rps",
            width=8,
        ),
    )
