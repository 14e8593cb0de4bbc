"""What one person loses over datasets that share a raw topic or a unit, compared with sums by hand."""

from __future__ import annotations

import pytest

from stream_svt.planning.persons import explain_persons
from stream_svt.settings.application import load_spec
from tests.support.sources import ANSWERS, WEB, changed

DAY_MS = 86_400_000
CARTS = """\
  - {name: carts, topic: TOPIC, unit: UNIT, window: 1h, dataset: carts}
datasets:
  - {name: carts, limit: LIMIT}
"""


def with_carts(topic: str = "web.carts", unit: str = "user", limit: str = "4") -> str:
    """Return WEB with a second source, which fills one dataset without periods."""
    carts = CARTS.replace("TOPIC", topic).replace("UNIT", unit).replace("LIMIT", limit)
    return changed(("datasets:\n", carts))


def queries(*declarations: str) -> str:
    """Return a configuration whose monitor reads a query topic for these datasets."""
    datasets = "".join(f"  - {{{one}}}\n" for one in declarations)
    monitor = (
        "topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5, correction: none"
    )
    return f"application: shop\ndatasets:\n{datasets}monitors:\n  - {{name: hot, {monitor}}}\n"


def losses(text: str) -> list[str]:
    return [line.removeprefix("  Loses    ") for line in explain_persons(load_spec(text)) if "Loses" in line]


def test_a_dataset_a_day_is_thirty_one_in_any_thirty_days() -> None:
    assert explain_persons(load_spec(WEB))[0] == "A person in web-{date}:"
    assert losses(WEB) == ["at most epsilon 62 in any 30 days: web-{date} 2 x 31 periods."]


@pytest.mark.parametrize(
    ("datasets", "says"),
    [
        (("name: a, limit: 4, unit: one user",), []),
        (
            ("name: a, limit: 4, unit: one user", "name: b, limit: {rho: 0.5}, unit: one user"),
            ["at most epsilon 4 and rho 0.5 in all: a 4, b 0.5."],
        ),
        (("name: a, limit: 4, unit: one user", "name: b, limit: 4, unit: one basket"), []),
        (
            ("names: [a, b, c], limit: 4, unit: one patient",),
            ["at most epsilon 12 in all: a 4 x 3 datasets."],
        ),
        (
            ("generate: 'w-{iso_week}', from: 2026-01-05, limit: 4, unit: one user's week",),
            ["at most epsilon 24 in any 30 days: w-{iso_week} 4 x 6 periods."],
        ),
        (
            (
                "generate: 'w-{iso_week}', from: 2026-01-05, until: 2026-01-26, limit: 4, unit: one user's week",
            ),
            ["at most epsilon 12 in any 30 days: w-{iso_week} 4 x 3 periods."],
        ),
        (
            ("generate: '{name}-{date}', names: [n, s], from: 2026-01-05, limit: 0.5, unit: one user's day",),
            ["at most epsilon 31 in any 30 days: {name}-{date} 0.5 x 31 periods x 2 names."],
        ),
    ],
)
def test_limits_add_up_over_datasets_of_one_unit(datasets: tuple[str, ...], says: list[str]) -> None:
    assert losses(queries(*datasets).replace("epsilon: 1, ", "epsilon: 0.1, ")) == says


@pytest.mark.parametrize(
    ("topic", "unit", "shared"),
    [
        ("web.requests", "account", "topic web.requests"),
        ("web.carts", "user", "unit `user`"),
        ("web.requests", "user", "topic web.requests, unit `user`"),
    ],
)
def test_sources_with_one_raw_topic_or_one_unit_are_added_up(topic: str, unit: str, shared: str) -> None:
    lines = explain_persons(load_spec(with_carts(topic, unit)))
    assert lines[0] == "A person in carts, web-{date}:"
    assert lines[1] == "  Loses    at most epsilon 66 in any 30 days: carts 4, web-{date} 2 x 31 periods."
    assert lines[2] == f"  Shares   {shared}: the same persons may be in several of them."
    assert lines[3].startswith(
        "  Readers  of one of these ledgers alone may learn as much, not its limit only"
    )


def test_sources_that_share_nothing_are_not() -> None:
    assert losses(with_carts(unit="account")) == losses(WEB)


def test_datasets_are_together_that_are_so_through_a_third_one() -> None:
    """The last shares its topic with the first, and its unit with the second."""
    places = {
        "carts": ("web.carts", "account"),
        "views": ("web.views", "user"),
        "both": ("web.carts", "user"),
    }
    sources = "".join(
        f"  - {{name: {name}, topic: {topic}, unit: {unit}, window: 1h, dataset: {name}}}\n"
        for name, (topic, unit) in places.items()
    )
    monitor = "{name: hot, source: carts, epsilon: 0.1, cutoff: 3, threshold: 5}"
    for names, says in (
        (("carts", "views"), []),
        (("carts", "views", "both"), ["at most epsilon 3 in all: carts 1, views 1, both 1."]),
    ):
        datasets = "".join(f"  - {{name: {name}, limit: 1}}\n" for name in names)
        of = "".join(line for line in sources.splitlines(keepends=True) if line.split(",")[0][11:] in names)
        text = f"application: web\nsources:\n{of}datasets:\n{datasets}monitors:\n  - {monitor}\n"
        assert losses(text) == says


def test_datasets_that_answers_name_belong_to_their_topic() -> None:
    assert losses(ANSWERS) == ["at most epsilon 80 in all: north 40 x 2 datasets."]
    counts = "  - {name: visits, topic: flink.hits, unit: ip, window: 1h, dataset: visits}\ndatasets:\n"
    visits = changed(("datasets:\n", f"{counts}  - {{name: visits, limit: 2}}\n"), text=ANSWERS)
    assert losses(visits) == ["at most epsilon 82 in all: visits 2, north 40 x 2 datasets."]


RENEWED = "generate: 'p-{date}', every: 15d, from: 2026-01-05, limit: {epsilon: 4, per: 30d}, unit: one user"


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ((), []),  # its own promise says it
        (
            ("name: b, limit: 4, unit: one user",),
            ["at most epsilon 8 in any 30 days: b 4, p-{date} 4."],
        ),
        (
            (
                "generate: 'q-{date}', every: 30d, from: 2026-01-05, limit: {epsilon: 3, per: 70d}, unit: one user",
                "generate: 'd-{date}', from: 2026-01-05, limit: 1, unit: one user",
            ),
            [
                "at most epsilon 86 in any 70 days: p-{date} 4 x 3 times 30 days, q-{date} 3, d-{date} 1 x 71 periods."
            ],
        ),
    ],
)
def test_a_limit_that_renews_counts_as_its_promise_for_the_longest_time_of_one(
    others: tuple[str, ...], says: list[str]
) -> None:
    text = queries(RENEWED, *others).replace("epsilon: 1, ", "epsilon: 0.1, ")
    assert losses(text) == says


@pytest.mark.parametrize(("pattern", "length"), [("d-{date}", 1), ("w-{iso_week}", 7)])
def test_no_thirty_days_touch_more_periods_than_are_added_up_and_some_touch_as_many(
    pattern: str, length: int
) -> None:
    text = queries(f"generate: '{pattern}', from: 2026-01-05, limit: 1, unit: one user's period")
    (said,) = losses(text)
    hour = DAY_MS // 24
    touched = {
        (begin + 30 * DAY_MS - 1) // (length * DAY_MS) - begin // (length * DAY_MS) + 1
        for begin in range(0, length * DAY_MS, hour)
    }
    assert said.startswith(f"at most epsilon {max(touched)} in any 30 days")
