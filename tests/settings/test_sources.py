"""What a source declares, what follows from it, and what of it is stored and never changes."""

from __future__ import annotations

from fractions import Fraction

import jsonschema
import pytest

from stream_svt.application.config import parse_config
from stream_svt.errors import ConfigError
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.document import read
from stream_svt.settings.fields import Retry, Sweep
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.sections import json_schema
from stream_svt.settings.sources import EventCondition, ListedMeasure, SourceSpec, WindowList, log_topic
from tests.support.sources import ANSWERS, WEB, changed

WARDS = """\
application: hospital
sources:
  - name: visits
    topic: visits
    unit: payload.patient
    dataset: {pattern: "ward-{name}-{iso_week}", field: payload.ward, file: wards.txt}
    window: 1d
    measures: [{name: visits, of: {events: {at_most: 5}}}, {name: patients}]
datasets:
  - {generate: "ward-{name}-{iso_week}", file: wards.txt, from: 2026-01-05, lateness: 2h, limit: 1}
monitors:
  - {name: many, source: visits, measure: patients, epsilon: 1, cutoff: 5, threshold: 500}
"""


def wards(*changes: tuple[str, str], names: str = "north south") -> ApplicationSpec:
    return load_spec(changed(*changes, text=WARDS), read_names=lambda _: names.split())


def source(*changes: tuple[str, str]) -> SourceSpec:
    [found] = load_spec(changed(*changes)).sources
    return found


def test_the_first_configuration_loads_and_its_keys_follow() -> None:
    spec = load_spec(WEB)
    users, errors = spec.monitors
    assert (users.topic, users.measure, errors.measure) == ("web.requests.counts", "visitors", "errors")
    for monitor in spec.monitors:
        assert (monitor.sensitivity, monitor.monotonic, monitor.granularity) == (1, True, 1)
        assert (monitor.bounds, monitor.record, monitor.datasets) == ((0, 2**40), None, ("web-????-??-??",))
        assert monitor.expected_queries == 8 * 24
        assert monitor.covers("web-2026-11-28")
        assert not monitor.covers("web-api-2026-11-28")
    [generator] = spec.generators
    assert generator.each.unit == "all events of one `user` in a day"
    assert spec.topics() == ("web.requests.counts",)
    assert spec.topics_with_broker_time() == ()
    assert [note.field for note in spec.notes] == ["sources[0].measures[2]"]
    assert log_topic("web") == "web.sources"


def test_the_configuration_of_a_user_is_valid_by_the_schema_too() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for text in (WEB, WARDS, ANSWERS):
        assert [error.message for error in validator.iter_errors(read(text, "web.yaml").data)] == []
    for wrong in (("measure: visitors", "measure: visitors, sensitivity: 1"), ("unit: user", "units: user")):
        assert list(validator.iter_errors(read(changed(wrong), "web.yaml").data))


def test_what_is_declared_about_answers_holds_for_the_monitors_of_their_source() -> None:
    spec = load_spec(
        changed(("sensitivity: 2", "sensitivity: 0.5, monotonic: true, granularity: 0.25"), text=ANSWERS)
    )
    [monitor], [found] = spec.monitors, spec.sources
    assert (monitor.topic, monitor.measure, monitor.record) == ("shop.hits.counts", None, None)
    assert (monitor.sensitivity, monitor.monotonic, monitor.granularity) == (
        Fraction(1, 2),
        True,
        Fraction(1, 4),
    )
    assert (monitor.bounds, monitor.datasets) == ((0, 1_000_000), ("north", "south"))
    assert spec.datasets[0].terms.unit == "one user"
    assert found.digest == load_spec(ANSWERS).sources[0].digest, (
        "as for query topics, a declaration may change"
    )
    for path in (
        ("value: payload.hits", "value: hits"),
        ("series: page", "series: p"),
        ("field: store", "field: s"),
    ):
        assert load_spec(changed(path, text=ANSWERS)).sources[0].digest != found.digest


def test_a_constant_dataset_of_answers_may_have_periods() -> None:
    generated = ("names: [north, south]", 'generate: "shop-{date}", from: 2026-11-28')
    text = changed(
        ("{field: store}", '"shop-{date}"'), generated, (", datasets: [north, south]", ""), text=ANSWERS
    )
    spec = load_spec(text)
    assert spec.monitors[0].datasets == ("shop-????-??-??",)
    assert spec.generators[0].each.unit == "one user"
    assert spec.sources[0].dataset_at(1_767_571_200_000, "") == "shop-2026-01-05"


def test_the_sensitivity_is_that_of_the_largest_measure_for_all_monitors() -> None:
    spec = wards()
    assert spec.monitors[0].sensitivity == spec.sources[0].sensitivity == 5
    assert [one.at_most for one in spec.sources[0].measures] == [5, 1]


