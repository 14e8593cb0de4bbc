"""Problems of a specification: all at once, by line, with the value found and the value expected."""

from __future__ import annotations

import contextlib
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stream_svt.errors import ConfigError
from stream_svt.settings.application import load_spec
from tests.support.settings import monitor

GOOD = """\
application: shop
datasets:
  - name: week-1
    limit: {epsilon: 4}
    unit: one basket
monitors:
  - name: hot-items
    topic: counts
    epsilon: 1
    cutoff: 10
    sensitivity: 1
    monotonic: true
    bounds: [0, 1000]
    threshold: 500
    correction: exposure
    expected_queries: 1000
"""


def problems(text: str):
    with pytest.raises(ConfigError) as refusal:
        load_spec(text, "shop.yaml")
    assert refusal.value.problems == sorted(refusal.value.problems)
    return refusal.value.problems


def only(text: str) -> tuple[int, str, str]:
    (problem,) = problems(text)
    return problem.line, problem.field, problem.message


def notes(text: str) -> dict[str, str]:
    return {note.field: note.message for note in load_spec(text).notes}


def test_a_good_file_has_no_problems_and_no_notes():
    for mute in ("1d", "period"):
        assert notes(GOOD.replace("cutoff: 10", f"cutoff: 10\n    mute: {mute}")) == {}


ADDED = [
    ("form: svt", "form", "unknown key"),
    ("append: rety", "append", "did you mean 'retry'?"),
    ("mute: perod", "mute", "did you mean 'period'?"),
    ("mechanism: svtt", "mechanism", "'svt'?"),
    ("cutoff: 9", "cutoff", "already stands at line 10"),
    ("beta: 1", "beta", "must be less than 1"),
    ("reserve: 3.5", "reserve", "leaves no room"),
    ("append: {retry: 3}", "append", "mapping of options"),
    ("append: 3", "append", "expected off, sweep, retry"),
    ("append: {retry: {attempts: 1}}", "append.retry.attempts", "must be at least 2"),
    ("append: {retry: {lifetime: soon}}", "append.retry.lifetime", "a number of offsets or a duration"),
    ("append: {retry: {lifetime: 0}}", "append.retry.lifetime", "at least 1 offset"),
    ("query_noise: gaussian", "query_noise", "2.3 times the charge"),
    ("mute: 10", "mute", "a duration such as 10m"),
    ("resample_every: 10", "resample_every", "unit is missing"),
    ("resample_every: 0s", "resample_every", "between 1ms"),
    ("resample_every: 999w999w999w999w999w999w", "resample_every", "100 years"),
    ("reserve: -1", "reserve", "must be at least 0"),
    ("granularity: 5000", "granularity", "the same step"),
]
"""A line added to the monitor, the field that is at fault, and a part of the message."""

CORRECTIONS = [
    ("exposur", "", "did you mean 'exposure'?"),
    ("{exposure: {false_alert: 1}}", "exposure.false_alert", "did you mean 'false_alerts'?"),
    ("annealed", "", "needs append: sweep, found off"),
    ("{annealed: {start: 1, end: 2}}\n    append: sweep", "annealed.end", "must not be above start"),
    ("{annealed: {step: 0.01}}\n    append: sweep", "annealed.step", "more than 256 passes"),
    ("{table: []}", "table", "at least 1"),
    ("{tabel: [1]}", "", "{table: [20, 10]} with one for each pass"),
    ("{annealed: 3}", "", "expected a mapping of options"),
    ("[1, 2]", "", "found a list"),
]
"""A value of `correction`, likewise; the field below it."""


