"""The picture and the sentences of performance.md about what `benchmarks/run costs` measured: docs/data/costs.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.papers.drawing import BLACK, BLUE, figure
from docs.generator.markdown import day_of, number

DATA: Final = Path(__file__).parent.parent / "data" / "costs.json"
_PANELS: Final = {
    "datasets": "datasets",
    "monitors": "monitors",
    "waiting": "waiting queries",
    "batch": "queries a commit",
    "message": "bytes a message",
    "tops": "share of tops",
}


@cache
def measured() -> dict[str, Any]:
    """Return what was measured, with when and where."""
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return found


def short(number: float) -> str:
    """Return a number in a few characters, such as 300, 20k or 1M; a share below 1 in per cent."""
    if number < 1:
        return f"{100 * number:g}%"
    size = 10**6 if number >= 10**6 else 1000 if number >= 1000 else 1
    return f"{number / size:g}{ {10**6: 'M', 1000: 'k', 1: ''}[size] }"


def draw(path: Path) -> None:
    """Draw microseconds a query against each size, on the same logarithmic scale."""
    found = measured()
    with figure(path, (3, 2), (7.2, 7.0), sharey=True) as (drawn, panels):
        for axes, (axis, title) in zip(panels, _PANELS.items(), strict=True):
            sizes, costs = zip(*found["curves"][axis], strict=True)
            axes.set(title=title, xscale="log", yscale="log", ylim=(0.1, 1000))
            axes.plot(sizes, [cost / 1000 for cost in costs], "o-", color=BLUE)
            for size, cost in zip(sizes, costs, strict=True):
                if size == found["base"][axis]:
                    axes.plot(size, cost / 1000, "o", color=BLACK, fillstyle="none", markersize=9)
            shown = [size for size in sizes if f"{size:e}"[0] == "1" or len(sizes) < 7]
            axes.set_xticks(shown, [short(size) for size in shown])
            axes.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1000"])
            axes.minorticks_off()
        drawn.supylabel("processor time a query (µs)", fontsize=9)


_WORDS: Final = """
- **Datasets**: {most_datasets_vs_base} times the cost with 1,000,000 datasets against 1,000.
- **A monitor** adds {monitor_ns} ns a query; one that tests each query five times, {retries_ns} ns.
- **A commit** takes {commit_us} µs; **an alert** {alert_us} µs more.
- **A byte** of a JSON message takes {byte_ns} ns.
- **A query** takes {json_ns} ns in JSON, {fields_ns} in JSON with the section `record`, {avro_ns} in Avro, and
  {columnar_ns} as a row of a columnar record.
"""


def _sentences() -> str:
    """Return the slopes of the curves in words."""
    found = measured()
    words = _WORDS.format(**{name: number(value) for name, value in found["figures"].items()})
    return f"{words}\nMeasured on {day_of(found['measured'])} on {found['machine']}."


BLOCKS: Final = {"costs": _sentences}
