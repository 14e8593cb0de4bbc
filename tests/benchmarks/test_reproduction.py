"""The reproduction of the papers: it runs, repeats itself, and the committed page says what the files say."""

from __future__ import annotations

import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the figures need matplotlib, of the extra `benchmarks`")

from benchmarks import reproduction
from benchmarks.papers import exponential_noise, unbounded_quantile
from benchmarks.papers.effort import Effort
from benchmarks.papers.report import Claim, Verdict, listed, surprises
from benchmarks.papers.table import measured, middle, paired_ratio, read

PAGE = reproduction.DOCS / "reproduction.md"
FILES = reproduction.DOCS / "reproduction"


TRIALS = ["--trials", "0.0001"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """Return where the command writes with few trials, and what it prints; the tracked files stay as they are."""
    place, printed = tmp_path_factory.mktemp("made"), StringIO()
    before = {file: file.read_bytes() for file in (PAGE, *FILES.iterdir())}
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(printed):
        patched.setattr(exponential_noise, "EPSILONS", ("1",))
        patched.setattr(tempfile, "tempdir", str(place))
        reproduction.main(TRIALS)
    assert {file: file.read_bytes() for file in (PAGE, *FILES.iterdir())} == before
    [docs] = place.glob("stream-svt-reproduction-*")
    return docs, dict(line.split(" ") for line in printed.getvalue().splitlines())


def test_the_command_measures_draws_and_fills_the_page(made):
    docs, printed = made
    claims = sum(len(report.claims) for report in reproduction.REPORTS.values())
    assert int(printed["reproduction.claims"]) == claims
    page = (docs / "reproduction.md").read_text(encoding="utf-8")
    assert sum(page.count(f"- **{verdict}**") for verdict in Verdict) == claims
    tables = {file.stem for file in (docs / "reproduction").glob("*.csv")}
    assert tables == set(reproduction.MEASUREMENTS)
    assert {file.name for file in FILES.iterdir()} == {
        file.name for file in (docs / "reproduction").iterdir()
    }


@pytest.mark.parametrize("options", [TRIALS, ["--seed", "2"]])
@pytest.mark.parametrize("refused", [["--docs", str(reproduction.DOCS)], ["--no-measuring"]])
def test_the_tracked_files_hold_the_usual_trials_of_the_usual_seed_only(options, refused):
    with pytest.raises(SystemExit):
        reproduction.main([*options, *refused])


def test_the_committed_page_says_what_the_committed_files_say():
    tables = {name: read(FILES, name) for name in reproduction.MEASUREMENTS}
    text = PAGE.read_text(encoding="utf-8")
    assert reproduction.page(text, tables) == text
    for report in reproduction.REPORTS.values():
        assert surprises(report.claims, tables) == []
    figures = list(FILES.glob("*.svg"))
    assert all(f"(reproduction/{figure.name})" in text for figure in figures)
    assert max(figure.stat().st_size for figure in figures) < 150_000


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_measurements(made, tmp_path):
    names = ("ding-adaptive", "ding-merges")
    for name in names:
        reproduction.MEASUREMENTS[name](Effort(scale=0.0001)).write(tmp_path)
    reproduction.REPORTS["ding"].draw({name: read(tmp_path, name) for name in names}, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    assert [one.read_bytes() for one in files] == [
        (made[0] / "reproduction" / one.name).read_bytes() for one in files
    ]
    before = (tmp_path / "ding-merges.csv").read_bytes()
    reproduction.MEASUREMENTS["ding-merges"](Effort(scale=0.0001, seed=2)).write(tmp_path)
    assert (tmp_path / "ding-merges.csv").read_bytes() != before


def test_measurements_medians_and_paired_ratios_come_with_their_standard_errors():
    assert measured("x", [1.0, 3.0, float("nan")]) == {"x": 2.0, "x_se": 1.0}, "what is unknown is left out"
    assert middle("x", range(101)) == {"x": 50.0, "x_se": 5.0}, "half the distance of the order statistics"
    ratio = paired_ratio("x", [2.0, 4.0, 9.0], [1.0, 2.0, 4.5])
    assert ratio["x"] == 2.0
    assert ratio["x_se"] == pytest.approx(0.0, abs=1e-12), "one is a multiple of the other"


def test_a_verdict_that_the_words_were_not_written_for_is_marked():
    claim = Claim("S.", Verdict.CONFIRMED, lambda _tables: (Verdict.REFUTED, "F."))
    assert "**not confirmed** (was confirmed)" in listed([claim], {})
    assert surprises([claim], {}) == ["S."]


def test_the_bounded_quantile_prefers_numbers_as_its_law_says():
    rng = np.random.default_rng(5)
    data = np.array([2, 2, 7])
    level, epsilon, bound, draws = 0.5, 2, 9, 10_000
    answers = [unbounded_quantile.bounded(data, level, epsilon, rng, bound) for _ in range(draws)]
    # Records below and up to each number 0..9, and the distance of rank 1.5 from them.
    below = np.array([0, 0, 0, 2, 2, 2, 2, 2, 3, 3])
    up_to = np.array([0, 0, 2, 2, 2, 2, 2, 3, 3, 3])
    weight = np.exp(epsilon / 2 * -np.maximum(np.maximum(below - 1.5, 1.5 - up_to), 0.0))
    expected = draws * weight / weight.sum()
    counts = np.bincount(np.array(answers, dtype=int), minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 34  # the chance of more is 10^-4 with 9 degrees


def test_the_unbounded_quantile_is_exact_when_epsilon_is_large():
    data = np.arange(1000)
    rng = np.random.default_rng(5)
    for noise in unbounded_quantile.FAMILIES.values():
        answer = unbounded_quantile.unbounded(data, unbounded_quantile.Fraction("0.9"), 1000, rng, noise)
        assert answer == pytest.approx(900, rel=0.002)


def test_the_candidates_in_floats_ask_what_the_mechanism_asks():
    data = np.sort(np.random.default_rng(5).integers(0, 3, 50))
    for level in (unbounded_quantile.Fraction("0.1"), unbounded_quantile.Fraction("0.75")):
        mechanism = unbounded_quantile.quantile_mechanism(level, 1, unbounded_quantile.Noise.LAPLACE)
        assert np.array_equal(
            unbounded_quantile.answers(data, level, 600, 200), mechanism.answers(data, 600, 200)
        )