VALUES = [
    ("threshold: high", "expected a number"),
    ("threshold:", "found nothing"),
    ("epsilon: -1", "must be greater than 0, found -1"),
    ("epsilon: 1e-12", "at least 1e-9"),
    ("epsilon: 1e-8", "too small"),
    ("epsilon: 10001", "must be at most 10000"),
    ("epsilon: 5", "above the limit epsilon 4"),
    ("sensitivity: 1e99", "smaller sensitivity"),
    ("cutoff: 0", "must be at least 1, found 0"),
    ("cutoff: 1.5", "expected a whole number, found 1.5"),
    ("cutoff: true", "expected a whole number, found true"),
    ("monotonic: yes", "expected true or false, found 'yes'"),
    ("bounds: [1, 1]", "low must be below high"),
    ("bounds: [0]", "expected [low, high]"),
    ("bounds: [0, 1e15]", "2^47"),
    ("threshold: 1e15", "2^47"),
    ("name: Hot_Items", "lower-case"),
    ("topic: 'my topic'", "Kafka topic name"),
]
"""Another value of a monitor's key, and a part of the message."""

DATASETS = [
    ("name: week 1", 3, "name", "a dataset name without spaces"),
    ("name: --all", 3, "name", "a dash at its beginning"),
    ("name: 2026", 3, "name", "found 2026: put it in quotes"),
    ("name: week-1\n    names: [b]", 3, "", "found name and names together"),
    ("name: week-1\n    lateness: []", 4, "lateness", "expected a duration"),
    ("name: week-1\n    lateness: 1h", 4, "lateness", "generated datasets only"),
    ("generate: 'w-{date}'\n    horizon: 1d\n    until: 2026-01-06", 4, "horizon", "horizon is its period"),
    ("generate: week", 3, "generate", "with one of {iso_week} or {date}"),
    ("generate: 'w-{iso_week}'\n    from: 2026-01-06", 4, "from", "01-06 is not a Monday"),
    ("generate: 'w-{date}'\n    from: 2026-01-06\n    until: 2026-01-06", 5, "until", "must be after from"),
    ("generate: 'w-{date}'\n    from: tomorrow", 4, "from", "a day such as 2026-01-05"),
    ("generate: 'w-{date}'", 3, "from", "is required with generate"),
    ("generate: 'w-{date}'\n    from: 0001-01-01\n    until: 9999-01-01", 5, "until", "more than 1000000"),
]
"""Text that replaces the dataset's name; then line and field at fault."""


def value_of(line: str, message: str) -> tuple[str, str, int, str, str]:
    """Return the row for a line that replaces the monitor's line with its key."""
    key = line.split(":", maxsplit=1)[0]
    at, old = next(
        (n, old) for n, old in enumerate(GOOD.splitlines(), 1) if n > 6 and old[4:].startswith(f"{key}:")
    )
    return old[4:], line, at, f"m.{key}", message