@pytest.mark.parametrize(
    ("pattern", "name", "unit", "dataset"),
    [
        ("web-{date}", "", "all events of one `user` in a day", "web-2026-01-05"),
        ("web-{iso_week}", "", "all events of one `user` in a week", "web-2026-w02"),
        ("web", "", "all events of one `user`", "web"),
    ],
)
def test_units_and_names_of_datasets_follow_from_the_pattern(
    pattern: str, name: str, unit: str, dataset: str
) -> None:
    declared = f'generate: "{pattern}"' if "{" in pattern else f"name: {pattern}"
    when = ", from: 2026-01-05, lateness: 1h" if "{" in pattern else ""
    spec = load_spec(
        changed(
            ('dataset: "web-{date}"', f'dataset: "{pattern}"'),
            ('generate: "web-{date}", from: 2026-11-28, lateness: 1h', f"{declared}{when}"),
        )
    )
    terms = [*(one.each for one in spec.generators), *(one.terms for one in spec.datasets)]
    assert [one.unit for one in terms] == [unit]
    [found] = spec.sources
    assert found.dataset_at(1_767_571_200_000, name) == dataset
    assert spec.find(dataset) is not None
    assert found.covers(dataset)


def test_names_of_datasets_come_from_a_file_and_are_applied_with_it() -> None:
    [found] = wards().sources
    assert found.dataset_names == ("north", "south")
    assert found.dataset_at(1_767_571_200_000, "north") == "ward-north-2026-w02"
    assert found.dataset_field == "payload.ward"
    assert found.window_list() == WindowList(
        ("north", "south"), (ListedMeasure("visits", 5), ListedMeasure("patients", 1)), ("",)
    )
    assert wards().monitors[0].expected_queries == 7
    with pytest.raises(ConfigError, match="'north' occurs twice"):
        wards(names="north north")


def test_a_bundle_has_the_files_of_series_and_datasets(tmp_path) -> None:
    (tmp_path / "pages.txt").write_text("# pages\n/\n/cart\n")
    text = changed(("names: [/, /search, /product, /cart, /checkout]", "file: pages.txt"))
    config = parse_config(text, directory=tmp_path)
    assert config.spec.sources[0].series_names == ("/", "/cart")
    assert config.bundle.files == {"pages.txt": "/\n/cart\n"}
    assert config.spec.sources[0].digest == source().digest, "names are not in it, wherever they stand"
    assert (
        load_spec(config.bundle.text, read_names=lambda name: config.bundle.files[name].split())
        == config.spec
    )


def test_values_are_compared_as_texts_and_numbers_are_not_texts() -> None:
    found = source(
        ("unit: user", "unit: user\n    where: {code: [1, true, '2', 1e2], ok: true, n: {below: 1.5}}")
    )
    assert found.conditions == (
        EventCondition("code", frozenset({"1", "true", "2", "100"})),
        EventCondition("ok", frozenset({"true"})),
        EventCondition("n", None, None, Fraction(3, 2)),
    )
    visitors, errors, slow = found.measures
    assert visitors.conditions == ()
    assert errors.conditions == (EventCondition("status", frozenset({"500", "502", "503", "504"})),)
    assert slow.conditions == (EventCondition("ms", None, Fraction(2000), None),)
    assert found.paths == ("user", "page", "ts", "code", "ok", "n", "status", "ms")


@pytest.mark.parametrize(("every", "written", "lateness"), [("10s", "", 60_000), ("1h", "", 3_600_000)])
@pytest.mark.parametrize("unused", ["", "\n    settle: 1s"])
def test_lateness_is_rounded_up_to_a_tick(every: str, written: str, lateness: int, unused: str) -> None:
    found = source(
        ("window: 1h", f"window: 1h\n    every: {every}{written}{unused}"), ("lateness: 1h", "lateness: 2h")
    )
    assert found.lateness == lateness


def test_written_lateness_is_rounded_up_too_and_may_be_none() -> None:
    assert source(("window: 1h", "window: 1h\n    lateness: 61s")).lateness == 70_000
    assert source(("window: 1h", "window: 1h\n    lateness: 0s")).lateness == 0


