"""The neighbour test as a command: what it prints, and its exit code where something is found."""

from __future__ import annotations

from dataclasses import replace

from stream_svt.monitor.engine import Engine


def test_it_says_what_was_tried_and_that_every_comparison_held(stream_svt, config):
    ended = stream_svt("prove", "-c", config, "--cases", "5")
    assert (ended.code, ended.err) == (0, "")
    assert "Tried 5 pairs of neighbouring streams on 1 monitor:" in ended.out
    assert "Every comparison held" in ended.out
    assert "This is a test of the program, not the proof" in ended.out


def test_a_counterexample_is_exit_code_one_and_names_case_and_seed(stream_svt, config, monkeypatch):
    original = Engine.step

    def step(self, batch):
        done = original(self, batch)
        return replace(done, urgent=bool(batch.whole.sum() % 2))

    monkeypatch.setattr(Engine, "step", step)
    ended = stream_svt("prove", "-c", config, "--cases", "20", "--seed", "3")
    assert ended.code == 1
    assert "COUNTEREXAMPLE in case 0 of seed 3: a step (number " in ended.out
    assert "Every comparison held" not in ended.out


def test_the_same_seed_tries_the_same_streams(stream_svt, config):
    first, second, other = (
        stream_svt("prove", "-c", config, "--cases", "2", "--seed", seed).out for seed in "112"
    )
    assert first == second != other
