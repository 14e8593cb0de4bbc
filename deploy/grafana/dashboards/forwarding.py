"""What forwarders do: which destination takes events, how late, and what it refuses."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboards import pages
from deploy.grafana.dashboards.parts import (
    BAD,
    CAREFUL,
    GOOD,
    Page,
    Query,
    datasource,
    lines,
    number,
    variable,
)

_INFO = 'stream_svt_forward_build_info{topic="$topic"}'
_PARKED = 'increase(stream_svt_forward_events_total{outcome="parked"}[$__range])'
_LATE = ((None, GOOD), (60, CAREFUL), (300, BAD))


def page() -> Page:
    """Return the dashboard."""
    page = Page(
        pages.FORWARDING,
        "stream-svt / Forwarding",
        "How the alerts of one topic reach pagers and webhooks, where forwarders run. A destination that does not "
        "answer delays the alerts it is to get, and those of no other.",
        since="now-6h",
        variables=[
            datasource(),
            variable(
                "topic",
                "label_values(stream_svt_forward_build_info, topic)",
                "Which alert topic is forwarded.",
            ),
        ],
    )
    page.row("Now", *_now())
    page.row("Delivery", *_delivery())
    return page


def _here(vector: str) -> str:
    """Return what comes from forwarders of the topic chosen: they say which it is in one metric alone."""
    return f"({vector} and on (job, instance) {_INFO})"


def _rate(name: str) -> str:
    return _here(f"rate(stream_svt_forward_{name}[$__rate_interval])")


def _each(operation: str, name: str) -> str:
    """Return a gauge of each destination, over the forwarders that share its partitions."""
    return f"{operation} by (destination) ({_here(f'stream_svt_forward_{name}')})"


def _now() -> tuple[Builder[Panel], ...]:
    return (
        number(
            "Forwarders",
            "Forwarders of the topic that answer the scrape.",
            Query(f"count({_INFO})"),
            width=6,
            unit="none",
        ),
        number(
            "Stopped",
            "Destinations that refused an event permanently, and by their policy wait for you.",
            Query(f"sum({_each('max', 'stopped')})"),
            width=6,
            unit="none",
            colors=((None, GOOD), (1, BAD)),
        ),
        number(
            "Oldest waiting",
            "Age of the oldest event that was read and not delivered, over all destinations.",
            Query(f"max({_each('max', 'oldest_waiting_seconds')})"),
            width=6,
            unit="s",
            colors=_LATE,
        ),
        number(
            "Parked",
            "Events refused permanently within the time shown: they wait on the topic for parked events.",
            Query(f"round(sum({_here(_PARKED)}))"),
            width=6,
            unit="none",
            colors=((None, GOOD), (1, CAREFUL)),
        ),
    )


def _delivery() -> tuple[Builder[Panel], ...]:
    return (
        lines(
            "Requests by result",
            "What destinations answered, each second.",
            Query(
                f"sum by (destination, result) ({_rate('attempts_total')}) > 0", "{{destination}}: {{result}}"
            ),
            unit="reqps",
            width=12,
        ),
        lines(
            "Charged to delivered: 95 %",
            "Time from an event being charged to its delivery, by two clocks, of which one in twenty took longer.",
            Query(
                f"histogram_quantile(0.95, sum by (le, destination) ({_rate('delay_seconds_bucket')}))",
                "{{destination}}",
            ),
            unit="s",
            width=12,
        ),
        lines(
            "Lag",
            "Records of the topic after the committed position; what is waiting is among them.",
            Query(_each("sum", "lag_records"), "{{destination}}"),
            unit="short",
            width=24,
        ),
    )
