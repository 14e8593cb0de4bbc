"""The demo's configuration is one that a user could take over."""

from __future__ import annotations

from stream_svt.demo import config
from stream_svt.demo.config import Setting
from stream_svt.demo.session import run_demo


def test_show_config_prints_it_and_starts_nothing(capsys, clock):
    assert run_demo(show_config=True) == 0
    assert capsys.readouterr().out == config.yaml(Setting(), clock)


def test_it_declares_each_week_with_its_own_budget_and_raises_no_notes(parsed, clock):
    assert parsed.spec.notes == ()
    datasets = parsed.spec.datasets
    assert [dataset.name for dataset in datasets] == clock.weeks()
    assert len({dataset.limit for dataset in datasets}) == 2


def test_a_set_holds_every_item_and_the_stream_fits_the_exposure(parsed, clock):
    append, adaptive = parsed.spec.monitors
    points = [point for point in clock.checkpoints() if point.dataset == clock.weeks()[0]]
    assert append.append.max_set_size == 16_470
    assert adaptive.expected_queries == len(points) * 16_470
