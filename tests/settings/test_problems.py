"""Problems of a configuration: all at once, by line, with the value found and the value expected."""

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
from tests.support.problems import GOOD, TABLE, rows
from tests.support.settings import monitor
from tests.support.sources import ANSWERS, WEB


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


BEGINS = {"dataset": 3, "monitor": 7}


def changed(section: str, lines: str, field: str) -> tuple[str, int]:
    """Return the good document with lines in a monitor or dataset, as the table says, and the line of a field."""
    document, begin = GOOD.splitlines(), BEGINS[section]
    key, gone = re.split("[: ]", lines, maxsplit=1)[0], lines.endswith(" -")
    places = [n for n, old in enumerate(document) if n + 1 >= begin and old[4:].startswith(f"{key}:")]
    if gone:
        del document[places[0]]
        document[begin - 1] = f"  - {document[begin - 1][4:]}"
        return "\n".join(document), begin
    at = places[0] if places else begin
    document[at : at + len(places[:1])] = [(document[at] if places else "    ")[:4] + lines]
    name = re.split(r"[.\[]", field)[0]
    offset = max(
        (n for n, line in enumerate(lines.split("\n")) if line.strip().startswith(f"{name}:")), default=0
    )
    return "\n".join(document), at + 1 + offset


def told(text: str, line: int, field: str, message: str) -> None:
    found = problems(text)
    assert (line, field) in [(one.line, one.field) for one in found if message in one.message], found


@pytest.mark.parametrize("row", rows("monitor", "dataset"), ids=str)
def test_a_problem_of_a_monitor_or_dataset_names_its_line_field_and_remedy(row):
    section, lines, message, *more = row
    field = more[0] if more else re.split("[: ]", lines, maxsplit=1)[0]
    text, line = changed(section, lines, field)
    told(text, more[1] if more[1:] else line, f"{section}s[0].{field}".rstrip("."), message)


@pytest.mark.parametrize(("keys", "message", "key"), TABLE["generated"])
def test_a_problem_of_a_generator_names_its_line_field_and_remedy(keys, message, key):
    monitors = GOOD[GOOD.index("monitors:") :]
    text = f"application: shop\ndatasets:\n  - {{{keys}, limit: 4, unit: one basket}}\n{monitors}"
    told(text, 3, f"datasets[0].{key}".rstrip("."), message)


@pytest.mark.parametrize(("good", "bad", "line", "field", "message"), TABLE["whole"])
def test_a_problem_of_the_whole_names_its_line_field_and_remedy(good, bad, line, field, message):
    assert good in GOOD
    told(GOOD.replace(good, bad.replace("^", good), 1), line, field, message)


def test_without_series_no_silence_is_watched():
    text = WEB.replace("    series: {field: page, names: [/, /search, /product, /cart, /checkout]}\n", "")
    message = "mutes are of series, and source 'requests' has none"
    told(
        text.replace("measure: visitors", "measure: visitors, not_renewed: 3"),
        17,
        "monitors[0].not_renewed",
        message,
    )


@pytest.mark.parametrize(("good", "bad", "line", "field", "message"), TABLE["sources"])
def test_a_problem_of_a_source_names_its_line_field_and_remedy(good, bad, line, field, message):
    assert WEB.count(good) == 1
    told(WEB.replace(good, bad.replace("^", good)), line, field, message)


@pytest.mark.parametrize(("good", "bad", "line", "field", "message"), TABLE["answers"])
def test_a_problem_of_a_source_of_answers_names_its_line_field_and_remedy(good, bad, line, field, message):
    assert ANSWERS.count(good) == 1
    told(ANSWERS.replace(good, bad.replace("^", good)), line, field, message)


@pytest.mark.parametrize(("text", "line", "hint"), TABLE["syntax"])
def test_a_mistake_in_the_syntax_has_its_line_and_a_hint(text, line, hint):
    found = only(text)
    assert found[:2] == (line, "")
    assert hint in found[2]


@pytest.mark.parametrize("row", TABLE["monitor notes"], ids=str)
def test_what_is_allowed_but_may_not_be_meant_is_noted(row):
    lines, message, *more = row
    field = more[0] if more else lines.split(":")[0]
    assert message in notes(changed("monitor", lines, field)[0])[f"monitors[0].{field}"]


def test_datasets_without_a_monitor_are_noted():
    text = GOOD.replace("topic: counts", "topic: counts\n    datasets: [w*]")
    text = text.replace("monitors:", "  - {name: other, limit: 1, unit: x}\nmonitors:")
    assert notes(text)["datasets[1]"] == "no monitor runs on these datasets"


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
