"""The example about web requests: its twenty lines declare what its README says, and its made-up requests count."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stream_svt.settings.application import load_spec
from tests.support.events import reader_of, records_of, rows_of

FOLDER = Path(__file__).parents[1] / "examples" / "web_requests"
[SOURCE] = load_spec((FOLDER / "monitors.yaml").read_text()).sources


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_requests", FOLDER / "fake_requests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_twenty_lines_declare_a_users_month_that_every_count_has_at_most_once() -> None:
    text = (FOLDER / "monitors.yaml").read_text()
    spec = load_spec(text)
    assert len(text.splitlines()) <= 20
    promise = "all events of one `user` in 15 days (any 30 days: at most epsilon 4)"
    assert [one.each.unit for one in spec.generators] == [promise]
    assert {(one.sensitivity, one.monotonic) for one in spec.monitors} == {(1, True)}
    assert {one.measure for one in spec.monitors} == {one.name for one in SOURCE.measures}


def test_without_a_broker_the_program_says_how_to_start_one() -> None:
    ended = subprocess.run(
        [sys.executable, FOLDER / "fake_requests.py"],
        check=False,
        env={**os.environ, "KAFKA": "127.0.0.1:1"},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "no Kafka at 127.0.0.1:1: start one (python -m stream_svt.kafka.embedded), or set KAFKA\n"
    )


def test_a_made_up_request_is_its_users_visit_to_its_page_and_an_error_if_it_failed(
    program: ModuleType,
) -> None:
    assert set(SOURCE.series_names) == set(program.USERS)
    page = SOURCE.series_names.index("/cart")
    made = json.loads(program.request("/cart", 7))
    rows = rows_of(
        reader_of(SOURCE).read(
            records_of([json.dumps(made | {"status": code}).encode() for code in (200, 500)])
        )
    )
    assert [(row.unit, row.ms, row.measures) for row in rows] == [
        ("user-7", made["ts"], (True, False)),
        ("user-7", made["ts"], (True, True)),
    ]
    assert {row.series for row in rows} == {reader_of(SOURCE).code(SOURCE.series_names[page])}
