"""What the documentation says of the code is what the code says now."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import msgspec
import pytest

from docs.generator import command_line, hooks
from docs.generator.__main__ import main
from docs.generator.asyncapi import COMMAND_REASONS, EVENTS, QUERY_REASONS, TYPES, WORDS
from docs.generator.configuration import in_words
from docs.generator.drawing import BLUE, Drawing, say
from docs.generator.outputs import DOCS, PICTURES, TOP, filled, outdated
from stream_svt.cli import app
from stream_svt.monitor.released import EventType
from stream_svt.service import codec
from stream_svt.settings.sections import ConfigDocument


def test_every_generated_file_and_block_is_what_another_process_in_another_place_makes():
    elsewhere = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "docs.generator", "--check"],
        cwd=TOP,
        env=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0), "run docs/generate"


def test_what_is_out_of_date_is_named_and_fails(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- made by docs/generate: one -->\nold\n<!-- end: one -->\n")
    monkeypatch.setattr("docs.generator.outputs.DOCS", tmp_path)
    monkeypatch.setattr("docs.generator.outputs.FILES", {"file.svg": lambda: "drawn\n"})
    monkeypatch.setattr("docs.generator.outputs.BLOCKS", {"page.md": {"one": lambda: "new"}})
    assert set(outdated()) == {page, tmp_path / "file.svg"}
    for path, content in outdated().items():
        path.write_text(content)
    assert outdated() == {}
    assert page.read_text() == "<!-- made by docs/generate: one -->\n\nnew\n\n<!-- end: one -->\n"


def test_the_command_checks_or_writes_and_says_which_files(monkeypatch, capsys):
    page = DOCS / "page.md"
    monkeypatch.setattr("docs.generator.__main__.outdated", lambda: {page: "new"})
    wrote: list[object] = []
    monkeypatch.setattr("pathlib.Path.write_text", lambda path, text, **_: wrote.append((path, text)))
    assert main(["--check"]) == 1
    assert (capsys.readouterr().out, wrote) == ("out of date: docs/page.md\n", [])
    assert main([]) == 0
    assert (capsys.readouterr().out, wrote) == ("written: docs/page.md\n", [(page, "new")])
    monkeypatch.setattr("docs.generator.__main__.outdated", dict)
    assert main(["--check"]) == 0
    assert main(["--chek"]) == 2


@pytest.mark.parametrize("page", ["", "<!-- made by docs/generate: other -->\n<!-- end: other -->\n"])
def test_a_page_must_have_the_blocks_that_are_made_for_it_and_no_others(page):
    with pytest.raises(ValueError, match="the generator makes"):
        filled(page, {"one": str})


# Words for everything


def test_every_field_event_and_reason_has_words():
    for kind in TYPES:
        names = [field.encode_name for field in msgspec.structs.fields(kind)]
        assert list(WORDS["fields"][kind.__name__]) == names
    assert set(EVENTS) == set(EventType)
    query = WORDS["document"]["components"]["schemas"]["Query"]["properties"]
    assert set(query) == {field.encode_name for field in msgspec.structs.fields(codec._Query)}
    assert list(WORDS["reasons"]["queries"]) == QUERY_REASONS
    assert list(WORDS["reasons"]["commands"]) == COMMAND_REASONS


def test_every_key_of_the_configuration_is_in_its_page():
    page = (DOCS / "configuration.md").read_text()
    for name, field in ConfigDocument.model_fields.items():
        assert f"`{name}`" in page
        for model in _models(field.annotation):
            for key, inner in model.model_fields.items():
                assert re.search(rf"^\| `{inner.alias or key}` \|", page, re.MULTILINE), (name, key)


def _models(annotation):
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models(inner)]


def test_a_schema_without_words_is_an_error():
    assert (
        in_words({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, {})
        == "whole number, at least 1"
    )
    with pytest.raises(ValueError, match="no words"):
        in_words({"type": "tuple"}, {})


def test_every_command_and_option_is_in_its_page():
    page = (DOCS / "command-line.md").read_text()
    for name, command in command_line._commands():
        section = re.search(
            rf"^## `{re.escape(name)}`\n(.*?)(?=^## |<!-- end)", page, re.MULTILINE | re.DOTALL
        )
        assert section is not None, name
        for option in command.params:
            if isinstance(option, click.Option):
                assert f"`{', '.join(option.opts)}" in section[1], (name, option.name)
    assert len(list(command_line._commands())) > len(app.commands)


# Pictures


def test_every_picture_is_on_a_page_and_speaks_to_those_who_cannot_see_it():
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md")) + "".join(hooks._DRAWN.values())
    for name in PICTURES:
        text = (DOCS / "pictures" / f"{name}.svg").read_text()
        assert f"](pictures/{name}.svg)" in pages, name
        title, description = re.findall(r"<(?:title|desc) id=[^>]*>([^<]+)</(?:title|desc)>", text)
        assert len(title) > 10, name
        assert len(description) > 60, name
    assert {path.stem for path in (DOCS / "pictures").iterdir() if path.suffix == ".svg"} >= set(PICTURES)


def test_a_picture_escapes_its_words_and_its_colours_are_variables():
    drawing = Drawing(10, 10, "<title> & more", 'a "quoted" description')
    say(drawing.sheet(), (1, 1), "a < b & c", BLUE)
    text = drawing.svg()
    assert "a &lt; b &amp; c" in text
    assert "<title id=" in text
    assert "&lt;title&gt; &amp; more" in text
    assert "fill: var(--blue)" in text
    picture = text.partition("</style>")[2]
    assert re.findall(r"#[0-9a-f]{6}|<style|font-family| id=", picture) == []
