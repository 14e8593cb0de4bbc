"""What the documentation says of the code is what the code says now."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import msgspec
import pytest

from docs.generator import command_line, status_page
from docs.generator.__main__ import main
from docs.generator.asyncapi import EVENTS, QUERY_REASONS, TYPES, WORDS
from docs.generator.configuration import in_words
from docs.generator.markdown import filled
from docs.generator.outputs import DOCS, TOP, outdated
from stream_svt.monitor.released import EventType
from stream_svt.protocol.controls import Refusal
from stream_svt.queries.json_records import FIELDS
from stream_svt.settings.sections import json_schema
from stream_svt.web import WorkerStatus
from stream_svt.web.overview import DatasetNow


def test_every_generated_file_and_block_is_what_another_process_in_another_place_makes():
    elsewhere = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    check = [sys.executable, "-m", "docs.generator", "--check"]
    done = subprocess.run(check, cwd=TOP, env=elsewhere, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0), "run docs/generate"


def test_what_is_out_of_date_is_named_and_fails_or_is_written(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- made by docs/generate: one -->\nold\n<!-- end: one -->\n")
    monkeypatch.setattr("docs.generator.__main__.TOP", tmp_path)
    monkeypatch.setattr("docs.generator.outputs.DOCS", tmp_path)
    monkeypatch.setattr("docs.generator.outputs.PICTURES", {"drawn": lambda path: path.write_text("drawn\n")})
    monkeypatch.setattr("docs.generator.outputs.BLOCKS", {"page.md": {"one": lambda: "new"}})
    names = ["asyncapi.yaml", "pictures/drawn.svg", "page.md"]
    assert main(["--check"]) == 1
    assert capsys.readouterr().out == "".join(f"out of date: {name}\n" for name in names)
    assert main([]) == 0
    assert capsys.readouterr().out == "".join(f"written: {name}\n" for name in names)
    assert outdated() == {}
    assert main(["--check"]) == 0
    assert page.read_text() == "<!-- made by docs/generate: one -->\n\nnew\n\n<!-- end: one -->\n"
    assert main(["--chek"]) == 2


@pytest.mark.parametrize("page", ["", "<!-- made by docs/generate: other -->\n<!-- end: other -->\n"])
def test_a_page_must_have_the_blocks_that_are_made_for_it_and_no_others(page):
    with pytest.raises(ValueError, match="the generator makes"):
        filled(page, {"one": ""})


def test_every_field_event_and_reason_has_words():
    for kind in TYPES:
        names = [field.encode_name for field in msgspec.structs.fields(kind)]
        assert list(WORDS["fields"][kind.__name__]) == names
    assert set(EVENTS) == set(EventType)
    query = WORDS["document"]["components"]["schemas"]["Query"]["properties"]
    assert set(query) == set(FIELDS)
    assert list(WORDS["reasons"]["queries"]) == QUERY_REASONS
    assert list(WORDS["reasons"]["commands"]) == [*Refusal]


def test_every_key_of_the_configuration_is_in_its_page():
    page, schema = (DOCS / "configuration.md").read_text(), json_schema()
    assert [name for name in schema["properties"] if f"`{name}`" not in page] == []
    keys = {key for part in schema["$defs"].values() for key in part.get("properties", ())}
    assert keys - set(re.findall(r"^- `(?:\w+\.)*(\w+)` \(", page, re.MULTILINE)) == set()
    assert len(keys) > 80


def test_a_schema_without_words_is_an_error():
    optional = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
    assert in_words(optional, {}) == "at least 1"
    with pytest.raises(ValueError, match="no words"):
        in_words({"type": "tuple"}, {})


def test_every_command_and_option_is_in_its_page():
    page = (DOCS / "command-line.md").read_text()
    for name, command in command_line.commands():
        [section] = re.findall(
            rf"^## `{re.escape(name)}`\n(.*?)(?=^## |<!-- end)", page, re.MULTILINE | re.DOTALL
        )
        section += page.partition("made by docs/generate: reference")[0]  # options of several commands
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                long = next(word for word in option.opts if word.startswith("--"))
                assert re.search(rf"`(?:-\w, )?{long}\b", section), (name, option.name)
    assert len(list(command_line.commands())) > len(command_line.app.commands)


def test_every_picture_is_on_a_page():
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    for path in (DOCS / "pictures").iterdir():
        assert f"](pictures/{path.name})" in pages


@pytest.mark.parametrize("struct", [WorkerStatus, DatasetNow], ids=lambda struct: struct.__name__)
def test_every_member_of_the_status_page_is_described(struct):
    described = list(status_page.structures(struct))
    assert sum(len(members) for _, _, members in described) > 15
    for name, meaning, members in described:
        assert bool(name) == bool(meaning)
        assert [member for member, text in members.items() if not text] == []
