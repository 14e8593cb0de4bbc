"""The command `plan`: its output, lines to paste, and errors of use."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from stream_svt.monitor.released import EventType
from tests.support.alerts import encoded, lifecycle
from tests.support.openslo import SLO
from tests.support.sources import WEB, changed

BASE = ["plan", "--epsilon", 1, "--cutoff", 20, "--monotonic", "--queries", 20_000]
MARGINS = ["--positives", "0.1%", "--above", 1000, "--below", 800]


def words(text):
    return " ".join(text.split())


def pasted(out: str) -> dict[str, Any]:
    """Return the recommended keys of an output, as a configuration file would have them."""
    lines = out.splitlines()
    start = lines.index("Recommended keys of a new monitor:") + 1
    return yaml.safe_load("\n".join(lines[start : lines.index("", start)]))


def test_a_plan_is_a_table_with_lines_to_paste_ranges_and_warnings(stream_svt):
    ended = stream_svt(*BASE, *MARGINS, "--rate", "10/m", "--limit", 2.5)
    assert ended.code == 0
    assert ended.err == ""
    assert "No data was read" in ended.out
    assert "prior knowledge" in ended.out
    assert "2 such runs and" in words(ended.out)
    lines, settings = ended.out.splitlines(), pasted(ended.out)
    assert settings["expected_queries"] == 20_000
    assert settings["append"] in ("off", False)
    assert [line for line in lines if line.startswith(">")]
    best = next(line for line in lines if line.startswith(">"))
    assert re.search(r"0\.\d\d \(0\.\d\d-[01]\.\d\d\)", best)
    assert max(map(len, lines)) <= 130


def test_percentiles_that_are_certain_give_no_ranges(stream_svt):
    percentiles = ["--positives", 0.001, "--above", "10:100,50:1000,90:3000", "--below", "5:300,50:800"]
    ended = stream_svt(*BASE, *percentiles, "--uncertainty", 1)
    best = next(line for line in ended.out.splitlines() if line.startswith(">"))
    assert "(" not in best


LOOKED = {"deciles": [-499, -499, -498, -497, -495, -490, -480, -450, -400], "scale": 90}
ABOVE = ("--positives", "0.5%", "--above", 100)


@pytest.fixture
def looked(tmp_path):
    """Return a configuration and a released look at what one of its monitors tests."""
    (tmp_path / "web.yaml").write_text(WEB)
    data = lifecycle("released", monitor="many-users", detail=LOOKED)
    record = encoded(4, data, kind=EventType.DECILES, application="web")
    (tmp_path / "look.json").write_bytes(record)
    return "plan", "-c", tmp_path / "web.yaml", "--monitor", "many-users", "--look", tmp_path / "look.json"


def test_a_look_takes_the_place_of_distances_below(stream_svt, looked):
    ended = stream_svt(*looked, *ABOVE)
    assert (ended.code, ended.err) == (0, "")
    assert "No data was read but the look, and nothing was spent." in words(ended.out)
    near = stream_svt(*looked[:5], *ABOVE, "--below", 10).out
    assert near.splitlines()[2:] != ended.out.splitlines()[2:]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((*ABOVE, "--below", 10), "--look replaces --below, and needs -c FILE."),
        (ABOVE[:2], "--look needs --positives and --above, the median distance above the threshold."),
        ((*ABOVE[:2], "--above", "10:20,50:40"), "--look needs --positives and --above, the median"),
        ((*ABOVE, "--monitor", "many-errors"), "is no released look at what many-errors tests."),
    ],
)
def test_a_look_that_does_not_fit_is_refused(stream_svt, looked, options, says):
    ended = stream_svt(*looked, *options)
    assert ended.code == 2
    assert says in words(ended.err)


def test_with_drift_bottoms_are_retried_and_a_set_is_swept(stream_svt):
    drifting = pasted(stream_svt(*BASE, *MARGINS, "--drift", 500).out)
    assert "retry" in drifting["append"]
    finite = pasted(stream_svt(*BASE, *MARGINS, "--set").out)
    assert "annealed" in finite["correction"]
    assert "sweep" in finite["append"]


def test_a_monitor_of_a_configuration_is_planned_with_its_own_figures_and_budget(stream_svt, config):
    ended = stream_svt("plan", "-c", config, "--monitor", "hot", *MARGINS)
    assert ended.code == 0
    assert "Plan for 1,000,000 queries" in ended.out
    assert "4 such runs" in words(ended.out)
    assert [line for line in ended.out.splitlines() if line.startswith("now")]
    alone = stream_svt("plan", "-c", config, *MARGINS)
    assert alone.out == ended.out


def advised(out: str) -> list[str]:
    """Return the recommended changes to a configuration."""
    lines = out.splitlines()
    start = lines.index("Recommended changes to monitor 'hot' (write each key once only):") + 1
    return [line.strip() for line in lines[start : lines.index("", start)]]


def test_a_monitor_with_detect_is_forecast_as_it_is(stream_svt, tmp_path):
    monitor = "{name: m, source: web, detect: {above: 5, surely_from: 500, alerts: 3}}"
    source = "{name: web, topic: raw, unit: user, window: 1h, dataset: d}"
    path = tmp_path / "detect.yaml"
    path.write_text(
        f"application: web\nsources: [{source}]\ndatasets: [{{name: d, limit: 9}}]\nmonitors: [{monitor}]\n"
    )
    ended = stream_svt("plan", "-c", path, *MARGINS)
    assert (ended.code, ended.err) == (0, "")
    assert "The keys of monitor 'm' follow from detect: there is nothing to change." in ended.out
    assert "1 setting compared." in ended.out
    # 500 is 495 above 5; epsilon has three digits.
    found = re.search(
        r"A value (\d+) above the threshold is reported by its first test 95%", words(ended.out)
    )
    assert found is not None
    assert 485 < int(found[1]) <= 495
    assert "The limit pays for" not in ended.out


def test_recommended_changes_to_a_configuration_are_marked_add_or_replace(stream_svt, config):
    command = ("plan", "-c", config, "--queries", 20_000, *MARGINS)
    changes = advised(stream_svt(*command).out)
    assert changes[:2] == ["split: 10 # add", "expected_queries: 20000 # replace"]
    document = yaml.safe_load(config.read_text())
    document["monitors"][0].update(yaml.safe_load("\n".join(changes)))
    config.write_text(yaml.safe_dump(document))
    assert advised(stream_svt(*command).out) == ["none: it already has these settings"]


def test_a_monitor_that_sweeps_sets_is_planned_for_one(stream_svt, config):
    text = config.read_text().replace("expected_queries: 1000000", "correction: annealed\n    append: sweep")
    config.write_text(text)
    ended = stream_svt("plan", "-c", config, "--queries", 5000, *MARGINS)
    assert "Plan for 5,000 items of a set" in ended.out
    assert [line for line in ended.out.splitlines() if line.startswith("now")]


FIGURES = " ".join(map(str, [*BASE, *MARGINS]))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        *(
            (f"{FIGURES} {more}", reason)
            for more, reason in [
                ("--positives 2", "share"),
                ("--positives x%", "share"),
                ("--above -3", "median above 0"),
                ("--above 50:3,20:1", "rise"),
                ("--above 50:x", "percentiles such as"),
                ("--rate 5", "not a rate such as"),
                ("--rate 0/s", "not a rate such as"),
                ("--limit much", "--limit"),
                ("--epsilon 0", "--epsilon"),
                ("--granularity 0", "granularity"),
                ("--epsilon 1e-8 --cutoff 5000", "epsilon"),
                ("--set --drift 5", "do not drift"),
                ("--monitor hot", "-c FILE"),
                ("--uncertainty 0.5", "uncertainty"),
            ]
        ),
        *(
            (FIGURES.replace(left_out, ""), left_out.split()[0])
            for left_out in ("--epsilon 1", "--cutoff 20", "--queries 20000")
        ),
        ("plan -c CONFIG --epsilon 2 --positives 0.1% --above 1000 --below 800", "--epsilon"),
        ("plan -c CONFIG --monitor cold --positives 0.1% --above 1000 --below 800", "hot"),
    ],
)
def test_a_figure_that_is_wrong_missing_or_contradicts_a_configuration_is_named(
    stream_svt, config, arguments, reason
):
    ended = stream_svt(*(config if word == "CONFIG" else word for word in arguments.split()))
    assert (ended.code, reason in ended.err) == (2, True), ended.err


def test_the_plan_of_a_monitor_of_a_source_says_what_the_source_counts_and_costs(stream_svt, tmp_path):
    (tmp_path / "web.yaml").write_text(WEB)
    ended = stream_svt("plan", "-c", tmp_path / "web.yaml", "--monitor", "many-users", *MARGINS)
    assert ended.code == 0
    text = words(ended.out)
    assert "Source requests on topic web.requests - Counts: visitors, errors, slow (different units)" in text
    assert "Protects: all events of one `user` in a day in dataset web-{date}: at most epsilon 2." in text


def test_the_plan_and_the_check_of_a_limit_that_renews_say_what_it_promises(stream_svt, tmp_path):
    path = tmp_path / "web.yaml"
    renewing = (
        ("from: 2026-11-28", "every: 15d, from: 2026-11-28"),
        ("{epsilon: 2}", "{epsilon: 8, per: 30d}"),
    )
    path.write_text(changed(*renewing))
    text = "web-{date}: the events of a privacy unit in any 30 days cost at most epsilon 8. At most 3 periods"
    planned = stream_svt("plan", "-c", path, "--monitor", "many-users", *MARGINS)
    assert f"Promise - {text}" in words(planned.out)
    assert text in stream_svt("check", "-c", path, "--offline").out


def test_with_a_delta_the_plan_says_what_rho_would_buy(stream_svt, tmp_path):
    ended = stream_svt(
        *BASE[:3], "--cutoff", 200, "--monotonic", "--queries", 20_000, *MARGINS, "--delta", "1e-6"
    )
    assert ended.code == 0
    assert "Rho - Epsilon 1 and delta 1e-06, in rho, pay for 200 runs of one alert" in words(ended.out)
    assert "Write limit: {rho: 0.02435} for a new dataset" in words(ended.out)
    assert "Rho" not in stream_svt(*BASE, *MARGINS).out
    limited = stream_svt(*BASE, *MARGINS, "--limit", 2, "--delta", "1e-6")
    assert "Rho - Epsilon 2 and delta 1e-06, in rho, pay for 40 runs" in words(limited.out)
    for wrong in ("0", "1", "0.02"):
        assert stream_svt(*BASE, *MARGINS, "--delta", wrong).code == 2, wrong
    (tmp_path / "web.yaml").write_text(WEB)
    several = stream_svt(
        "plan", "-c", tmp_path / "web.yaml", "--monitor", "many-users", *MARGINS, "--delta", "1e-6"
    )
    assert several.code == 2
    assert "--delta: with rho the monitors of a dataset take turns: many-users, " in several.err


def test_monitors_of_openslo_documents_are_printed_and_nothing_else_is_planned(stream_svt, tmp_path):
    (tmp_path / "web.yaml").write_text(WEB)
    (tmp_path / "slo.yaml").write_text(SLO)
    ended = stream_svt("plan", "-c", tmp_path / "web.yaml", "--openslo", tmp_path / "slo.yaml")
    assert (ended.code, ended.err) == (0, "")
    assert yaml.safe_load(ended.out)["monitors"][0]["share"] == {"of": "errors", "above": "1.44%"}
    (tmp_path / "slo.yaml").write_text(SLO.replace("gte", "lte"))
    refused = stream_svt("plan", "-c", tmp_path / "web.yaml", "--openslo", tmp_path / "slo.yaml")
    assert (refused.code, refused.out) == (2, "")
    assert "line 43: spec.condition.op: expected 'gt' or 'gte', found 'lte'" in refused.err
    for wrong in (["--openslo", tmp_path / "slo.yaml"], ["--openslo", "s", "-c", "w", "--queries", 9]):
        assert (
            "--openslo needs -c FILE, whose sources count, and no other option"
            in stream_svt("plan", *wrong).err
        )
