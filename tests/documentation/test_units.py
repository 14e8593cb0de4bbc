"""The page about units: each sensitivity and each `monotonic` in its table, found again by taking units out of data."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.documentation.pages import ROOT, tokens

PAGE = ROOT / "docs" / "units-and-sensitivity.md"
WINDOWS = 3
Unit = tuple[tuple[int, ...], ...]
"""What one privacy unit adds: in each window, the amounts of its visits."""


def cut(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def difference(data: list[Unit], window: int) -> int:
    return present(data, window) - present(data, window - 1)


def present(data: list[Unit], window: int) -> int:
    return sum(bool(unit[window]) for unit in data)


ANSWERS: dict[str, Callable[[list[Unit], int], int | Fraction]] = {
    "the number of different users": present,
    "the number of visits, at most 5 counted for each user": lambda data, window: sum(
        len(unit[window][:5]) for unit in data
    ),
    "the sum of amounts, each user's sum cut to 0..100": lambda data, window: sum(
        cut(sum(unit[window]), 0, 100) for unit in data
    ),
    "the sum of amounts, each user's sum cut to -100..100": lambda data, window: sum(
        cut(sum(unit[window]), -100, 100) for unit in data
    ),
    "today's users less yesterday's": difference,
    "the number of visits": lambda data, window: sum(
        len(unit[window][:1]) for unit in data
    ),  # a unit is one visit
}
SUMS_ABOVE: dict[str, Callable[[int], Fraction]] = {
    "With x cut to 0..10 and t = 4 the sensitivity is 6": lambda x: Fraction(cut(x, 0, 10) - 4),
    "Ask whether 20 errors - *n* is above 0, an integer: sensitivity 19": lambda x: Fraction(
        20 * (x > 0) - 1
    ),
}


def rows() -> dict[str, tuple[str, str]]:
    """Return sensitivity and `monotonic` of each answer in the page's second table."""
    cells = [token.content for token in tokens(PAGE.read_text(encoding="utf-8")) if token.type == "inline"]
    begin = cells.index("an answer is")
    found: dict[str, tuple[str, str]] = {}
    for first in range(begin + 4, len(cells), 4):
        if not cells[first + 1].startswith("one "):
            break
        found[cells[first]] = cells[first + 2], cells[first + 3]
    return found


def changes(answer: Callable[[list[Unit], int], int | Fraction]) -> list[list[int | Fraction]]:
    """Return how all answers move when one unit joins, for random data."""
    draw = random.Random(7)
    moved = []
    for _ in range(400):
        data: list[Unit] = [
            tuple(tuple(draw.choices(range(-120, 160), k=draw.randrange(8))) for _ in range(WINDOWS))
            for _ in range(draw.randrange(1, 6))
        ]
        moved.append([answer(data, window) - answer(data[1:], window) for window in range(1, WINDOWS)])
    return moved


def test_the_table_names_every_answer_that_is_computed_here_and_no_other_with_a_number() -> None:
    assert {name for name, (sensitivity, _) in rows().items() if sensitivity.isdigit()} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_page_gives_how_far_one_unit_moves_an_answer_at_most_and_whether_in_one_direction(
    name: str,
) -> None:
    moved = changes(ANSWERS[name])
    farthest = max(abs(change) for each in moved for change in each)
    one_way = all(max(each) <= 0 or min(each) >= 0 for each in moved)
    assert rows()[name] == (str(farthest), str(one_way).lower())


@pytest.mark.parametrize("sentence", SUMS_ABOVE)
def test_a_sum_above_a_level_moves_by_the_sensitivity_that_the_page_gives_it(sentence: str) -> None:
    farthest = max(abs(SUMS_ABOVE[sentence](x)) for x in range(-20, 40))

    assert farthest == Fraction(sentence.rpartition(" ")[2])
    assert sentence in " ".join(PAGE.read_text(encoding="utf-8").split()).replace("the sum", "The sum")