@pytest.mark.parametrize(
    ("good", "bad", "line", "field", "message"),
    [
        *(("cutoff: 10", f"^\n    {added}", 11, f"m.{field}", message) for added, field, message in ADDED),
        *(
            ("exposure\n", f"{value}\n", 15, f"m.correction.{field}".rstrip("."), message)
            for value, field, message in CORRECTIONS
        ),
        *(value_of(line, message) for line, message in VALUES),
        *(
            ("name: week-1", text, line, f"d.{field}".rstrip("."), message)
            for text, line, field, message in DATASETS
        ),
        ("unit: one", "uni: x\n    ^", 5, "d.uni", "did you mean 'unit'?"),
        ("monitors:", "monitor: 1\n^", 6, "monitor", "did you mean 'monitors'?"),
        ("cutoff: 10", "zzz: 10\n    ^", 10, "m.zzz", "expected one of name, topic"),
        ("{epsilon: 4}", "{epsilno: 4}", 4, "d.limit", "did you mean 'epsilon'?"),
        ("threshold: 500", "granularity: 1/3\n    ^", 14, "m.granularity", "12 places"),
        ("threshold: 500", "granularity: 0.0000000000001\n    ^", 14, "m.granularity", "12 places"),
        ("threshold: 500", "granularity: 0.30000000000000004\n    ^", 14, "m.granularity", "round it"),
        ("{epsilon: 4}", "0", 4, "d.limit", "must be greater than 0, found 0"),
        ("{epsilon: 4}", "1e-12", 4, "d.limit", "must be between 1e-09"),
        ("{epsilon: 4}", "1e12", 4, "d.limit", "must be between 1e-09"),
        ("{epsilon: 4}", "{epsilon: 4, rho: 1}", 4, "d.limit", "expected one measure"),
        ("cutoff: 10", "^\n    mechanism: adaptive\n    split: 2", 12, "m.split", "must be below 1"),
        ("bounds: [0, 1000]", "bounds: [0, x]", 13, "m.bounds[1]", "expected a number"),
        ("    bounds: [0, 1000]\n", "", 7, "m.bounds", "is required: [low, high] in real units"),
        ("    expected_queries: 1000\n", "", 7, "m.expected_queries", "by the correction exposure"),
        ("application: shop", "application: Shop One", 1, "application", "lower-case letters"),
        ("application: shop", "app: shop", 1, "app", "did you mean 'application'?"),
        ("unit: one basket", "unit: ''", 5, "d.unit", "not empty"),
        ("    unit: one basket\n", "", 3, "d.unit", "is required: The privacy unit in words"),
        ("topic: counts", "^\n    datasets: ['month-*']", 9, "m.d", "matches no declared dataset"),
        ("topic: counts", "^\n    datasets: week-1", 9, "m.datasets", "expected a list, found 'week-1'"),
        ("topic: counts", "^\n    datasets: []", 9, "m.datasets", "at least 1"),
        ("monitors:", "  - 3\nmonitors:", 6, "datasets[1]", "expected a mapping, found 3"),
        ("- name: week-1\n    limit", "- limit", 3, "d", "found none of them"),
        ("name: week-1", "{generate: 'w-{date}'", 3, "", "not valid YAML"),
        ("unit: one basket", "unit: !secret x", 5, "d.unit", "tags such as '!secret'"),
        ("unit: one basket", "unit: x\n    <<: 3", 6, "d", "merge keys"),
        ("unit: one basket", "unit: x\n    [1]: 3", 6, "d", "a key must be a word"),
        ("monitors:", "  - {name: week-1, limit: 9, unit: y}\n^", 6, "datasets[1]", "declared at line 3"),
        ("{epsilon: 4}", "{rho: 0.1}", 9, "m.epsilon", "above the limit rho 0.1 of dataset 'week-1'"),
    ],
)
def test_a_problem_names_its_line_field_and_remedy(good, bad, line, field, message):
    """A ^ stands for the replaced text, `m` and `d` for the first monitor and the first dataset."""
    assert good in GOOD
    found = problems(GOOD.replace(good, bad.replace("^", good), 1))
    field = re.sub(r"\bm\b", "monitors[0]", re.sub(r"\bd\b", "datasets[0]", field))
    assert (line, field) in [(one.line, one.field) for one in found if message in one.message]


def test_all_problems_come_at_once_in_order_of_lines():
    text = GOOD.replace("{epsilon: 4}", "0").replace("cutoff: 10", "cutoff: 0").replace("shop", "Shop")
    assert [problem.line for problem in problems(text)] == [1, 4, 10]


def test_the_message_shows_the_file_and_the_number_of_problems():
    message = r"shop.yaml: 1 problem\n  line 10: monitors\[0\].cutoff: must be"
    with pytest.raises(ConfigError, match=message) as refusal:
        load_spec(GOOD.replace("cutoff: 10", "cutoff: 0"), "shop.yaml")
    assert refusal.value.exit_code == 2


def test_missing_parts_are_named():
    fields = [problem.field for problem in problems("kafka: {}\n")]
    assert fields == ["application", "datasets", "monitors"]


def test_a_monitor_declared_twice_is_refused():
    tail = GOOD[GOOD.index("  - name: hot-items") :]
    assert only(GOOD + tail) == (17, "monitors[1].name", "monitor 'hot-items' is already declared at line 7")


