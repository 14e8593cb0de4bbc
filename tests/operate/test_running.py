"""What `check` and `status` say about workers whose pages do not answer."""

from __future__ import annotations

from stream_svt.application.config import parse_config
from stream_svt.operate.running import without_page
from tests.support.sources import WEB


def test_workers_without_a_page_are_named_with_the_ports_remedy() -> None:
    config = parse_config(WEB)
    said = without_page(config, 2, [{"fault": None}])
    assert said.startswith(f"1 of 2 workers answered no request for a status page at port {config.web.port}")
    assert said.endswith("If the worker has another STREAM_SVT_WEB_PORT, set it here, too")
    assert without_page(config, 1, [{"fault": None}]) == ""
