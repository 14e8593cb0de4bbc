"""The soak counts its cases, and its exit code tells a broken proof."""

from __future__ import annotations

import pytest

from tests.exact import soak
from tests.exact.mutants import HalfTheNoise, base, stream


def test_a_soak_tells_how_many_cases_held(monkeypatch, capsys):
    monkeypatch.setattr(soak, "forms", lambda: {"sound": stream(base()), "also": stream(base(cutoff=1))})
    assert soak.main(["--count", "7"]) == 0
    assert capsys.readouterr().out == "soak.alignment count 14 violations 0\n"


def test_a_soak_names_the_form_that_breaks_the_proof_and_fails(monkeypatch, capsys):
    broken = stream(base(of=HalfTheNoise))
    monkeypatch.setattr(soak, "forms", lambda: {"sound": stream(base()), "half the noise": broken})
    assert soak.main(["--count", "50"]) == 1
    named, totals = capsys.readouterr().out.splitlines()
    assert named.startswith("half the noise: of 50 cases 0 told something else, 0 moved noise down, ")
    assert totals.startswith("soak.alignment count 100 violations ")
    assert not totals.endswith(" 0")


def test_a_soak_of_nothing_is_refused(capsys):
    with pytest.raises(SystemExit):
        soak.main(["--count", "0"])
    assert "at least one case" in capsys.readouterr().err
