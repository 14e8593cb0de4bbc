"""What tests/conftest.py keeps tests from doing by accident."""

from __future__ import annotations

import socket

import pytest


@pytest.mark.parametrize("use", ["connect", "connect_ex", "bind"])
def test_a_test_without_the_marker_cannot_use_the_network(use):
    with socket.socket() as stream, pytest.raises(AssertionError, match="`kafka` or `loopback`"):
        getattr(stream, use)(("127.0.0.1", 9))


def test_programs_that_are_missing_are_a_skip_here_and_a_failure_in_ci(debian_program, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program"):
        debian_program("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program"):
        debian_program("no-such-program")
    assert debian_program("sh").endswith("/sh")
