"""The papers' figures and tables, measured anew: CSV and SVG files, and the page on their claims.

Everything follows from the seed. The tables are measured first and written as CSV; figures, tables and verdicts of the
page are made from the files, so that `--no-measuring` redraws them in seconds. With other trials or another seed than
the usual ones, everything goes to a new temporary folder, unless `--docs` names one.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.papers import (
    exponential_noise,
    exponential_noise_report,
    free_gap,
    free_gap_report,
    unbounded_quantile,
    unbounded_quantile_report,
)
from benchmarks.papers.effort import Effort, progress
from benchmarks.papers.report import listed, surprises
from benchmarks.papers.table import Table, read
from docs.generator.markdown import filled

DOCS = Path(__file__).parents[1] / "docs"
MEASUREMENTS: Mapping[str, Callable[[Effort], Table]] = (
    exponential_noise.MEASUREMENTS | free_gap.MEASUREMENTS | unbounded_quantile.MEASUREMENTS
)


REPORTS = {
    "liu": exponential_noise_report.REPORT,
    "ding": free_gap_report.REPORT,
    "durfee": unbounded_quantile_report.REPORT,
}


def page(text: str, tables: Mapping[str, Table]) -> str:
    """Return the page with all tables and claims in their places."""
    claims = {f"{name}-claims": listed(report.claims, tables) for name, report in REPORTS.items()}
    return filled(text, claims)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, draw and write."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run reproduction", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--trials", type=float, default=1.0, help="multiple of the usual numbers of trials")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--docs", type=Path, help="holds reproduction.md and the folder reproduction; by default docs/"
    )
    parser.add_argument(
        "--no-measuring", action="store_true", help="make figures and page from the CSV files"
    )
    options = parser.parse_args(arguments)
    usual = (options.trials, options.seed) == (parser.get_default("trials"), parser.get_default("seed"))
    if not usual and (options.docs or DOCS).resolve() == DOCS:
        if options.no_measuring or options.docs:
            parser.error("docs/ holds the usual trials of the usual seed: name another folder with --docs")
        options.docs = Path(tempfile.mkdtemp(prefix="stream-svt-reproduction-"))
        shutil.copy(DOCS / "reproduction.md", options.docs)
        progress(f"other trials or seed than the usual ones: writing to {options.docs}")
    docs = options.docs or DOCS
    directory = docs / "reproduction"
    directory.mkdir(exist_ok=True)
    if not options.no_measuring:
        effort = Effort(scale=options.trials, seed=options.seed)
        for measure in MEASUREMENTS.values():
            measure(effort).write(directory)
    tables = {name: read(directory, name) for name in MEASUREMENTS}
    progress("figures and page")
    for report in REPORTS.values():
        report.draw(tables, directory)
    place = docs / "reproduction.md"
    place.write_text(page(place.read_text(encoding="utf-8"), tables), encoding="utf-8")
    claims = [claim for report in REPORTS.values() for claim in report.claims]
    changed = [statement for report in REPORTS.values() for statement in surprises(report.claims, tables)]
    for statement in changed:
        progress(f"the page was written for another verdict: {statement}")
    print("reproduction.claims", len(claims))
    print("reproduction.verdicts_changed", len(changed))


if __name__ == "__main__":
    main()