TWO = """\
application: shop
datasets: [{name: week-1, limit: 9, unit: one visit}]
monitors:
  - {name: one, topic: counts, epsilon: 1, cutoff: 3, expected_queries: 9, bounds: [0, 9], threshold: 5,
     sensitivity: 1, monotonic: true}
  - {name: other, topic: counts, epsilon: 1, cutoff: 3, expected_queries: 9, bounds: [0, 9], threshold: 5,
     sensitivity: 1, monotonic: true}
"""


@pytest.mark.parametrize(("first", "second"), [(5, 7), (7, 5)])
@pytest.mark.parametrize(
    ("field", "declared", "value"),
    [
        ("sensitivity", ("sensitivity: 1,", "sensitivity: 95,"), "95"),
        ("sensitivity", ("sensitivity: 1,", "sensitivity: 1.0001,"), "1.0001"),
        ("monotonic", ("monotonic: true", "monotonic: false"), "false"),
        ("monotonic", (", monotonic: true", ""), "false"),
    ],
)
def test_monitors_of_one_topic_declare_the_same_answers(field, declared, value, first, second):
    """Both test each query that names neither: one of them with noise that is too small."""
    lines = TWO.splitlines()
    lines[first - 1] = lines[first - 1].replace(*declared)
    line, name, said = only("\n".join(lines))
    assert (line, name) == (second, f"monitors[{(second - 5) // 2}].{field}")
    name, at = "one" if first == 5 else "other", first if declared[1] else first - 1
    message = f"monitor '{name}' declares {value} for the same queries at line {at}: declare the same, or"
    assert said.startswith(message)
    for record in ("", ", record: {value: n}"):
        elsewhere = "\n".join(lines).replace("topic: counts", f"topic: others{record}", 1)
        assert load_spec(elsewhere).topics() == ("counts", "others")


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("", 1, "expected a mapping"),
        ("- 1", 1, "expected a mapping"),
        ("\x00", 0, "a character is not allowed"),
        ("a: &x [*x]", 1, "nested"),
        ("a: *nowhere", 1, "not valid YAML"),
        ("[" * 5000, 1, "not valid YAML"),
        ('a: 1\nb: "open\nc: 3\nd: 4\n', 2, "a quote opens here and is never closed"),
        ('a: 1\nb: "open\nc: "three"\n', 3, "quote the whole value"),
        ('a: "x" y\n', 1, "quote the whole value"),
        ("a: 1\nb: {x: 1, y: 2\nc: 3\n", 2, "a comma or the closing bracket is missing"),
        ("a: 1\nb: [1, 2}\n", 2, "a comma or the closing bracket is missing"),
        ("m:\n  - name: x\n   topic: t\n", 3, "the indentation is wrong"),
        ("b: 0\na:\n    x: 1\n  y: 2\n", 4, "the indentation is wrong"),
        ("a:\n  x: 1\n   y: 2\n", 3, "the indentation is wrong"),
        ("a:\n\tx: 1\n", 2, "spaces, not tabs"),
        ("a: 1\nb: c: d\n", 2, "a value that contains ': ' needs quotes"),
        ("a: 1\nb\nc: 2\n", 2, "a key is followed by ':' and a value"),
        ("a: 1\nb: @x\n", 2, "a value that begins with this character needs quotes"),
    ],
)
def test_a_mistake_in_the_syntax_has_its_line_and_a_hint(text, line, hint):
    found = only(text)
    assert found[:2] == (line, "")
    assert hint in found[2]


def test_a_mistake_in_the_syntax_does_not_repeat_what_may_be_a_secret():
    assert "token" not in only("url: 'https://host/' token\n")[2]


def test_aliases_that_explode_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too large" in only("\n".join(lines))[2]


@given(st.text(max_size=80))
@settings(max_examples=50)
def test_any_text_is_accepted_or_gives_the_one_named_error(text):
    with pytest.raises(ConfigError):
        load_spec(text)


