"""The YAML file that the demo's service runs on, printed by ``--show-config`` to be taken over."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

from stream_svt.demo.queries import LAST_ITEM, WeekClock

APPEND = "hot-items-append"
ADAPTIVE = "hot-items-adaptive"
MONITORS = (APPEND, ADAPTIVE)
THRESHOLD = 400
"""From how many sales since its week began an item counts as hot."""
_LIMIT, _SHORT_LIMIT, _SHORT_WEEK = "4", "1.6", 2
"""Epsilon for the baskets of a week. One week has less left, and the demo shows what happens when it is gone."""

_COMMON = """\
    topic: $application.counts
    datasets: ["retail-week-*"]
    epsilon: 0.8 # of one whole run: its threshold and all its alerts
    cutoff: 6 # alerts of a run; then it halts and, with budget left, begins anew
    sensitivity: 1
    monotonic: true
    bounds: [0, $most]
    threshold: $threshold
    mute: period # an item that was reported stays silent for the rest of its week
    beta: 0.1 # an alert's bound holds with 90 %
"""
_TEMPLATE = Template(
    """\
# Differentially private monitoring of a shop's best sellers.
#
# Queries: every $every lines of the till's journal (the line number is the public clock), for each item of
# the public price list, how many baskets of this week held it. Neighbours: one line's basket emptied, the
# lines stay. So a basket changes the answers of one week only, each by at most 1, all in the same
# direction. The topics $application.alerts, .state, .rejects, .control and .config belong to this application
# alone; so do the budgets.
application: $application
kafka: {bootstrap_servers: "$bootstrap"}
topics: {partitions: $partitions}
sealing: {key_file: "$key_file"} # 32 random bytes as hex: openssl rand -hex 32
web: {port: $port}
commit: {interval: 500ms}
datasets:
$datasets
monitors:
  # Each checkpoint is one finite set. Its items are tested at the highest bar as they come; when the set is
  # closed, the bottoms are tested again and again (APPEND) while the bar falls from 12 to 4 noise scales.
  - name: $append
COMMON
    mechanism: svt
    correction: {annealed: {start: 12, end: 4}}
    append: {sweep: {tops_per_set: 6, max_open_sets: 2, max_set_size: $items}}
  # The same counts as an open stream. An item far above the threshold costs half of what one just above
  # costs.
  - name: $adaptive
COMMON
    mechanism: adaptive
    correction: {exposure: {false_alerts: 500}} # if all queries sat on the threshold; most are far below
    expected_queries: $expected # of one week: what its budget must last for
""".replace("COMMON\n", _COMMON)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where one demo runs; ``application`` begins the names of its topics, its group and its transactional ids."""

    application: str = "retail-demo"
    bootstrap: str = "127.0.0.1:9092"
    key_file: Path = Path("sealing.key")
    port: int = 6066
    partitions: int = 4

    def topic(self, name: str) -> str:
        """Return the full name of a topic: counts, alerts, state, rejects, control or config."""
        return f"{self.application}.{name}"


def limits(clock: WeekClock) -> dict[str, str]:
    """Return how much epsilon both monitors together may spend, by dataset."""
    return {
        name: _SHORT_LIMIT if number == _SHORT_WEEK else _LIMIT
        for number, name in enumerate(clock.weeks(), start=1)
    }


def yaml(setting: Setting, clock: WeekClock) -> str:
    """Return the service's configuration."""
    datasets = []
    for name, limit in limits(clock).items():
        note = " # a study was given the rest of this week's" if limit == _SHORT_LIMIT else ""
        unit = "    unit: one basket (its line stays)"
        datasets += [f"  - name: {name}", unit, f"    limit: {{epsilon: {limit}}}{note}"]
    return _TEMPLATE.substitute(
        asdict(setting),
        datasets="\n".join(datasets),
        append=APPEND,
        adaptive=ADAPTIVE,
        threshold=THRESHOLD,
        every=clock.every,
        items=LAST_ITEM,
        most=clock.week_lines,
        expected=LAST_ITEM * -(-clock.week_lines // clock.every),
    )
