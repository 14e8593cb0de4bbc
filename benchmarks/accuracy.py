"""Accuracy on finite sets against ranking all noisy answers, and against the papers' methods.

Normalised cumulative rank (NCR) of the 50 alerts of a run, with the data, methods and set-up of the reproduction of
Liu et al. (2024); 4,000 runs a cell, epsilon of a whole run.

* `gap`: the upper bound of the paper less the annealed default. The bound ranks all counts with exponential noise
  added, of the scale at the paper's split; it is no private method at that price.
* `deficit`: the best pure-DP sparse vector of the paper, after 5 or 20 passes, less the annealed default; negative
  where the default is better than all of them.
"""

from __future__ import annotations

from benchmarks.command import show
from benchmarks.datasets import COUNTS
from benchmarks.papers import exponential_noise
from benchmarks.papers.effort import Effort
from benchmarks.papers.table import ERROR, measured


def figures(trials: int = 4000, seed: int = 1) -> dict[str, float]:
    """Return NCR, gap and deficit of every cell, with standard errors, and the worst of each."""
    effort = Effort(scale=trials / 1500, seed=seed)
    shown: dict[str, float] = {}
    gaps, deficits = list[float](), list[float]()
    for data in COUNTS:
        for epsilon in exponential_noise.EPSILONS:
            paper = {
                f"{method.replace(', ', '_')}_{passes}": runs.ncr
                for method, passes, _, runs in exponential_noise.papers_methods(effort, data, epsilon)
            }
            ours, bound, _ = (
                runs.ncr for *_, runs in exponential_noise.ours_and_rankings(effort, data, epsilon)
            )
            best = max(paper, key={method: ncr.mean() for method, ncr in paper.items()}.__getitem__)
            label = f"{data}.epsilon_{epsilon}"
            for name, ncr in {
                "annealed": ours,
                "upper_bound": bound,
                f"best_of_papers.{best}": paper[best],
            }.items():
                row = measured("mean", ncr)
                shown |= {
                    f"{label}.{name}": float(row["mean"]),
                    f"{label}.{name}.error": float(row["mean" + ERROR]),
                }
            gaps.append(float(bound.mean() - ours.mean()))
            deficits.append(float(paper[best].mean() - ours.mean()))
            shown |= {f"{label}.gap": gaps[-1], f"{label}.deficit": deficits[-1]}
    return shown | {"worst_gap_to_upper_bound": max(gaps), "worst_deficit_to_papers": max(deficits)}


if __name__ == "__main__":
    show(figures, digits=4)