@given(
    st.sampled_from(GOOD.splitlines()),
    st.sampled_from(["[]", "{}", "~", "-1", "x", "1e400", "1e99", "1e-99", "'1'", "{a: {b: c}}"]),
)
@settings(max_examples=150)
def test_any_wrong_value_in_any_place_gives_the_one_named_error(line, value):
    key = line.split(":")[0]
    with contextlib.suppress(ConfigError):
        load_spec(GOOD.replace(line, f"{key}: {value}"))


@pytest.mark.parametrize(
    ("good", "changed", "field", "advice"),
    [
        ("exposure\n", "optimal\n", "monitors[0].correction", "is for a finite set"),
        ("exposure\n", "mean\n", "monitors[0].correction", "about half of the queries"),
        ("exposure\n", "none\n", "monitors[0].expected_queries", "is not used"),
        ("cutoff: 10", "cutoff: 10\n    append: retry", "monitors[0].append", "without a series"),
        ("cutoff: 10", "cutoff: 10\n    append: sweep", "monitors[0].append", "no further pass"),
        ("threshold: 500", "threshold: 1001", "monitors[0].threshold", "above the upper bound"),
        ("threshold: 500", "threshold: 0", "monitors[0].threshold", "every value"),
        ("cutoff: 10", "cutoff: 10\n    threshold_noise: laplace", "monitors[0].threshold_noise", "no bound"),
        ("cutoff: 10", "cutoff: 10\n    granularity: 3", "monitors[0].granularity", "rounds up to 3"),
        ("topic: counts", "topic: counts\n    datasets: [w*]", "datasets[1]", "no monitor runs"),
        ("exposure\n", "{exposure: {false_alerts: 11}}\n", "monitors[0].correction", "exceeds the cutoff 10"),
        ("topic: counts", "topic: queries", "monitors[0].mute", "'week-1' has no period"),
    ],
)
def test_what_is_allowed_but_may_not_be_meant_is_noted(good, changed, field, advice):
    text = GOOD.replace(good, changed, 1)
    if field == "datasets[1]":
        text = text.replace("monitors:", "  - {name: other, limit: 1, unit: x}\nmonitors:")
    assert advice in notes(text)[field]


@pytest.mark.parametrize(
    ("unit", "lateness", "noted"),
    [
        ("one user", "0", {"datasets[0].unit", "datasets[0].lateness"}),
        ("one Patient", "1h", {"datasets[0].unit"}),
        ("one user on one day", "1h", set()),
        ("one visit", "1h", set()),
    ],
)
def test_a_person_in_many_periods_and_a_period_without_lateness_are_noted(unit, lateness, noted):
    period = f'generate: "{{date}}"\n    from: 2026-01-05\n    lateness: {lateness}'
    text = GOOD.replace("name: week-1", period).replace("one basket", unit)
    assert set(notes(text)) == noted
    assert set(notes(text.replace("from:", "until: 2026-02-05\n    from:"))) == noted


def test_monitors_that_take_turns_under_zcdp_are_noted():
    text = GOOD.replace("{epsilon: 4}", "{rho: 4}")
    second = GOOD[GOOD.index("  - name: hot-items") :].replace("hot-items", "second")
    note = next(note for note in load_spec(text + second).notes if note.field == "datasets[0].limit")
    assert note.line == 4
    assert "take turns" in note.message


def test_aliases_share_declarations():
    text = GOOD.replace("one basket", "&unit one basket").replace(
        "monitors:", "  - {name: b, limit: 4, unit: *unit}\nmonitors:"
    )
    assert load_spec(text).dataset("b").terms.unit == "one basket"


def test_a_number_that_no_float_holds_is_a_problem_of_the_monitor():
    with pytest.raises(ValidationError, match="far too large or far too small"):
        monitor(correction={"exposure": {"false_alerts": Fraction(1, 10**400)}})


