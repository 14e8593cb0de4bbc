"""`backtest` without brokers: what believed values give, and what is refused before anything is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stream_svt.cli import backtesting
from stream_svt.errors import StreamSvtError
from tests.support.sources import WEB

BELIEF = ("--positives", "1%", "--above", 200, "--below", 300)


@pytest.fixture
def file(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web.yaml").write_text(WEB)
    return tmp_path / "web.yaml"


def test_believed_values_are_played_without_brokers_and_files(file, stream_svt):
    one = ("--monitor", "many-users")
    ended = stream_svt("backtest", "-c", file, *one, "--from", "10d", "--draws", 2, "--synthetic", *BELIEF)
    assert ended.code == 0
    assert "No data was read, and nothing was spent." in ended.out
    [row] = [text.split() for text in ended.out.splitlines() if text.startswith("many-users")]
    assert 1 <= int(row[2]) <= 40  # of 1,200 values one in a hundred
    assert row[-2:] in (["of", "10"], ["of", "11"])  # days that ten days from now on touch
    assert [one.name for one in file.parent.iterdir()] == ["web.yaml"]
    assert ended.err.strip() == (
        "Source requests: plays 240 windows of 1h in 2 draws of noise; fewer with --from and --draws."
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--monitor", "many"), "--monitor must be one of many-users, many-errors."),
        (("--surely-from", 700), "are for one monitor: name it with --monitor."),
        (("--synthetic", *BELIEF), "are for one monitor: name it with --monitor."),
        (("--monitor", "many-users", "--synthetic"), "Missing option '--positives'."),
        (BELIEF, "--positives, --above and --below need --synthetic."),
        (("--surely-from", "high"), "'high' is not a number such as 700."),
        (("--output", "missing/report.txt"), "--output: missing/report.txt: No such file or directory."),
        (("--plot", "web.txt"), "--plot: web.txt must end in .svg, .png, .pdf."),
        (("--plot", "missing/plot.svg"), "--plot: missing/plot.svg: No such file or directory."),
        (("--output", "web.yaml"), "--output: web.yaml is there; remove it, or name another file."),
    ],
)
def test_what_contradicts_is_refused(file, stream_svt, options, why):
    ended = stream_svt("backtest", "-c", file, *options)
    assert ended.code == 2
    assert why in ended.err


SYNTHETIC = ("--monitor", "many-users", "--from", "1d", "--draws", 2, "--synthetic", *BELIEF)


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_picture_is_for_its_owner_alone_and_replaces_no_file(file, stream_svt, suffix, start):
    plot = file.parent / f"plot.{suffix}"
    ended = stream_svt("backtest", "-c", file, *SYNTHETIC, "--plot", plot)
    assert ended.code == 0
    assert plot.read_bytes().startswith(start)
    assert plot.stat().st_mode & 0o777 == 0o600
    again = stream_svt("backtest", "-c", file, *SYNTHETIC, "--plot", plot)
    assert again.code == 2
    assert f"--plot: {plot} is there; remove it, or name another file." in again.err
    assert plot.read_bytes().startswith(start)


def test_a_picture_says_what_it_shows(file, stream_svt):
    ended = stream_svt("backtest", "-c", file, *SYNTHETIC, "--plot", file.parent / "plot.svg")
    assert ended.code == 0
    text = (file.parent / "plot.svg").read_text()
    assert "<!-- Backtest of web: on values as believed; no data was read -->" in text
    assert not {"private", "epsilon", "guarantee"} & {word.strip(".,:;") for word in text.lower().split()}


def test_after_an_error_no_picture_is_left(file, stream_svt, monkeypatch):
    def breaks(*_: object) -> None:
        raise StreamSvtError("it broke")

    monkeypatch.setattr("stream_svt.operate.backtest_plot.draw", breaks)
    assert stream_svt("backtest", "-c", file, *SYNTHETIC, "--plot", "plot.svg").code == 1
    assert [one.name for one in file.parent.iterdir()] == ["web.yaml"]


def test_a_picture_needs_matplotlib_and_has_few_monitors_before_anything_is_played(
    file, stream_svt, monkeypatch
):
    monkeypatch.setattr("stream_svt.operate.backtest_plot.MOST", 1)
    many = stream_svt("backtest", "-c", file, "--plot", "plot.svg")
    assert (many.code, "--plot is for 1 monitors at most, of 2: name one" in many.err) == (2, True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ended = stream_svt("backtest", "-c", file, *SYNTHETIC, "--plot", "plot.svg")
    assert (ended.code, "--plot: a plot needs matplotlib, which is not installed" in ended.err) == (2, True)
    assert [one.name for one in file.parent.iterdir()] == ["web.yaml"]


def test_monitors_of_query_topics_are_refused(config, stream_svt):
    ended = stream_svt("backtest", "-c", config)
    assert ended.code == 2
    assert "monitors: none tests counts of a source of events, and only these are replayed" in ended.err


def test_incidents_begin_where_a_monitor_shall_surely_detect(file, stream_svt):
    keys = "measure: visitors, epsilon: 1, cutoff: 5, threshold: 500, mute: 1h"
    assert keys in WEB
    file.write_text(
        WEB.replace(keys, "measure: visitors, detect: {above: 500, surely_from: 1234, alerts: 5}")
    )
    ended = stream_svt(
        "backtest", "-c", file, "--monitor", "many-users", "--draws", 1, "--synthetic", *BELIEF
    )
    [row] = [text.split() for text in ended.out.splitlines() if text.startswith("many-users")]
    assert row[1] == "1,234"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_up_to_which_window_it_was_played(file, stream_svt, monkeypatch, is_terminal):
    monkeypatch.setattr(backtesting, "_PROGRESS_SECONDS", 0)
    monkeypatch.setattr(backtesting, "_is_terminal", lambda: is_terminal)
    options = ("--monitor", "many-users", "--from", "3h", "--draws", 1, "--synthetic", *BELIEF)
    ended = stream_svt("backtest", "-c", file, *options)
    assert ended.err.count("\rplayed up to 20") == (3 if is_terminal else 0)


def test_the_report_is_made_before_anything_is_read_and_removed_after_an_error(file, stream_svt, monkeypatch):
    seen = list[tuple[str, int]]()

    async def fail(*_args: object) -> None:
        seen.extend((one.name, one.stat().st_mode & 0o777) for one in file.parent.glob("*.txt"))
        raise StreamSvtError("no window")

    monkeypatch.setattr("stream_svt.operate.backtesting.backtest", fail)
    assert stream_svt("backtest", "-c", file).code == 1
    assert seen == [("backtest-web.txt", 0o600)]
    assert [one.name for one in file.parent.iterdir()] == ["web.yaml"]
