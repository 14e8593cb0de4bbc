"""The command `look`, as far as it needs no broker."""

from __future__ import annotations

import io
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from stream_svt.application.facts import ApplicationFacts
from stream_svt.cli import confirming
from stream_svt.operate import looking
from tests.support.sources import WEB


@pytest.fixture
def look(stream_svt, tmp_path, monkeypatch):
    """Run `look`, which finds deciles without a broker."""

    async def found(*_arguments):
        return SimpleNamespace(id="one")

    async def shown(*_arguments):
        return ApplicationFacts(accounts={})

    monkeypatch.setattr(looking, "read_deciles", found)
    monkeypatch.setattr(confirming, "read_facts", shown)
    (tmp_path / "web.yaml").write_text(WEB)
    monitor = ("--monitor", "many-users", "--dataset", "web-2026-11-29")
    return partial(stream_svt, "look", "-c", tmp_path / "web.yaml", *monitor, "--epsilon", "0.1")


def test_a_look_is_taken_after_a_yes_only(look, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    ended = look()
    assert ended.code == 1
    assert "One look at what many-users tests costs epsilon 0.1.\nLook? [y/N]:" in ended.err
    assert ended.err.endswith("not confirmed; nothing was changed\n")


def test_an_interrupted_look_says_that_the_charge_may_still_come(look, monkeypatch):
    async def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(looking, "release", interrupted)
    ended = look("--yes")
    assert (ended.code, ended.out) == (130, "")
    assert 'a worker may still charge for the look, with "request": "one"' in ended.err