def test_a_monitor_that_is_too_large_to_be_stored_is_refused_with_a_remedy():
    names = ", ".join(f"some-dataset-of-a-long-list-{k:06}" for k in range(25_000))
    line, field, message = only(GOOD.replace("topic: counts", f'topic: counts\n    datasets: ["*", {names}]'))
    assert (line, field) == (9, "monitors[0].datasets")
    assert re.search(r"takes 9\d{5} bytes, and its record has room for 899900", message)
    assert "use patterns with * and ?" in message


def test_more_datasets_than_can_be_kept_are_refused(monkeypatch):
    monkeypatch.setattr("stream_svt.settings.application.MAX_DATASETS", 2)
    text = GOOD.replace("name: week-1", "names: [week-1, week-2, week-3]")
    assert "more than 2 datasets in all" in only(text)[2]


# -- limits that cannot pay


def several(
    *epsilons: str, limit: str = "{epsilon: 4}", first: str = "", dataset: str = "name: week-1"
) -> str:
    """Return a file with a monitor for each price; ``first`` is more of the first one."""
    head, body = GOOD.replace("{epsilon: 4}", limit).replace("name: week-1", dataset).split("monitors:\n")
    monitors = [
        body.replace("hot-items", f"m{number}").replace("epsilon: 1", f"epsilon: {epsilon}")
        for number, epsilon in enumerate(epsilons)
    ]
    return f"{head}monitors:\n{monitors[0]}{first}{''.join(monitors[1:])}"


DAYS = "generate: 'day-{date}'\n    from: 2026-01-05\n    lateness: 1h"


@pytest.mark.parametrize(
    ("epsilons", "limit", "dataset", "amount", "name", "arithmetic"),
    [
        (("1", "1", "1"), "2", "name: week-1", "epsilon 2", "week-1", "m0 1 + m1 1 + m2 1 = 3"),
        (("1", "1.5"), "{epsilon: 2.4}", "name: week-1", "epsilon 2.4", "week-1", "m0 1 + m1 1.5 = 2.5"),
        (("1", "1"), "{rho: 0.8}", "name: week-1", "rho 0.8", "week-1", "m0 0.42"),
        (("1", "1"), "1", DAYS, "epsilon 1", "day-2026-01-05", "m0 1 + m1 1 = 2"),
        (("1", "1"), "1", "names: [a, b]", "epsilon 1", "a", "m0 1 + m1 1 = 2"),
    ],
)
def test_a_limit_that_cannot_pay_a_whole_run_of_each_monitor_is_refused_with_the_arithmetic(
    epsilons, limit, dataset, amount, name, arithmetic
):
    text = several(*epsilons, limit=limit, dataset=dataset)
    line, field, message = only(text)
    assert (text.splitlines()[line - 1].strip().split(":")[0], field) == ("limit", "datasets[0].limit")
    assert f"{amount} of dataset '{name}' cannot pay: {arithmetic}" in message
    assert "the last ones would be exhausted at their first query" in message


def test_a_limit_that_pays_a_whole_run_of_each_monitor_is_accepted_and_monitors_elsewhere_do_not_count():
    assert load_spec(several("1", "1", "1", limit="3"))
    assert load_spec(several("1", "1", limit="{rho: 1}"))
    both = several("1", "1", limit="1", dataset="names: [a, b]", first="    datasets: [a]\n")
    assert "datasets[0].limit" in {problem.field for problem in problems(both)}
    assert load_spec(both.replace("name: m1\n", "name: m1\n    datasets: [b]\n"))


def test_a_reserve_that_keeps_the_last_run_from_beginning_is_noted():
    found = notes(several("1", "1", limit="3", first="    reserve: 1.5\n"))
    assert (
        "m0 begins no whole run after one of each other monitor: 2 + 1.5 > epsilon 3"
        in found["monitors[0].reserve"]
    )
    assert "monitors[0].reserve" not in notes(several("1", "1", limit="3", first="    reserve: 1\n"))
