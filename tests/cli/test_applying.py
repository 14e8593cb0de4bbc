"""What `run --apply` logs about a configuration that it applies."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from stream_svt.cli.configuring import apply_file
from stream_svt.planning.difference import difference
from stream_svt.settings.application import load_spec
from stream_svt.worker import config_versions
from tests.support.sources import WEB


def test_one_line_has_the_number_of_changes_and_debug_has_each(tmp_path, monkeypatch, caplog):
    (tmp_path / "web.yaml").write_text(WEB)
    change = difference(None, load_spec(WEB), 4)
    fresh = SimpleNamespace(is_new=True, difference=change, bundle=None, before=None)
    proposals = iter([fresh, SimpleNamespace(is_new=False)])

    async def propose(*_):
        return next(proposals)

    async def publish(*_, **__):
        return SimpleNamespace(number=7)

    monkeypatch.setattr(config_versions, "propose", propose)
    monkeypatch.setattr(config_versions, "publish", publish)
    with caplog.at_level(logging.DEBUG, "stream_svt"):
        apply_file(tmp_path / "web.yaml")
    by_level = {
        level: [r.getMessage() for r in caplog.records if r.levelname == level] for level in ("INFO", "DEBUG")
    }
    changes = [line for line in change.lines if line[0] in "+~-"]
    assert by_level["INFO"] == [f"event=configuration_applied version=7 changes={len(changes)}"]
    assert [line for line in by_level["DEBUG"] if "configuration_change" in line] == [
        f"event=configuration_change change={line.strip()!r}" for line in change.lines
    ]
    assert 0 < len(changes) < len(change.lines)
