"""Negative controls: what is wrong on a page is found, whatever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation import play as plays
from tests.documentation.commands import RULES, as_it_stands, rule_of
from tests.documentation.not_executed import NOT_RUN
from tests.documentation.pages import PAGES, ROOT, Block, Span, blocks, code_of, spans
from tests.documentation.play import READ_ONLY, play, read, uncovered
from tests.documentation.sentences import problem
from tests.documentation.shell import commands, parts, steps
from tests.documentation.stage import Stage
from tests.documentation.unique_blocks import UNIQUE, check_of

PAGE = Path("docs/operations.md")


@pytest.fixture
def stage(tmp_path, debian_program):
    made = Stage(tmp_path, need=debian_program)
    yield made
    made.close()


def block(text: str, language: str = "", page: Path = PAGE, name: str = "") -> Block:
    return Block(page, 1, "fence" if language else "indented", language, name, text)


# What is found


PAGE_TEXT = """\
# Title

Say `stream-svt status` and

    indented --here

- a list:

      indented in a list

  ```yaml
  in: a list
  ```

```python
# named.py
print()
```

## Other

| a | b |
| --- | --- |
| `--in-a-table` | text |

````md
```sh
a fence in a fence is text
```
````
"""


def test_every_form_of_code_is_found_with_its_line_and_section():
    found = list(code_of(PAGE, PAGE_TEXT))
    shown = [(code.line, code.text.strip()) for code in found if isinstance(code, Block)]
    assert shown[:4] == [
        (5, "indented --here"),
        (9, "indented in a list"),
        (12, "in: a list"),
        (16, "# named.py\nprint()"),
    ]
    assert len(shown) == 5
    assert [(code.text, code.section) for code in found if isinstance(code, Span)] == [
        ("stream-svt status", "Title"),
        ("--in-a-table", "Other"),
    ]
    assert [code.name for code in found if isinstance(code, Block) and code.name] == ["named.py"]
    lines = PAGE_TEXT.splitlines()
    assert all(text.splitlines()[0] in lines[line - 1] for line, text in shown)


def test_code_that_the_parser_does_not_give_out_is_refused():
    [found] = code_of(PAGE, "<pre>stream-svt run</pre>\n")
    assert uncovered(found)


def test_the_pages_are_those_of_the_repository():
    names = {str(page) for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/operations.md", "examples/README.md"} <= names
    assert sum(len(blocks(page)) for page in PAGES) > 30
    assert sum(len(spans(page)) for page in PAGES) > 300


def test_a_changelog_is_held_to_the_present_for_what_is_not_released_only():
    text = "# Changelog\n\n`a`\n\n## Unreleased\n\n### Added\n\n`b`\n\n## 1.0.0\n\n`c`\n"
    assert [span.text for span in spans(Path("CHANGELOG.md"), text)] == ["a", "b"]
    assert [span.text for span in spans(PAGE, text)] == ["a", "b", "c"]


# How commands are taken apart


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("head -c 32 /dev/urandom | base64 > key && chmod 600 key", ["head", "base64", "chmod"]),
        ("A=$(git log -1) python -m build  # with a && comment", ["git", "python"]),
        ("ls  # the reader's own\ncat x#y 'a # b'", ["ls", "cat"]),
        ("(cd dist && sha256sum -- * 2>/dev/null)", ["cd", "sha256sum"]),
        ("echo 'a && b' \"; c\"", ["echo"]),
        ("stream-svt run \\\n  -c monitors.yaml &", ["stream-svt"]),
        ("for x in a b; do echo $x; done", ["echo"]),
        ("cat <<EOF\nrm -rf /\nEOF", ["cat"]),
        ("a || b; c", ["a", "b", "c"]),
        (".venv/bin/python -m x", ["python"]),
    ],
)
def test_every_command_of_a_line_is_seen(text, programs):
    assert [command.program for command in commands(text)] == programs


def test_a_block_is_cut_where_commands_end():
    text = "a \\\n  --b\n\n# comment\ncat <<E\nx\n\nE\nfor x in 1; do\n  c\ndone\n"
    assert [(step.line, step.text) for step in steps(text)] == [
        (0, "a \\\n  --b"),
        (4, "cat <<E\nx\n\nE"),
        (8, "for x in 1; do\n  c\ndone"),
    ]
    assert parts("a && (b && c); d 'e; f' # g; h") == ["a", "(b && c)", "d 'e; f'"]


# What has no rule


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("SELECT 1;", "sql"),
        ("words that are no command\n", ""),
        ("rm_everything --now\n", "sh"),
        ("ls | rm_everything\n", "sh"),
        ("true && rm_everything\n", ""),
        ("echo 'not closed\n", "sh"),
    ],
)
def test_a_block_that_no_rule_covers_fails(stage, text, language):
    shown = block(text, language)
    assert uncovered(shown)
    assert [said for said in play(stage, shown) if str(PAGE) in said]


@pytest.mark.parametrize(
    ("text", "language", "reason"),
    [
        ("print(undefined)", "python", "NameError"),
        ("kafka: {}\nkafkaesque: {}", "yaml", "no rule knows"),
        ("kafka: {bootstrap_server: a:1}", "yaml", "unknown key"),
        ("a: [", "yaml", "no YAML"),
        ("topic: a\ndestinations: [{name: b, webhok: {}}]", "yaml", "webhok"),
        ('{"id": "q", "value": 1, "serie": "x"}', "json", "serie"),
        ('{"specversion": "1.0"}', "json", "no released event"),
        ('{"a": 1}', "json", "no rule knows"),
        ("{", "json", "no JSON"),
        ("stream-svt schema --pretty", "sh", "No such option"),
        ("python nowhere.py", "sh", "the page shows no file"),
        ("pip install 'stream-svt[everything]'", "sh", "no extra everything"),
        ("pip install requests", "sh", "no package of this project"),
        ("tests/run soak nothing", "sh", "no soak nothing"),
        ("tests/run soak simulation --counts 5", "sh", "no option --counts"),
        ("tests/run tests/monitor -k zebra", "sh", "no tests are found"),
        ("docker compose up nobody", "sh", "no service nobody"),
        ("docker run --privileged stream-svt", "sh", "no option --privileged"),
        ("docker run -e STREAM_SVT_KAFKA_BOOTSTRAP_SERVER=a:1 stream-svt", "sh", "no key bootstrap_server"),
        ("docker build --build-arg EXTRA=x .", "sh", "no argument EXTRA"),
        ("kubectl -n a rollout status deployment/nobody", "sh", "the manifests have no deployment nobody"),
        ("apiVersion: a\nkind: Kustomization\nresources: [../nowhere]", "yaml", "there is no ../nowhere"),
        ("apiVersion: v1\nkind: Service", "yaml", "no rule knows a manifest"),
        ("false", "sh", "exit code 1"),
        ("hello", "text", "no command before"),
    ],
)
def test_a_block_that_is_wrong_fails_with_the_reason(stage, text, language, reason):
    said = play(stage, block(text, language))
    assert said
    assert reason in "".join(said), said


def test_a_page_whose_commands_are_only_read_is_held_to_them():
    assert read(block("stream-svt status -c FILE", "sh")) == []
    assert read(block("stream-svt wach -c FILE", "sh"))
    assert read(block("printed", "text"))


def test_what_is_right_passes_and_what_a_page_shows_as_printed_is_held_to_what_was_printed(stage):
    assert play(stage, block("printf 'one  two\\nthree 4\\n'", "sh")) == []
    assert play(stage, block("one two\n...\nthree 4", "text")) == []
    for shown in ("one three", "three 5", "three 4\none two"):
        assert "was not printed" in "".join(play(stage, block(shown, "text")))


def test_numbers_may_differ_only_where_noise_or_time_is_in_them(stage):
    stage.lines.append(("gap 77 at 10:25:52", True))
    assert play(stage, block("gap 12.5 at 09:01:02", "text")) == []
    assert play(stage, block("gap 12.5 in 09:01:02", "text")) != []


def test_a_failure_is_told_with_its_own_line_and_the_rest_is_played(stage):
    said = play(stage, block("true\nfalse\ntouch here\n", "sh"))
    assert [one.split(": ")[0] for one in said] == [f"{PAGE}:2"]
    assert (stage.here / "here").exists()


@pytest.mark.parametrize(
    ("page", "begins", "right", "wrong"),
    [
        ("CONTRIBUTING.md", "errors <- mechanisms", "monitor", "monitors"),
        ("docs/mechanisms.md", "run = mechanism.open(", "mechanism.step", "mechanism.stop"),
        ("docs/privacy-guarantee.md", "l0 = e0 / D", "e1 / U", "e1 / D"),
        ("docs/privacy-guarantee.md", "l0 = e0 / D", "correction + z", "correction - z"),
        ("docs/how-sparse-vector-works.md", "gap = (value", "gap >= 0", "gap > 0"),
        ("docs/state-machine.md", "stateDiagram-v2", "idle --> running", "idle --> halted"),
    ],
)
def test_a_block_with_a_rule_to_itself_fails_when_it_is_changed(stage, page, begins, right, wrong):
    [shown] = [one for one in blocks(Path(page)) if one.text.startswith(begins)]
    assert check_of(shown)
    assert play(stage, shown) == []
    assert right in shown.text
    changed = Block(shown.page, shown.line, shown.form, shown.language, "", shown.text.replace(right, wrong))
    assert play(stage, changed) != []


@pytest.mark.parametrize(
    "text",
    [
        "stream-svt watch --frm-beginning",
        "stream-svt wach -c FILE",
        "stream-svt control pause -c FILE --shards N",
        "stream-svt run -c FILE --log-level loud",
        "tests/run soak nothing",
        "benchmarks/run nothing",
        "python -m stream_svt.nowhere",
        "pip install 'stream-svt[everything]'",
        "kubectl apply -f deploy/nowhere.yaml",
        "promtool check rules deploy/nowhere/*.yml",
        "--frm-beginning",
        "stream_svt_nothing_total",
        "stream_svt:nothing:ratio",
        "stream_svt.mechanisms.nothing",
        "kafka.bootstrap_server",
        "tests/kafka/test_nowhere.py",
        '{"id": "q1", "value": 1, "serie": "x"}',
        "sparse_vektor",
        "/api/v1/nowhere",
        "raise-bugdet",
    ],
)
def test_code_in_a_sentence_that_speaks_of_nothing_is_found(text):
    assert problem(Span(PAGE, 1, text)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "stream-svt control accept-loss -c FILE --shard N",
        "stream-svt watch --json",
        "tests/run soak NAME",
        "--from-beginning",
        "stream_svt_commit_seconds_bucket",
        "stream_svt_tops_total",
        "stream_svt_forward_stopped",
        "stream_svt.subscribe(...)",
        "topics.partitions: N",
        "min.insync.replicas=2",
        "raise-budget",
        "/api/v1/status",
    ],
)
def test_code_in_a_sentence_that_is_true_is_not(text):
    assert problem(Span(PAGE, 1, text)) is None


# The tables themselves


def test_no_rule_is_dead_and_whatever_is_not_run_has_a_reason():
    shown = [
        command
        for page in PAGES
        for one in blocks(page)
        if plays.kind_of(one) == "shell"
        for command in plays.commands_of(one)
    ]
    spoken = [command for page in PAGES for one in spans(page) for command in _spoken(one)]
    used = {id(rule_of(command)) for command in shown + spoken}
    # Any page may use the shell's programs and the repository's scripts.
    common = {id(rule) for rule in RULES if rule.how is as_it_stands}
    common |= {id(rule) for rule in (*RULES, *NOT_RUN) if (ROOT / rule.prefix[0]).is_file()}
    assert [rule.prefix for rule in (*RULES, *NOT_RUN) if id(rule) not in used | common] == []
    for page, begins in UNIQUE:
        assert any(one.text.startswith(begins) for one in blocks(Path(page)))
    assert all(Path(page) in PAGES and reason for page, reason in READ_ONLY.items())
    assert all(len(rule.reason) > 5 for rule in NOT_RUN)


def _spoken(one: Span):
    try:
        return commands(one.text)
    except ValueError:
        return []
