"""The command `explain`: where an event comes from, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from stream_svt.monitor.released import EventType
from tests.support.alerts import account_of, alert, encoded, lifecycle
from tests.support.sources import changed

LOCKED = changed(("sources:", "sealing: {keys: [no-such.key]}\nsources:"))
"""Its sealing key is not there."""


@pytest.fixture
def web(tmp_path: Path) -> Path:
    path = tmp_path / "web.yaml"
    path.write_text(LOCKED)
    return path


def test_an_event_in_a_file_or_on_standard_input_needs_neither_broker_nor_key(
    stream_svt, web, tmp_path, monkeypatch
):
    (tmp_path / "event.json").write_bytes(encoded(4, alert(dataset="web-2026-11-28"), application="web"))
    ended = stream_svt("explain", "-c", web, tmp_path / "event.json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Alert web-2026-11-28-4 of 2026-01-05 10:00:00 UTC:\n  Found ")
    content = io.TextIOWrapper(io.BytesIO((tmp_path / "event.json").read_bytes()))
    monkeypatch.setattr("sys.stdin", content)
    assert stream_svt("explain", "-c", web, "-").out == ended.out


def test_the_end_of_a_watch_is_explained_too(stream_svt, web, tmp_path):
    detail = {"series": "/cart", "alert": "web/a/m/1/4", "windows": 3}
    says = {
        EventType.NOT_RENEWED: "3 windows were tested, none",
        EventType.UNTESTED: "were not all tested (paused)",
    }
    for kind, words in says.items():
        record = encoded(4, lifecycle("paused", detail=detail), kind=kind, application="web")
        (tmp_path / "event.json").write_bytes(record)
        told = stream_svt("explain", "-c", web, tmp_path / "event.json").out
        word = kind.removeprefix("io.stream-svt.").removesuffix(".v1")
        assert told.startswith(
            f"{word} of monitor hot, series /cart in dataset shop, 2026-01-05 10:00:00 UTC:\n"
        )
        assert "After    alert web/a/m/1/4.\n" in told
        assert words in told


def test_the_end_of_an_incident_is_explained_and_refused_without_its_details(stream_svt, web, tmp_path):
    noise = {"family": "exponential", "scale": 3.0}
    top = {"series": "/cart", "query_id": "q", "branch": "top", "attempt": 1, "gap": 2.0, "number": 1}
    top |= {"spec_hash": "", "position": {"topic": "t", "partition": 0, "offset": 1, "row": 0}, "beta": 0.05}
    detail = top | {"below": 400.0, "correction": 6.0, "threshold_noise": noise, "query_noise": noise}
    for one, code, says in ((detail, 0, "was found below 400."), (top, 1, "is no event of the alert topic:")):
        data = lifecycle("below", monitor="many-users.end", account=account_of(), detail=one)
        (tmp_path / "event.json").write_bytes(encoded(4, data, kind=EventType.ALERT_ENDED, application="web"))
        ended = stream_svt("explain", "-c", web, tmp_path / "event.json")
        assert ended.code == code
        assert says in ended.out + ended.err


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"{}", "event.json is no event of the alert topic: Object missing required field"),
        (encoded(1, alert()), "no alert of application 'web', which"),
        (
            encoded(1, lifecycle("first"), kind=EventType.RUN_STARTED, application="web"),
            "it is of type io.stream-svt.run.started.v1 of application 'web'",
        ),
    ],
)
def test_what_is_no_alert_of_the_application_is_refused(stream_svt, web, tmp_path, record, says):
    (tmp_path / "event.json").write_bytes(record)
    ended = stream_svt("explain", "-c", web, tmp_path / "event.json")
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err


def test_a_word_that_is_neither_a_file_nor_an_id_is_wrong_usage(stream_svt, web):
    ended = stream_svt("explain", "-c", web, "shop/a/b/1/2")
    assert ended.code == 2
    assert "expected a file, -, or an id such as web/DATASET/MONITOR/RUN/NUMBER" in ended.err
