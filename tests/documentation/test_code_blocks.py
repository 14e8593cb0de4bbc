"""Every block of code, and every name in a sentence, of every page is true; programs that need no broker run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from stream_svt.cli import app
from tests.documentation.checks import commands, problem
from tests.documentation.pages import PAGES, ROOT, Code, blocks, code_of

PAGE = Path("docs/operations.md")
PROGRAMS = [
    block
    for page in PAGES
    if "```python" in (ROOT / page).read_text(encoding="utf-8")
    for block in blocks(page)
    if block.kind == "python" and not re.search("127.0.0.1|asyncio", block.text)
]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_code_of_a_page_speaks_of_what_exists(page):
    assert [f"{code}: {said}" for code in code_of(page) if (said := problem(code))] == []


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_of_a_page_runs_and_prints(block, capsys):
    exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})  # noqa: S102 - of this repository
    assert capsys.readouterr().out


def test_what_planning_shows_is_what_its_command_prints():
    [command, shown, *_] = blocks(Path("docs/planning.md"))
    [words] = commands(command.text)
    printed = CliRunner().invoke(app, words[1:], env={"COLUMNS": "200"}).output
    lines = {" ".join(line.split()) for line in printed.splitlines()}
    assert [line for line in shown.text.splitlines() if " ".join(line.split()) not in lines] == []


def test_the_order_of_the_rooms_is_that_of_the_contract_on_imports():
    [text] = [block.text for block in blocks(Path("CONTRIBUTING.md")) if " <- " in block.text]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one["id"] == "one-way"]
    files = {path.stem for path in (ROOT / "stream_svt").glob("*.py")} - {"errors"}
    layers = [set(re.findall(r"\w+", layer)) - files for layer in reversed(contract["layers"])]
    assert [set(re.findall(r"\w+", part)) for part in text.split("<-")] == [one for one in layers if one]


def test_blocks_of_text_stand_where_a_test_compares_them():
    pages = {str(page) for page in PAGES for block in blocks(page) if block.kind == "text"}
    assert pages == {
        "CONTRIBUTING.md",
        "docs/how-sparse-vector-works.md",
        "docs/planning.md",
        "docs/privacy-guarantee.md",
        "docs/tutorial.md",
    }


# What is wrong is found


def test_every_form_of_code_is_found_with_its_line_and_name():
    text = (
        "# Title\n\nSay `a b` and\n\n    indented\n\n- a list:\n\n  ```yaml\n  in: a list\n  ```\n\n"
        "```python\n# named.py\nprint()\n```\n\n## Other\n\n| a |\n| --- |\n| `c` |\n\n<pre>d</pre>\n"
    )
    found = code_of(PAGE, text)
    assert [(code.line, code.kind) for code in found] == [
        (3, "span"),
        (5, "sh"),
        (10, "yaml"),
        (14, "python"),
        (22, "span"),
        (24, "html"),
    ]
    assert [code.name for code in found if code.name] == ["named.py"]
    assert problem(found[-1])
    assert sum(len(blocks(page)) for page in PAGES) > 30
    assert sum(len(code_of(page)) for page in PAGES) > 330


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("openssl rand 32 > key && chmod 600 key", ["openssl", "chmod"]),
        ("A=1 python -m build  # with a && comment", ["python"]),
        ("(cd dist && sha256sum -- * 2>/dev/null)", ["cd", "sha256sum"]),
        ("a 'b && c' | d; e \\\n  f &\ng", ["a", "d", "e", "g"]),
    ],
)
def test_every_command_of_a_block_is_seen(text, programs):
    assert [words[0] for words in commands(text)] == programs


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("sql", "SELECT 1;", "no rule covers"),
        ("sh", "cat a | rm_everything", "no rule knows"),
        ("sh", "echo 'not closed", "quotation"),
        ("sh", "stream-svt schema --pretty", "No such option: --pretty"),
        ("sh", "stream-svt wach -c FILE", "no command wach"),
        ("sh", "stream-svt run -c FILE --log-level loud", "--log-level"),
        ("sh", "python nowhere.py", "shows no file"),
        ("sh", "python -m stream_svt.nowhere", "no module"),
        ("sh", "pip install 'stream-svt[everything]'", "no package"),
        ("sh", "tests/run soak nothing", "no soak nothing"),
        ("sh", "benchmarks/run nothing", "no benchmark"),
        ("sh", "kubectl apply -f deploy/nowhere.yaml", "there is no"),
        ("sh", "docker run -e STREAM_SVT_KAFKA_BOOTSTRAP_SERVER=a:1 stream-svt", "no key bootstrap_server"),
        ("yaml", "kafka: {bootstrap_server: a:1}", "bootstrap_server"),
        ("yaml", "kafkaesque: {}", "no rule knows"),
        ("yaml", "workers: {replica: 3}", "replica"),
        ("yaml", "topic: a\ndestinations: [{name: b, webhok: {}}]", "webhok"),
        ("json", '{"id": "q", "value": 1, "serie": "x"}', "serie"),
        ("json", '{"specversion": "1.0"}', "no message"),
        ("span", "stream-svt watch --frm-beginning", "No such option"),
        ("span", "--frm-beginning", "no command has"),
        ("span", "stream_svt_nothing_total", "no metric"),
        ("span", "stream_svt.mechanisms.nothing", "there is no"),
        ("span", "kafka.bootstrap_server", "no key"),
        ("span", "tests/kafka/test_nowhere.py", "no file"),
        ("span", '{"id": "q1", "value": 1, "serie": "x"}', "serie"),
        ("span", "sparse_vektor", "nowhere in the code"),
    ],
)
def test_code_that_is_wrong_is_found(kind, text, reason):
    assert reason in (problem(Code(PAGE, 1, kind, text)) or "")
