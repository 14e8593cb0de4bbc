"""The command `look`, as far as it needs no broker."""

from __future__ import annotations

import io
import sys

from stream_svt.application.facts import ApplicationFacts
from stream_svt.cli import confirming
from stream_svt.operate import looking
from tests.support.sources import WEB


def test_a_look_is_taken_after_a_yes_only(stream_svt, tmp_path, monkeypatch):
    async def found(*_arguments):
        return None

    async def shown(*_arguments):
        return ApplicationFacts(accounts={})

    monkeypatch.setattr(looking, "read_deciles", found)
    monkeypatch.setattr(confirming, "read_facts", shown)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    (tmp_path / "web.yaml").write_text(WEB)
    monitor = ("--monitor", "many-users", "--dataset", "web-2026-11-29")
    ended = stream_svt("look", "-c", tmp_path / "web.yaml", *monitor, "--epsilon", "0.1")
    assert ended.code == 1
    assert "One look at what many-users tests costs epsilon 0.1.\nLook? [y/N]:" in ended.err
    assert ended.err.endswith("not confirmed; nothing was changed\n")
