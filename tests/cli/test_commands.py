"""The command line without brokers: help, exit codes, messages, and what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from unittest.mock import AsyncMock

import aiokafka.client
import pytest
from click import unstyle

from stream_svt.__main__ import main as program
from stream_svt.application.facts import ApplicationFacts, ShardFacts
from stream_svt.cli import app, common, confirming, whole
from stream_svt.cli.whole import show_whole, show_worker
from stream_svt.demo.scenario import Setting
from stream_svt.errors import StreamSvtError, UnreadableState
from stream_svt.forward.config import json_schema as forward_schema
from stream_svt.monitor.engine import Engine
from stream_svt.settings.sections import json_schema
from tests.support.alerts import account_of
from tests.support.http_server import answering
from tests.support.keys import ed25519_pair
from tests.support.shop import SPEC
from tests.support.sources import WEB, changed
from tests.support.status_page import STATUS

COMMANDS = [[name] for name in app.commands] + [
    ["control", name] for name in app.commands["control"].commands
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(stream_svt, command):
    ended = stream_svt(*command, "--help")
    assert ended.code == 0
    assert "Example" in ended.out
    assert f"stream-svt {' '.join(command)}" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 110


@pytest.mark.parametrize("group", ["", "control", "rejects"])
def test_the_list_of_commands_shows_whole_sentences(stream_svt, group):
    shown = stream_svt(*group.split(), "--help").out
    assert "\b" not in shown
    commands = app.commands[group].commands if group else app.commands
    listed = " ".join(shown.split("Commands:\n")[1].split("\n\n")[0].split())
    for name, command in commands.items():
        (first, *_) = " ".join(command.help.split()).split(". ")
        assert f"{name} {first.rstrip('.')}." in listed


def test_ctrl_c_while_modules_are_imported_ends_the_program_without_a_traceback(monkeypatch):
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "stream_svt.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "stream_svt.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 130


def test_the_version_is_that_of_the_package(stream_svt):
    assert stream_svt("--version").out.startswith("stream-svt, version ")


def test_the_help_documents_the_exit_codes_and_that_missing_topics_are_configuration(stream_svt):
    ended = stream_svt("--help")
    meanings = dict(line.split(maxsplit=1) for line in ended.out.splitlines() if line[4:5].isdigit())
    assert (ended.code, set(meanings)) == (0, {"0", "1", "2", "3", "4", "130"})
    assert "topics do not fit" in meanings["2"]
    assert "`watch`, `audit`, `control`: topic missing" in meanings["3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("contrl", "No such command 'contrl'; did you mean 'control'?"),
        ("control rase-budget", "No such command 'rase-budget'; did you mean 'raise-budget'?"),
        ("xyzzy", "No such command 'xyzzy'."),
        ("check", "Missing option '-c' / '--config' (env var: 'STREAM_SVT_CONFIG')."),
        ("check -c CONFIG --offline --create-topics", "Error"),
        ("forward", "Missing option '-c' / '--config' (env var: 'STREAM_SVT_FORWARD_CONFIG')."),
        ("run -c none.yaml", "none.yaml"),
        ("watch", "--topic"),
        ("watch", "with --bootstrap-servers HOST:PORT unless the broker is 127.0.0.1:9092"),
        ("watch --nope", "Error"),
        ("control pause -c CONFIG", "--all"),
        ("control pause -c CONFIG today --all", "--all"),
        ("control raise-budget -c CONFIG today --limit much --yes", "not a number"),
        ("demo --feed-only", "--feed-only needs -c FILE"),
        ("demo -c monitors.yaml", "--config needs --feed-only"),
        ("demo --feed-only -c m.yaml --broker h:1", "--broker cannot be combined with --feed-only"),
    ],
)
def test_wrong_usage_is_two_and_names_what_is_wrong_or_what_was_probably_meant(
    stream_svt, config, arguments, message
):
    ended = stream_svt(*(config if word == "CONFIG" else word for word in arguments.split()))
    assert (ended.code, message in ended.err) == (2, True), ended.err


def test_nothing_is_sent_to_a_topic_of_counts(stream_svt, tmp_path):
    (tmp_path / "web.yaml").write_text(WEB)
    ended = stream_svt("send", "-c", tmp_path / "web.yaml", "--topic", "web.requests.counts")
    assert ended.code != 0
    assert "tests counts: send events to the topics of its sources" in ended.err


def test_check_offline_says_what_a_source_counts_and_takes(stream_svt, tmp_path):
    (tmp_path / "web.yaml").write_text(WEB)
    ended = stream_svt("check", "-c", tmp_path / "web.yaml", "--offline")
    assert ended.code == 0
    assert "\n\nSource requests on topic web.requests:\n  Counts   visitors" in ended.out
    assert "\n  Takes    24 MB of memory" in ended.out
    assert "\n\nA person in web-{date}:\n  Loses    at most epsilon 62 in any 30 days: " in ended.out


def test_check_offline_shows_what_the_budget_buys(stream_svt, config):
    ended = stream_svt("check", "-c", config, "--offline")
    assert ended.code == 0
    assert "Monitor hot on each of 2 datasets (today, ..)" in ended.out
    assert "4 whole runs: 40 alerts in all" in ended.out
    assert "state is not sealed" in ended.out
    assert "two losses add up" in ended.out
    assert ended.out.endswith("The configuration is valid.\n")


def test_the_schema_is_that_of_the_settings(stream_svt):
    assert json.loads(stream_svt("schema").out) == json_schema()
    assert json.loads(stream_svt("schema", "--forward").out) == forward_schema()


def test_every_command_repairs_the_kafka_client_first(stream_svt, monkeypatch):
    monkeypatch.setattr("aiokafka.client.create_conn", None)
    assert stream_svt("schema").code == 0
    assert aiokafka.client.create_conn is not None


def test_commands_complete(stream_svt, monkeypatch):
    completion = {"_STREAM_SVT_COMPLETE": "bash_complete", "COMP_WORDS": "stream-svt ch", "COMP_CWORD": "1"}
    for name, value in completion.items():
        monkeypatch.setenv(name, value)
    assert stream_svt().out == "plain,check\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StreamSvtError("went wrong"), 1, "stream-svt: went wrong\n"),
        (UnreadableState("cannot be read"), 4, "stream-svt: cannot be read\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_message_and_its_exit_code(stream_svt, monkeypatch, config, error, code, message):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr("stream_svt.cli.common.load", fail)
    ended = stream_svt("check", "-c", config)
    assert (ended.code, ended.err.strip("\n")) == (code, message.strip("\n"))


def test_the_demo_is_called_with_its_options(monkeypatch, stream_svt):
    seen = []

    async def demo(*options):
        seen.append(options[:2])
        raise asyncio.CancelledError

    monkeypatch.setattr("stream_svt.demo.session.run_demo", demo)
    monkeypatch.setenv("STREAM_SVT_CONFIG", "monitors.yaml")  # it does not keep the demo from starting
    assert stream_svt("demo", "--duration", "3", "--broker", "h:1").code == 130
    assert stream_svt("demo").code == 130
    assert seen == [(3.0, "h:1"), (None, None)]
    assert stream_svt("demo", "--show-config").out == Setting().yaml()


LOST = ("--shard", 1, "--topic", "t", "--offset", 7)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "requires signed commands: name your key"),
        ("nowhere.pem", "nowhere.pem: No such file"),
        ("alice.pub", "must hold an Ed25519 private key"),
        ("mallory.pem", " is not in section control, which has ed25519 "),
        ("binary", "binary: it is UTF-16 text: save it as UTF-8."),
    ],
)
def test_a_command_that_every_shard_would_refuse_is_not_sent(stream_svt, config, key, words):
    directory = config.parent
    (directory / "alice.pub").write_text(ed25519_pair()[1])
    (directory / "mallory.pem").write_text(ed25519_pair()[0])
    (directory / "binary").write_bytes(b"\xff\xfe")
    config.write_text(config.read_text() + "control: {keys: [alice.pub]}\n")
    more = () if key is None else ("--signing-key", directory / key)
    for command in (("pause", "today"), ("accept-loss", *LOST)):
        ended = stream_svt("control", command[0], "-c", config, *command[1:], *more)
        assert (ended.code, words in ended.err) == (2, True), ended
        # What is wrong is the key or its absence, not the whole file that is named.
        assert "1 problem" not in ended.err
        assert str(config if key is None else directory / key) in ended.err


def test_control_knows_what_is_declared(stream_svt, config):
    ended = stream_svt("control", "close", "-c", config, "yesterday", "--monitor", "cold")
    assert ended.code == 2
    assert ended.err.splitlines() == [
        f"stream-svt: no dataset 'yesterday' is declared in {config}. Declared: today, tomorrow",
        f"no monitor 'cold' is declared in {config}. Declared: hot",
    ]
    near = stream_svt("control", "raise-budget", "-c", config, "tody", "--limit", "5", "--yes")
    assert (near.code, "; did you mean 'today'? Declared: " in near.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--successor", "shop"), "the successor needs another name"),
        (("--successor", "ne\u200bxt"), r"found 'ne\u200bxt'"),
        (("--successor", "Next"), "expected a name of lower-case letters"),
        (("--successor", "next", "--give-up-state"), "--give-up-state needs --shard"),
        (("--successor", "next", "--shard", 7), "there is no shard 7 in {config}: shards are 0 to 1"),
        ((), "Missing option '--successor'"),
    ],
)
def test_a_command_to_close_that_makes_no_sense_is_refused(stream_svt, config, options, message):
    ended = stream_svt("control", "close-application", "-c", config, *options, "--yes")
    assert (ended.code, ended.out) == (2, "")
    assert message.format(config=config) in " ".join(ended.err.split())


RAISE = ("control", "raise-budget", "today", "--limit", "5")


def test_a_no_and_the_end_of_the_input_change_nothing_and_an_interrupt_is_an_interrupt(
    stream_svt, config, monkeypatch
):
    """The account of the dataset is read before; here it was found."""

    async def shown(*_arguments):
        return ApplicationFacts(accounts={"today": account_of(spent=2.5, reserved=0.5)})

    monkeypatch.setattr(confirming, "read_facts", shown)
    for answer, hint in (("n\n", ""), ("", " (use --yes where nobody can answer)")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        ended = stream_svt(*RAISE, "-c", config)
        message = f"stream-svt: not confirmed; nothing was changed{hint}\n"
        assert (ended.code, ended.err.endswith(message)) == (1, True)
        assert ended.err.splitlines()[:3] == [
            "today (unit: one basket): epsilon 2.5 of 4 spent, 0.5 reserved by open runs",
            "  limit 4 -> 5: one basket may lose up to epsilon 5 here, instead of 4",
            "1 dataset on 1 shard: everyone in the data loses the difference; no command lowers a limit",
        ]

    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupt)
    assert stream_svt(*RAISE, "-c", config).code == 130


@pytest.mark.parametrize(
    ("options", "effect"),
    [
        (("resample", "--all"), "new ones cost up to: hot rho 0.5"),
        (
            ("close-application", "--successor", "next"),
            "epsilon that they did not spend is left, rho stays spent",
        ),
    ],
)
def test_what_is_confirmed_is_right_for_rho(stream_svt, config, monkeypatch, options, effect):
    async def shown(*_arguments):
        return ApplicationFacts()

    monkeypatch.setattr(confirming, "read_facts", shown)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    config.write_text(SPEC.replace("{epsilon: 4}", "{rho: 4}"))
    assert effect in stream_svt("control", *options, "-c", config).err


@pytest.mark.parametrize("monitor", ["many-users", "many-users.end"])
def test_a_resample_names_the_price_of_runs_that_test_for_ends_too(stream_svt, config, monkeypatch, monitor):
    async def shown(*_arguments):
        return ApplicationFacts()

    monkeypatch.setattr(confirming, "read_facts", shown)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    ending = ("threshold: 500, mute: 1h", "threshold: 500, end: {below: 400}")
    config.write_text(changed(ending, ("{epsilon: 2}", "{epsilon: 4}")))
    said = stream_svt("control", "resample", "--all", "--monitor", monitor, "-c", config).err
    assert "new ones cost up to: many-users epsilon 1, many-users.end epsilon 1" in said


@pytest.fixture
def worker_page():
    """Serve a status page; return its address, and its answer, which a test may change."""
    answer = {"body": json.dumps(STATUS).encode(), "code": 200}
    with answering("/api/v1/status", answer) as port:
        yield f"http://127.0.0.1:{port}", answer


@pytest.mark.loopback
def test_status_shows_budgets_and_monitors(stream_svt, worker_page):
    url, answer = worker_page
    ended = stream_svt("status", "--url", url)
    assert ended.code == 0
    head = f"shop: worker {STATUS['worker']}, version {STATUS['version']}, ready, state not sealed, partitioner murmur2"
    assert head in ended.out
    assert "1.5 of 4 epsilon" in ended.out
    assert "running, top branch only" in ended.out
    assert "│ b " in ended.out
    assert json.loads(stream_svt("status", "--url", url, "--json").out) == STATUS
    assert "refused" not in ended.out
    alone = f"Worker {STATUS['worker']} alone: 'stream-svt status -c FILE' shows all workers."
    assert ended.out.splitlines()[-1] == alone
    # The lag of a shard that was never open is unknown; 0 would mean that every query was read.
    parked = {**STATUS["shards"][0], "state": "parked", "lag": {}, "committed_at": None}
    refused = {"topic": "shop.rejects", "reasons": {"not-json": 1, "undeclared": 2}, "remedy": "do this"}
    answer["body"] = json.dumps({**STATUS, "shards": [parked], "refused": refused}).encode()
    changed = stream_svt("status", "--url", url).out
    assert (
        "3 records refused (not-json 1, undeclared 2): 'stream-svt rejects list -c FILE' says what to do (topic "
        "shop.rejects)\nmisrouted: do this\n" in changed
    )
    (row,) = [line for line in changed.splitlines() if "parked" in line]
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["parked", "-"]
    # Of topics of counts only ticks are shown: that of the one whose monitors are furthest behind.
    ticks = {"shop.clicks.counts": 1_790_000_000_000, "shop.visits.counts": 1_790_000_060_000}
    for lag, shown in (({}, ""), ({"counts": 7}, "7, ")):
        answer["body"] = json.dumps({**STATUS, "shards": [parked | {"lag": lag, "ticks": ticks}]}).encode()
        assert f" {shown}ticks to 2026-09-21 14:13:20 UTC " in stream_svt("status", "--url", url).out


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_narrow_terminal_status_leaves_columns_out_and_cuts_nothing(monkeypatch, capsys, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    parked = {
        "shard": 1,
        "lag": {},
        "state": "parked",
        "cause": "state-unreadable",
        "reason": "its seal is broken " * 5,
    }
    show_worker(STATUS | {"shards": [*STATUS["shards"], STATUS["shards"][0] | parked]})
    lines = unstyle(capsys.readouterr().out).splitlines()[1:-1]
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert "…" not in text
    assert "state-unreadable" in text
    assert "broken" in text
    assert "1.5 of 4" in text
    assert ("Left out: queued" in text) == (columns == 80)


@pytest.mark.loopback
def test_status_asks_the_proxy_for_other_machines_only(stream_svt, worker_page, monkeypatch):
    page = "http://worker.invalid/api/v1/status"
    monkeypatch.setenv("no_proxy", "")
    with answering(page, {"body": json.dumps(STATUS).encode(), "code": 200}) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
        urls = [worker_page[0].replace("127.0.0.1", host) for host in ("127.0.0.1", "localhost", "0.0.0.0")]  # noqa: S104
        for url in (*urls, "http://worker.invalid"):
            assert stream_svt("status", "--url", url).code == 0
        assert stream_svt("status", "--url", "http://other.invalid").code == 1


@pytest.mark.loopback
def test_a_page_that_is_not_the_status_of_a_worker_is_refused(stream_svt, worker_page):
    url, answer = worker_page
    for body in (b"hello", b"[]", b"{}"):
        answer["body"] = body
        ended = stream_svt("status", "--url", url)
        assert (ended.code, f"no worker answers at {url} (" in ended.err) == (1, True)
    answer["code"] = 503
    assert f"no worker answers at {url} (Service Unavailable)" in stream_svt("status", "--url", url).err
    assert stream_svt("status", "--url", "file:///etc/passwd").code == 2
    away = stream_svt("status", "--url", "http://127.0.0.1:1")
    assert (away.code, "no worker answers at http://127.0.0.1:1 (" in away.err) == (1, True)


@pytest.mark.loopback
@pytest.mark.parametrize(
    "arguments",
    [["check"], ["watch"], ["audit"], ["control", "pause", "today"]],
    ids=lambda arguments: arguments[0],
)
def test_an_unreachable_broker_is_three_and_the_message_names_what_to_check(stream_svt, config, arguments):
    ended = stream_svt(*arguments, "-c", config)
    assert ended.code == 3
    assert "127.0.0.1" in ended.err
    assert "start the broker, or correct kafka.bootstrap_servers" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_host_without_an_address_is_named(stream_svt, config):
    config.write_text(config.read_text().replace('"127.0.0.1:1"', '"nowhere.invalid:9092"'))
    ended = stream_svt("check", "-c", config)
    assert (ended.code, "nowhere.invalid" in ended.err) == (3, True), ended.err


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (("shop.yaml", "town.yml"), "; did you mean 'shop.yaml'?"),
        (("monitors.yaml",), "; its directory has monitors.yaml"),
        ((), "; no YAML file is there: 'stream-svt demo --show-config' prints one to begin with"),
    ],
    ids=["near", "other", "none"],
)
def test_a_mistyped_path_is_answered_with_the_files_of_its_directory(stream_svt, tmp_path, names, hint):
    (tmp_path / "files").mkdir()
    for name in names:
        (tmp_path / "files" / name).touch()
    missing = tmp_path / "files" / "shpo.yaml"
    for command in (("check",), ("forward", "--check")):
        ended = stream_svt(*command, "-c", missing)
        assert ended.code == 2
        assert (
            ended.err
            == f"stream-svt: {missing}: 1 problem\n  cannot be read: No such file or directory{hint}\n"
        )


# prove


def test_prove_prints_what_was_tested_and_that_every_comparison_held(stream_svt, config):
    ended = stream_svt("prove", "-c", config, "--cases", "5")
    assert (ended.code, ended.err) == (0, "")
    same, other = (stream_svt("prove", "-c", config, "--cases", "5", "--seed", seed).out for seed in (0, 1))
    assert ended.out == same != other
    assert "Tested 5 pairs of neighbouring streams on 1 monitor:" in ended.out
    assert "Every comparison held" in ended.out
    assert "This is a test of the program, not a proof" in ended.out


def test_a_counterexample_is_exit_code_one_and_names_case_and_seed(stream_svt, config, monkeypatch):
    original = Engine.step

    def step(self, batch):
        done = original(self, batch)
        return done._replace(urgent=bool(batch.whole.sum() % 2))

    monkeypatch.setattr(Engine, "step", step)
    ended = stream_svt("prove", "-c", config, "--cases", "20", "--seed", "3")
    assert ended.code == 1
    assert "COUNTEREXAMPLE in case 0 of seed 3: a step (observation " in ended.out
    assert "Every comparison held" not in ended.out


def test_the_whole_application_is_shown_from_its_events_however_many_datasets_it_has(capsys):
    shards = [
        {
            "shard": 0,
            "events": 12,
            "time": "2026-11-26T04:00:00.000Z",
            "command": 3,
            "version": 2,
            "successor": "",
        },
        {"shard": 1, "events": 0, "time": "", "command": 0, "version": None, "successor": ""},
    ]
    datasets = [
        {"dataset": f"d{number}", "measure": "epsilon", "limit": 4.0, "spent": 0.5, "reserved": 0.25}
        for number in range(60)
    ]
    last = STATUS["datasets"][0] | {"dataset": "d59"}
    blind = last["monitors"][0] | {"state": "paused", "since": 1_785_000_000_000}
    stopped = {**STATUS["shards"][0], "shard": 1, "state": "parked", "cause": "sealing-key"}
    page = STATUS | {"shards": [stopped], "datasets": [last | {"monitors": [blind]}]}
    found = {"application": "shop", "workers": None, "shards": shards, "declared": 61, "datasets": datasets}
    show_whole(found | {"pages": [page], "without_page": "1 of 2 workers silent"})
    out = capsys.readouterr().out
    assert "shop: an unknown number of workers in the group" in out
    assert "1 of 2 workers silent" in out
    silent, parked = [line for line in out.splitlines() if "not known" in line or "sealing-key" in line][:2]
    assert ("2026-11-26 04:00:00 UTC" in silent, "parked" in parked) == (True, True)
    assert out.index("│ d59 ") < out.index("│ d0 ")
    assert "paused since 2026-07-25 17:20:00 UTC" in out
    assert "paused: an operator paused it: stream-svt control resume" in out
    assert "60 datasets: epsilon 30 of 240 spent, 15 reserved" in out
    assert "1 declared dataset without an account in the events read" in out
    assert "│ d48 " in out
    assert "│ d49 " not in out
    assert ".. and 10 more: --json has them all" in out


@pytest.mark.parametrize("versions", [False, True])
async def test_only_versions_that_are_shown_and_not_known_yet_are_searched_for(config, monkeypatch, versions):
    facts = ApplicationFacts({0: ShardFacts(version=(7, "a")), 1: ShardFacts(), 2: ShardFacts()})
    searched = []

    async def read_adopted(_config, _cluster, _most, shards):
        searched.append(shards)
        return {1: (6, "b")}

    for name, answer in (("workers", []), ("pages", []), ("read_facts", facts)):
        monkeypatch.setattr(whole, name, AsyncMock(return_value=answer))
    monkeypatch.setattr(whole, "read_adopted", read_adopted)
    found = await whole.read_whole(common.load(config), versions=versions)
    assert searched == ([[1, 2]] if versions else [])
    assert [one["version"] for one in found["shards"]] == [7, 6 if versions else None, None]


@pytest.mark.loopback
def test_an_address_beside_a_configuration_asks_that_worker_alone(stream_svt, worker_page, config):
    ended = stream_svt("status", "-c", config, "--url", worker_page[0])
    assert (ended.code, f"Worker {STATUS['worker']} alone" in ended.out) == (0, True)


@pytest.mark.parametrize(("series", "length"), [("", 0), ("x" * 257, 257)])
def test_a_series_that_no_query_can_have_is_refused_before_it_is_sent(stream_svt, config, series, length):
    ended = stream_svt("control", "mute", "-c", config, "today", "--series", series, "--for", "1h")
    assert ended.code == 2
    assert f"a series has 1 to 256 characters, this one has {length}." in ended.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            [],
            "event=sources_need_a_counter note=\"sources are counted only while 'stream-svt count -c web.yaml' runs",
        ),
        (["--with-counter"], "event=counter_log file={}/web.counter.log"),
        (["--with-counter", "--counter-log", "own.log"], "event=counter_log file={}/own.log"),
    ],
)
def test_a_worker_says_that_sources_need_a_counter_or_where_the_log_of_its_own_is(
    stream_svt, config, tmp_path, monkeypatch, caplog, options, said
):
    monkeypatch.setattr("stream_svt.hosting.faust_app.run", lambda *_, **__: 0)
    monkeypatch.setattr("stream_svt.counting.process.beside", lambda *_: contextlib.nullcontext())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web.yaml").write_text(WEB)
    caplog.set_level("INFO", "stream_svt.cli")
    assert stream_svt("run", "-c", config).code == 0
    assert caplog.messages == []  # it has no source
    assert stream_svt("run", "-c", "web.yaml", *options).code == 0
    [message] = caplog.messages
    assert message.startswith(said.format(tmp_path))
    assert [one.levelname for one in caplog.records] == ["INFO" if options else "WARNING"]
