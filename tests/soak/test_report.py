"""Every soak ends with its closing line, and none that was not played, or went wrong, passes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import fuzz, report, taint
from tests.soak.__main__ import IN_MEMORY, ON_BROKERS, main
from tests.soak.stage import Outcome


@pytest.fixture(autouse=True)
def as_loud_as_before() -> Iterator[None]:
    """A soak silences the Kafka client in its process, which here is that of all tests."""
    client = logging.getLogger("aiokafka")
    before = client.level
    yield
    client.setLevel(before)


def soak(outcome: Outcome | Exception, *arguments: str) -> int:
    async def play(brokers: None, name: str, directory: Path, count: int, seed: int) -> Outcome:
        assert directory.name.startswith("stream-svt-soak-")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    played = report.on_brokers("kill", contextlib.nullcontext, play)
    return report.run("kill", "", played, short=3, full=9, arguments=arguments)


def last_line(captured: pytest.CaptureFixture[str]) -> str:
    return captured.readouterr().out.splitlines()[-1]


def test_a_soak_without_a_violation_passes(capsys) -> None:
    assert soak(Outcome(3, notes=["calm"])) == 0
    printed = capsys.readouterr()
    assert printed.out == "soak.kill count 3 violations 0\n"
    assert "calm" in printed.err
    assert soak(Outcome(7), "--count", "7") == 0


def test_a_violation_is_shown_and_fails(capsys) -> None:
    assert soak(Outcome(3, violations=["lost"] * 30)) == 1
    *shown, last = capsys.readouterr().out.splitlines()
    assert shown == ["lost"] * report.MOST_SHOWN
    assert last == "soak.kill count 3 violations 30"


@pytest.mark.parametrize("error", [ValueError("odd"), TimeoutError(), ExceptionGroup("both", [OSError()])])
def test_an_error_within_a_soak_is_a_violation(capsys, error) -> None:
    assert soak(error) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(f"it ended with {type(error).__name__}")
    assert printed.out.endswith("soak.kill count 0 violations 1\n")
    assert "Traceback" in printed.err


def test_a_soak_that_came_to_an_early_end_fails(capsys) -> None:
    assert soak(Outcome(2)) == 1
    assert last_line(capsys) == "soak.kill count 2 violations 1"


@pytest.mark.parametrize("name", [*ON_BROKERS, *IN_MEMORY, "simulation"])
def test_a_soak_of_nothing_is_refused(name: str, capsys) -> None:
    option = "--minutes" if name == "hour" else "--count"
    with pytest.raises(SystemExit, match="2"):
        main(name, option, "0")
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("name", ON_BROKERS)
def test_the_closing_line_of_a_soak_on_brokers(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(report, "on_brokers", lambda *_: lambda *_: Outcome(7, violations=["lost"]))
    assert main(name, "--minutes" if name == "hour" else "--count", "7") == 1
    assert last_line(capsys) == f"soak.{name} count 7 violations 1"


def test_the_closing_lines_of_those_without_brokers(monkeypatch, capfd) -> None:
    assert main("fuzz", "--count", "60") == 0
    assert last_line(capfd).endswith("violations 0")
    monkeypatch.setattr(fuzz.released, "identity_of", int)  # which knows nothing of alerts
    assert main("fuzz", "--count", "200") == 1
    assert last_line(capfd).startswith("soak.fuzz count 2")
    for found, code in (Outcome(2), 0), (Outcome(1, ["told apart"]), 1), (Outcome(1), 1):
        monkeypatch.setattr(taint, "play", lambda *_, found=found: found)
        assert main("taint", "--count", "2") == code
        assert last_line(capfd) == f"soak.taint count {found.count} violations {code}"
