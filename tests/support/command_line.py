"""Runs the command line in this process, as a shell would."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stream_svt.cli import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class CommandLine:
    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: object) -> Ended:
        """Run ``stream-svt`` with these arguments; any traceback is a failure."""
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = self._capfd.readouterr()
        assert "Traceback" not in out + err, err
        assert "\x1b[" not in out + err
        return Ended(int(ended.value.code or 0), out, err)
