"""What a privacy loss means, said as the chances of somebody who guesses.

Somebody wonders whether one privacy unit (one basket, one user) was in the data. Told nothing, a coin toss is
right 50 times in 100. Told everything that was released, and knowing all the other data, this is how often the
best guesser can be right.
"""

from __future__ import annotations

from math import exp, expm1, sqrt

from stream_svt.privacy.loss import Kind


def best_guess(loss: float, kind: Kind) -> float:
    """Return the most often, as a share from 0.5 to 1, that a guess can be right after a loss of 0 or more.

    A guess between two equally likely worlds is right with probability (1 + V) / 2 at most, where V is the total
    variation distance of what is released in them. Pure epsilon: V <= tanh(epsilon / 2). zCDP: the Kullback-Leibler
    divergence is at most rho, so V <= sqrt(rho / 2) (Pinsker) and V <= sqrt(1 - exp(-rho)) (Bretagnolle and Huber).

    >>> best_guess(0, Kind.PURE), round(best_guess(1, Kind.PURE), 3), round(best_guess(0.5, Kind.ZCDP), 3)
    (0.5, 0.731, 0.75)
    """
    if loss < 0:
        raise ValueError("a loss is 0 or more")
    if kind is Kind.PURE:
        return 1 / (1 + exp(-loss))
    return (1 + min(sqrt(loss / 2), sqrt(-expm1(-loss)))) / 2
