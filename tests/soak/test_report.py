"""Every soak ends with its closing line, and none that was not played, or went wrong, passes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import report
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


@pytest.mark.parametrize(
    ("outcome", "first", "last"),
    [
        (Outcome(3, violations=["lost"] * 30), "lost", "count 3 violations 30"),
        (Outcome(2), "only 2 of 3", "count 2 violations 1"),
        (ExceptionGroup("both", [OSError()]), "it ended with ExceptionGroup", "count 0 violations 1"),
    ],
    ids=["violations", "an early end", "an error"],
)
def test_whatever_goes_wrong_is_shown_and_fails(capsys, outcome, first: str, last: str) -> None:
    assert soak(outcome) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= report.MOST_SHOWN + 1
    assert lines[0].startswith(first)
    assert lines[-1] == f"soak.kill {last}"


def size_of(name: str) -> str:
    """Return the option of a soak's size."""
    return "--minutes" if name == "hour" else "--faults" if name.startswith("counter") else "--count"


@pytest.mark.parametrize("name", [*ON_BROKERS, *IN_MEMORY, "simulation"])
def test_a_soak_of_nothing_is_refused(name: str, capsys) -> None:
    option = size_of(name)
    with pytest.raises(SystemExit, match="2"):
        main(name, option, "0")
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("name", ON_BROKERS)
def test_the_closing_line_of_a_soak_on_brokers(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(report, "on_brokers", lambda *_: lambda *_: Outcome(7, violations=["lost"]))
    assert main(name, size_of(name), "7") == 1
    assert last_line(capsys) == f"soak.{name} count 7 violations 1"


@pytest.mark.parametrize("name", IN_MEMORY)
def test_the_closing_line_of_one_without_brokers(name: str, monkeypatch, capfd) -> None:
    for found, code in (Outcome(2), 0), (Outcome(1, ["told apart"]), 1), (Outcome(1), 1):
        monkeypatch.setattr(IN_MEMORY[name], "play", lambda *_, found=found: found)
        assert main(name, "--count", "2") == code
        assert last_line(capfd) == f"soak.{name} count {found.count} violations {code}"


def test_a_short_fuzz_passes() -> None:
    assert main("fuzz", "--count", "60") == 0
