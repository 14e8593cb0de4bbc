"""The picture of planning.md: a backtest of the README's monitor on values as believed, with noise of fixed keys."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.papers import drawing
from stream_svt.application.config import parse_config
from stream_svt.operate import backtest_plot
from stream_svt.planning import Belief
from stream_svt.settings.periods import DAY_MS
from stream_svt.sources.replay import Replay

_CONFIG = """
application: web-watch
kafka: {bootstrap_servers: "127.0.0.1:9092"}
sources:
  - {name: requests, topic: web.requests, unit: user, window: 6h, dataset: "web-{date}",
     series: {field: page, names: [/, /search, /product, /cart, /checkout]}}
datasets:
  - {generate: "web-{date}", every: 15d, from: 2026-11-28, lateness: 6h, limit: {epsilon: 1.5, per: 30d}}
monitors:
  - {name: many-users, source: requests, detect: {above: 500, surely_from: 700, alerts: 20, per: 30d}, mute: 2d}
"""
_DAYS = 45


def draw(path: Path) -> None:
    """Draw 45 days of values, one in 20 of which lies above the threshold."""
    spec = parse_config(_CONFIG).spec
    [source], [monitor] = spec.sources, spec.monitors
    if monitor.detect is None:
        raise ValueError("the picture is of a monitor with detect")
    first_ms = int(datetime(2026, 11, 28, tzinfo=UTC).timestamp() * 1000)
    levels, entropy = {monitor.name: monitor.detect.surely_from}, random.Random(1).randbytes  # noqa: S311 - a picture
    replay = Replay(spec, source, levels, first_ms, first_ms + _DAYS * DAY_MS - source.window, 8, entropy)
    belief = Belief(positives=0.05, above=160, below=250).central(1)
    replay.play_belief(belief, _DAYS * DAY_MS // source.window, np.random.default_rng(1))
    title = "Backtest of web-watch: on values as believed; no data was read"
    drawing.save(path, partial(backtest_plot.draw, [(replay, [monitor.name])], title))
