"""Two revisions are told apart where their figures differ by more than noise, and nothing is left behind."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import comparison
from benchmarks.comparison import Failed, Moved

TINY = """
import pathlib, subprocess, sys
count = pathlib.Path("count"); turn = int(count.read_text()) if count.exists() else 0; count.write_text(str(turn + 1))
assert sys.argv[1:] == ["--size", "3"]
imported = "import stream_svt; print(stream_svt.__file__)"
place = subprocess.check_output([sys.executable, "-P", "-c", imported], cwd="/", text=True)
assert pathlib.Path(place.strip()) == pathlib.Path("stream_svt/__init__.py").resolve()
print("tiny.moved", {moved} + turn % 3)
print("tiny.stays", 5 + turn % 3)
print("tiny.{own}", 1)
print("no figure")
"""

SLOW = """
import pathlib, time
pathlib.Path({began!r}).touch()
try:
    time.sleep(60)
finally:
    pathlib.Path({ended!r}).touch()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose working tree is not committed, and has another worktree."""
    root = tmp_path / "repository"
    for room in ("benchmarks", "stream_svt"):
        (root / room).mkdir(parents=True)
        (root / room / "__init__.py").touch()
    tiny = root / "benchmarks" / "tiny.py"
    tiny.write_text(TINY.format(moved=10, own="old"))
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    git(root, "worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
    tiny.write_text(TINY.format(moved=20, own="new"))
    return root


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_working_tree_is_compared_with_a_revision_as_it_was_committed(repository, capsys):
    worktrees = git(repository, "worktree", "list")
    moved = comparison.compare(repository, "HEAD", ["tiny --size 3"], turns=8)
    assert list(moved) == ["tiny.moved", "tiny.stays"]
    assert moved["tiny.moved"].before[:4] == [10, 11, 12, 10]
    assert moved["tiny.moved"].after[:4] == [20, 21, 22, 20]
    lines = dict(line.split("  ", 1) for line in comparison.report(moved))
    assert "moved by +90.9 %" in lines["tiny.moved"]
    assert "not beyond its noise" in lines["tiny.stays"]
    said = capsys.readouterr().err
    assert "tiny.old is of one revision only" in said
    assert "tiny.new is of one revision only" in said
    assert git(repository, "worktree", "list") == worktrees
    assert "tiny.py" in git(repository, "status", "--short")


def test_a_benchmark_that_fails_is_shown_and_leaves_no_worktree(repository):
    worktrees = git(repository, "worktree", "list")
    with pytest.raises(Failed, match="AssertionError"):
        comparison.compare(repository, "HEAD", ["tiny"], turns=8)
    assert git(repository, "worktree", "list") == worktrees


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_comparison_that_is_stopped_lets_its_benchmark_end_and_leaves_no_worktree(
    repository, tmp_path, number
):
    began, ended = tmp_path / "began", tmp_path / "ended"
    for module in ("command", "comparison"):
        shutil.copy(f"benchmarks/{module}.py", repository / "benchmarks")
    (repository / "benchmarks" / "slow.py").write_text(SLOW.format(began=str(began), ended=str(ended)))
    git(repository, "add", ".")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "second")
    worktrees = git(repository, "worktree", "list")
    program = "import sys; from benchmarks.comparison import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "HEAD", "slow"]
    with subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, text=True) as comparing:
        while not began.exists():
            assert comparing.poll() is None
            time.sleep(0.05)
        comparing.send_signal(number)
        said = comparing.communicate()[1]
    assert comparing.returncode == 130
    assert said.endswith("benchmarks/compare: interrupted; nothing was compared\n")
    assert ended.exists()
    assert git(repository, "worktree", "list") == worktrees


def test_a_revision_that_does_not_exist_is_an_error(repository):
    with pytest.raises(Failed, match="'nothing' cannot be checked out"):
        comparison.compare(repository, "nothing", ["tiny"], turns=8)


def test_a_package_that_is_not_the_trees_own_is_never_measured(repository):
    (repository / "stream_svt" / "__init__.py").unlink()
    with pytest.raises(Failed, match="imports the package from"):
        comparison.compare(repository, "HEAD", ["tiny --size 3"], turns=8)


def test_of_figures_that_did_not_move_few_are_said_to_have():
    chance = random.Random(1)

    def noisy() -> list[float]:
        return [100 * chance.lognormvariate(0, 0.1) for _ in range(comparison.TURNS)]

    found = [Moved(noisy(), noisy()).chance <= comparison.LEVEL for _ in range(1000)]
    assert sum(found) <= 20


def test_a_change_below_the_noise_of_single_turns_is_found_and_one_disturbed_turn_hides_none():
    chance = random.Random(2)
    machine = [chance.lognormvariate(0, 0.3) for _ in range(comparison.TURNS)]
    before = [100 * slow * chance.lognormvariate(0, 0.02) for slow in machine]
    after = [110 * slow * chance.lognormvariate(0, 0.02) for slow in machine]
    assert comparison.spread(before) > 10
    assert str(Moved(before, after)).startswith("moved by +")
    after[3] = 0.97 * before[3]
    assert Moved(before, after).chance <= comparison.LEVEL


@pytest.mark.parametrize("turns", [comparison.FEWEST, comparison.TURNS])
def test_the_fewest_turns_suffice_to_show_a_change_and_equal_figures_show_none(turns):
    before = [1.0 + turn for turn in range(turns)]
    assert Moved(before, [1.1 + one for one in before]).chance <= comparison.LEVEL
    assert Moved([1.0] * turns, [1.0] * turns).chance == 1
    assert str(Moved([0.0] * turns, [1.0] * turns)) == "moved by +inf %"
