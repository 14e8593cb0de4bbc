"""The file with what is left of each budget: it reads as it was written, and what is no such file is refused."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from msgspec.structs import replace

from stream_svt.errors import ConfigError
from stream_svt.privacy.loss import Kind
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import NOTHING, Balance, Carried, parse
from stream_svt.settings.monitors import Declared

EPSILON, RHO = Kind.PURE.units, Kind.ZCDP.units
CARRIED = Carried(
    application="shop",
    cluster="c1",
    alerts="shop.alerts",
    successor="next",
    complete=True,
    topics={"counts": Declared(Fraction(3, 2), monotonic=True)},
    watermarks={},
    datasets={
        "a": Balance("one basket", Kind.PURE, 4 * EPSILON, 6 * EPSILON, 17 * EPSILON // 10),
        "b": Balance("one basket", Kind.ZCDP, RHO, RHO, RHO),
    },
)
LINES = list(CARRIED.lines())


def test_a_file_reads_as_it_was_written() -> None:
    assert parse(LINES) == CARRIED
    assert parse(["", *LINES, " "]).digest == CARRIED.digest
    assert replace(CARRIED, successor="other").digest != CARRIED.digest


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "it is empty"),
        (["{}"], "line 1: .*'stream-svt carry-over' of this version writes it"),
        (["not json", *LINES[1:]], "line 1"),
        (LINES[:-1], "it has 1 datasets and says 2: lines are missing"),
        ([*LINES, LINES[-1]], "it has 3 datasets and says 2"),
        ([*LINES[:2], LINES[1]], "a dataset has two lines"),
        ([LINES[0].replace('"carry_over":1', '"carry_over":2'), *LINES[1:]], "line 1: .*carry_over"),
        ([LINES[0].replace("3/2", "-1"), *LINES[1:]], "a sensitivity is greater than 0"),
        ([LINES[0], "{}", LINES[2]], "line 2: .*name"),
        ([LINES[0], LINES[1].replace("epsilon", "delta"), LINES[2]], "line 2: .*'delta'"),
        ([LINES[0], LINES[1].replace('"1.7"', '"6.1"'), LINES[2]], "line 2: expected 0 <= spent <= limit"),
        ([LINES[0], LINES[1].replace('"1.7"', '"-1"'), LINES[2]], "line 2: expected 0 <= spent <= limit"),
        (
            [LINES[0], LINES[1].replace('"1.7"', '"1.70000000001"'), LINES[2]],
            "more digits than a ledger keeps",
        ),
        ([LINES[0], LINES[1].replace('"1.7"', '"lots"'), LINES[2]], "line 2: not a number"),
    ],
)
def test_what_is_no_such_file_is_refused(lines: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(lines)


MONITOR = (
    "{{name: m, topic: {topic}, epsilon: 1, cutoff: 1, sensitivity: {sensitivity}, monotonic: {monotonic}, "
    "bounds: [0, 9], threshold: 5, expected_queries: 9}}"
)


def load(
    datasets: str = "{name: a, limit: 4, unit: one basket}",
    *,
    carried: Carried = CARRIED,
    application: str = "next",
    topic: str = "counts",
    sensitivity: str = "3/2",
    monotonic: str = "true",
    file: str = "left.jsonl",
) -> ApplicationSpec:
    monitor = MONITOR.format(topic=topic, sensitivity=sensitivity, monotonic=monotonic)
    text = (
        f"application: {application}\ncarried_over: {file}\ndatasets: [{datasets}]\nmonitors: [{monitor}]\n"
    )

    def read(name: str) -> list[str]:
        if name != "left.jsonl":
            raise FileNotFoundError(2, "No such file or directory")
        return list(carried.lines())

    return load_spec(text, read_names=read)


DAYS = "{generate: 'd-{date}', from: 2026-01-05, limit: 1, unit: x}"


@pytest.mark.parametrize("limit", [4, 6])
def test_a_dataset_begins_with_what_was_spent_and_with_the_limit_as_it_was_raised(limit: int) -> None:
    dataset = load(f"{{name: a, limit: {limit}, unit: one basket}}").dataset("a")
    assert (dataset.limit, dataset.spent_before) == (6 * EPSILON, 17 * EPSILON // 10)
    assert load().hash() != dataclasses.replace(load(), carried=NOTHING).hash()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"application": "third"}, "is for application 'next': another one would spend it twice"),
        ({"datasets": "{name: a, limit: 5, unit: one basket}"}, "had the limit epsilon 6"),
        ({"datasets": "{name: a, limit: {rho: 4}, unit: one basket}"}, "had the limit epsilon 6"),
        ({"datasets": "{name: a, limit: 4, unit: one user}"}, "had the privacy unit 'one basket'"),
        ({"datasets": "{name: a, limit: 4, unit: one basket, new: true}"}, "is not new"),
        ({"sensitivity": "1"}, "declared with sensitivity 1.5"),
    ],
)
def test_what_contradicts_the_file_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(**options)  # type: ignore[arg-type]


def test_a_generator_does_not_begin_a_dataset_anew_that_was_spent_on() -> None:
    balances = {f"d-2026-01-0{k}": Balance("x", Kind.PURE, EPSILON, EPSILON, k - 6) for k in (6, 7)}
    carried = replace(CARRIED, datasets=balances)
    with pytest.raises(ConfigError, match=r"generate: 'shop' spent on dataset 'd-2026-01-07'"):
        load(DAYS, carried=carried)
    assert load(DAYS, carried=replace(carried, watermarks={"d-{date}": 1_767_830_400_000})).generators
    assert load(DAYS.replace("'d-", "'e-"), carried=carried).generators


GAPPY = replace(CARRIED, complete=False)
"""Alerts are missing."""


def test_behind_missing_alerts_a_topic_without_declaration_is_refused() -> None:
    assert load(topic="other").topics() == ("other",)
    with pytest.raises(ConfigError, match=r"'other' is not in the file .* the largest sensitivity"):
        load(carried=GAPPY, topic="other")
    assert load(carried=GAPPY).topics() == ("counts",)


@pytest.mark.parametrize(
    ("unknown", "name"), [("{name: c, limit: 4, unit: x}", "c"), (DAYS, "d-2026-01-05")], ids=["name", "days"]
)
def test_behind_missing_alerts_what_is_unknown_must_be_declared_new(unknown: str, name: str) -> None:
    assert load(unknown).dataset(name).spent_before == 0
    with pytest.raises(ConfigError, match=rf"'{name}' is not in the file .* Write new: true"):
        load(unknown, carried=GAPPY)
    assert load(unknown.replace("x}", "x, new: true}"), carried=GAPPY).dataset(name).spent_before == 0
    # A generator goes on behind the last period that had begun.
    assert load(DAYS, carried=replace(GAPPY, watermarks={"d-{date}": 1_767_830_400_000})).generators


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"carried_over: cannot read 'lost\.jsonl': No such file"):
        load(file="lost.jsonl")