def test_measures_are_one_of_units_by_default_and_a_monitor_needs_not_name_it() -> None:
    text = WEB[: WEB.index("    measures:")] + WEB[WEB.index("datasets:") :]
    text = text.replace(", measure: visitors", "").replace(", measure: errors", "")
    spec = load_spec(text)
    assert [(one.name, one.at_most, one.conditions) for one in spec.sources[0].measures] == [("units", 1, ())]
    assert {one.measure for one in spec.monitors} == {"units"}


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (3, 4), (5, 8), (64, 64), (65, 128)])
def test_expected_queries_are_those_of_a_day_with_the_names_rounded_up_to_a_power_of_two(
    count: int, expected: int
) -> None:
    names = ", ".join(f"p{number}" for number in range(count))
    change = ("[/, /search, /product, /cart, /checkout]", f"[{names}]")
    assert {one.expected_queries for one in load_spec(changed(change)).monitors} == {24 * expected}


def test_a_window_that_is_asked_at_each_tick_has_a_query_for_each() -> None:
    change = ("window: 1h", "window: 1h\n    ask: tick\n    every: 1m")
    assert load_spec(changed(change)).monitors[0].expected_queries == 8 * 24 * 61


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("expected_queries: 1000", 1000),
        ("correction: none", None),
        ("correction: 5", None),
        ("correction: {table: [5]}", None),
        ("correction: optimal", 8 * 24),
        ("correction: {exposure: {false_alerts: 1}}", 8 * 24),
    ],
)
def test_expected_queries_may_be_written_and_follow_only_where_they_are_used(
    more: str, expected: int | None
) -> None:
    spec = load_spec(changed(("measure: visitors", f"measure: visitors, {more}")))
    assert spec.monitors[0].expected_queries == expected


@pytest.mark.parametrize(
    ("pattern", "dataset", "fills"),
    [
        ("web-2026-12-*", "web-{date}", True),
        ("web-20*", "web-{date}", True),
        ("*-31", "web-{date}", True),
        ("web-2026-w*", "web-{date}", False),
        ("web-2026-w5?", "web-{iso_week}", True),
        ("web-api-*", "web-{date}", False),
        ("web-?????-??", "web-{date}", False),
        ("web-[29]*", "web-{date}", True),
        ("*web**-*", "web-{date}", True),
        ("web-2026-12-31x", "web-{date}", False),
        ("web-2026-12-31", "web-{date}", True),
    ],
)
def test_a_pattern_is_compared_with_the_datasets_of_every_period(
    pattern: str, dataset: str, *, fills: bool
) -> None:
    found = SourceSpec.model_validate(
        {"name": "s", "topic": "raw", "unit": "user", "window": "1h", "dataset": dataset}
    )
    assert found.may_fill(pattern) is fills


@pytest.mark.parametrize("pattern", ["web-2026-12-*", "web-2031-??-??", "web-20*", "web-2026-12-01"])
def test_a_monitor_of_a_query_topic_matches_no_dataset_of_a_source_in_any_period(pattern: str) -> None:
    monitor = (
        f"  - {{name: m, topic: t, epsilon: 1, cutoff: 1, threshold: 5, sensitivity: 7, bounds: [0, 9], "
        f"expected_queries: 9, datasets: ['{pattern}']}}\n"
    )
    other = "  - {name: web-2026-12-01x, limit: 1, unit: x}\n"
    with pytest.raises(ConfigError, match=r"also matches .*, which source 'requests' fills"):
        load_spec(changed(("monitors:\n", f"{other}monitors:\n{monitor}")))


def test_ahead_is_not_shorter_than_settle_without_advice() -> None:
    change = ("window: 1h", "window: 1h\n    settle: 30s\n    ahead: 20s")
    found = [note.message for note in load_spec(changed(change)).notes if note.field.endswith("ahead")]
    assert [text.partition(":")[0] for text in found] == ["is shorter than settle (30s)"]
    assert not any(note.field.endswith("ahead") for note in load_spec(WEB).notes)


def test_a_window_has_at_most_2_to_the_20_cells() -> None:
    def counted(names: int) -> str:
        listed = "\n".join(f"p{number}" for number in range(names))
        text = changed(("names: [/, /search, /product, /cart, /checkout]", "file: pages"))
        return str(load_spec(text, read_names=lambda _: listed.split("\n")).sources[0].window_list().cells)

    most = 2**20 // 3
    assert counted(most) == str(3 * most)
    with pytest.raises(ConfigError, match="1 datasets, 3 measures and 349526 series are 1048578 counts"):
        counted(most + 1)


def test_the_order_of_cells_is_dataset_measure_series() -> None:
    found = WindowList(("a", "b"), (ListedMeasure("m", 1), ListedMeasure("n", 2)), ("x", "y", "z"))
    assert found.cells == 12
    assert found.digest == WindowList(("c",), (), ("x", "y", "z")).digest
    assert found.digest != WindowList(("a", "b"), found.measures, ("x", "z", "y")).digest


