"""Soak test of the alignment: every form on many random cases.

``tests/run soak alignment [--count N] [--seed S]`` plays N cases a form and ends with one line of totals; its exit
code is 1 if a case violated the proof.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.exact.contract import aligned_cases, check_aligned_noise_gives_the_same_output
from tests.exact.forms import forms

COUNT = 2_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the cases, print every form that violates the proof, and the number of cases."""
    parser = argparse.ArgumentParser(prog="tests/run soak alignment", description=__doc__)
    parser.add_argument(
        "--count", type=int, default=COUNT, help="cases a form (%(default)s; a full soak: 20000)"
    )
    parser.add_argument(
        "--seed", type=int, default=2, help="of the cases (%(default)s; the suite's own are 1)"
    )
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error("a soak plays at least one case a form")
    total = violations = 0
    for name, form in forms().items():
        if check_aligned_noise_gives_the_same_output not in form.checks:
            continue  # checked by its law, without an alignment
        findings = aligned_cases(form, options.count, options.seed)
        broken = findings.outputs_differ + findings.noise_moved_down + findings.over_charge
        if broken:
            print(
                f"{name}: of {findings.cases} cases {findings.outputs_differ} released something else, "
                f"{findings.noise_moved_down} moved noise down, {findings.over_charge} cost more than the charge"
            )
        total += findings.cases
        violations += broken
    print(f"soak.alignment count {total} violations {violations}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
