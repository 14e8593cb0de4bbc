"""Every block of code, and every command in a sentence, of every page is true: what can be run is run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.documentation.pages import PAGES, Block, Span, blocks, code_of, spans
from tests.documentation.play import page_needs_broker, play, play_page, uncovered
from tests.documentation.sentences import problem
from tests.documentation.stage import Stage

README = Path("README.md")
ON_YOUR_KAFKA = "Run it on your Kafka"
LOOK_AFTER = "Look after it"


def _params() -> list[object]:
    """Pages with something to play; those that need a broker are marked."""
    found: list[object] = []
    for page in PAGES:
        shown = blocks(page)
        if shown:
            marks = [pytest.mark.kafka] if page_needs_broker(page) else [pytest.mark.loopback]
            found.append(pytest.param(page, marks=marks, id=str(page)))
    return found


@pytest.fixture
def stage(request, tmp_path, debian_program):
    kafka = request.node.get_closest_marker("kafka")
    servers = request.getfixturevalue("broker").bootstrap_servers if kafka else ""
    made = Stage(tmp_path, servers, need=debian_program)
    yield made
    made.close()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_code_in_sentences_speaks_of_what_exists(page):
    assert [f"{span}: {said}" for span in spans(page) if (said := problem(span))] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_block_has_a_rule(page):
    assert [problem for block in blocks(page) for problem in uncovered(block)] == []


@pytest.mark.parametrize("page", _params())
def test_the_blocks_of_a_page_do_what_the_page_says(page, stage):
    problems = play_page(stage, page, but=ON_YOUR_KAFKA)
    assert problems == [], "\n\n".join(problems)


@pytest.mark.kafka
def test_the_readme_leads_from_nothing_to_alerts_on_a_real_broker(stage):
    section = [code for code in code_of(README) if code.section == ON_YOUR_KAFKA]
    shown = [code for code in section if isinstance(code, Block)]
    said = [code.text for code in section if isinstance(code, Span)]
    [install, configuration, commands, follow] = shown
    assert play(stage, install) == []
    assert play(stage, configuration) == []
    config = stage.application()
    (config.parent / "state.key").unlink()  # made for the check of the block; the page's own comes now
    [query] = [json.loads(text) for text in said if text.startswith('{"id"')]

    assert play(stage, commands) == [], stage.printed
    [watching] = [one for one in stage.running if "watch" in one.text]
    assert "ALERT  retail-2026/item-" in watching.said()
    assert "Ready to run." in stage.printed
    assert "The ledgers balance" in stage.printed
    assert "retail-watch: worker" in stage.printed  # status
    assert "ready, state sealed" in stage.printed

    assert play(stage, follow) == []
    [program] = [one for one in stage.running if ".py" in one.text]
    assert re.search(r"^retail-2026 item-\w+ [\d.]+ ", program.said(), re.MULTILINE), program.said()
    stage.feed(query)  # as the page shows it: somewhat above the threshold
    stage.bash("stream-svt audit -c monitors.yaml --state")
    after = [code.text for code in code_of(README) if isinstance(code, Span) and code.section == LOOK_AFTER]
    [address] = [text for text in after if text.startswith("http://127.0.0.1:6066")]
    pages = [text for text in after if text.startswith("/")]
    assert len(pages) == 4
    for page in pages:
        stage.fetch(address.rstrip("/") + page)
    assert "<!doctype html>" in stage.fetch(address)
    assert "stream_svt_records_rejected_total{" in stage.fetch(f"{address}metrics")
    rejects = re.findall(r"^stream_svt_records_rejected_total\{.*\} (\S+)$", stage.printed, re.MULTILINE)
    assert set(map(float, rejects)) == {0.0}
    schema = json.loads(stage.bash("stream-svt schema"))
    jsonschema.validate(yaml.safe_load(config.read_text()), schema)
