"""An engine that is given up leaves memory at once, whatever the collector does."""

from __future__ import annotations

import gc
import weakref

from tests.support.engine_play import Play
from tests.support.monitor_forms import FORMS, TOPIC, spec_of, stream


def test_a_discarded_engine_is_gone_without_a_collector() -> None:
    play = Play(spec_of(*FORMS.values(), datasets="{names: [a, b, c], limit: 90, unit: one basket}"))
    play.feed(TOPIC, stream(5, 300), 300)  # the last runs opened are not committed
    known = weakref.ref(play.engine)
    gc.disable()
    try:
        play.engine.discard()
        del play
        assert known() is None
    finally:
        gc.enable()