def test_digests_are_permanent() -> None:
    """Records of counts have them: another digest would make every count on a topic unreadable."""
    assert source().digest == "30ff48ff8ce3062c"
    assert source().window_list().digest == "d6e363eb"


@pytest.mark.parametrize(
    "change",
    [
        ("window: 1h", "window: 1h\n    settle: 20s"),
        ("[/, /search", "[/help, /search"),
        ("measures:", "measures:\n      - {name: more}"),
    ],
)
def test_what_may_change_is_not_in_the_digest(change: tuple[str, str]) -> None:
    assert source(change).digest == source().digest


def test_the_sensitivity_is_in_the_digest_without_measures() -> None:
    assert (
        source(("{name: visitors}", "{name: visitors, of: {events: {at_most: 2}}}")).digest != source().digest
    )
    assert (
        source(("{name: visitors}", "{name: visitors, of: {events: {at_most: 1}}}")).digest == source().digest
    )


def test_a_monitor_of_a_source_is_stored_whole_and_its_source_decides_outcomes() -> None:
    monitor, other = load_spec(WEB).monitors
    assert MonitorSpec.from_json(monitor.to_json()) == monitor
    assert monitor.hash() != monitor.model_copy(update={"measure": "errors"}).hash()
    assert monitor.hash() != other.hash()


def test_workers_with_other_sources_have_another_hash() -> None:
    assert load_spec(WEB).hash() != load_spec(changed(("window: 1h", "window: 30m"))).hash()
    assert load_spec(WEB).hash() == load_spec(changed(("window: 1h", "window: 1h\n    settle: 20s"))).hash()


def test_retries_by_time_and_sweeps_of_closed_windows_are_accepted() -> None:
    retry = load_spec(changed(("measure: visitors", "measure: visitors, append: {retry: {lifetime: 6h}}")))
    assert isinstance(retry.monitors[0].append, Retry)
    sweep = ("measure: visitors", "measure: visitors, append: sweep, correction: annealed")
    assert isinstance(load_spec(changed(sweep)).monitors[0].append, Sweep)
    with pytest.raises(ConfigError, match="source 'requests' asks at each tick: use retry or off"):
        load_spec(changed(sweep, ("window: 1h", "window: 1h\n    ask: tick")))


def test_queries_and_sources_may_stand_side_by_side_on_datasets_of_their_own() -> None:
    monitor = "{name: m, topic: t, datasets: [x], epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,"
    spec = load_spec(
        changed(
            (
                "monitors:\n",
                f"  - {{name: x, limit: 1, unit: y}}\nmonitors:\n  - {monitor} expected_queries: 9}}\n",
            ),
        )
    )
    assert spec.topics() == ("t", "web.requests.counts")
    assert spec.produced_topics() == ("t",)
    assert spec.dataset("x").terms.unit == "y"


def test_avro_needs_a_registry() -> None:
    avro = ("topic: web.requests", "topic: web.requests\n    format: avro")
    with pytest.raises(
        ConfigError, match=r"line 6: sources\[0\].format: avro needs the address of a Schema Registry"
    ):
        parse_config(changed(avro))
    assert parse_config(changed(avro) + "schema_registry: {url: 'http://127.0.0.1:8081'}\n").spec.sources


def test_problems_of_sources_and_of_the_rest_come_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_spec(
            changed(("window: 1h", "window: 7h"), ("limit: {epsilon: 2}", "limit: 0"), ("threshold: 50,", ""))
        )
    assert [one.line for one in refusal.value.problems] == [9, 16, 19]


def test_a_measure_that_no_monitor_tests_is_noted() -> None:
    second = "{name: second, topic: web.requests, unit: user, window: 1h, dataset: x}"
    more = f"  - {second}\ndatasets:\n  - {{name: x, limit: 1}}"
    notes = {note.field: note.message for note in load_spec(changed(("datasets:", more))).notes}
    assert "no monitor tests measure 'units' of source 'second'" in notes["sources[1]"]


def test_declared_datasets_that_are_never_counted_are_noted() -> None:
    names = ("field: payload.ward, file: wards.txt", "field: payload.ward, names: [north]")
    notes = {note.field: note.message for note in wards(names).notes}
    assert notes["sources[0].dataset"].startswith("counts nothing for ward-south-1970-w02")
    assert "sources[0].dataset" not in {note.field for note in wards().notes}


def test_a_sweep_of_fewer_series_than_a_window_has_is_noted() -> None:
    def notes(most: int) -> set[str]:
        sweep = f"append: {{sweep: {{max_set_size: {most}}}}}, correction: annealed"
        spec = load_spec(changed(("measure: visitors", f"measure: visitors, {sweep}")))
        return {note.field for note in spec.notes}

    assert notes(4) - notes(5) == {"monitors[0].append"}
