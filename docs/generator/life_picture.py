"""The life of a monitor on one dataset as a picture, from the table of transitions."""

from __future__ import annotations

from typing import Final

from matplotlib.patches import FancyBboxPatch

from docs.generator.drawing import BLUE, GREEN, ORANGE, PAPER, SOFT, Drawing, Point, arrow, say
from stream_svt.monitor.life_cycle import TRANSITIONS, Signal, State

_STATES: Final[dict[State, tuple[Point, str]]] = {
    State.IDLE: ((110, 110), BLUE),
    State.RUNNING: ((360, 110), GREEN),
    State.HALTED: ((610, 110), BLUE),
    State.EXHAUSTED: ((360, 300), ORANGE),
}
# From border to border: start, pull, end, place of the words and how they are set. Every change of state has a row.
_ARROWS: Final[dict[tuple[State, State], tuple[Point, Point, Point, Point, str]]] = {
    (State.IDLE, State.RUNNING): ((174, 110), (235, 110), (296, 110), (235, 101), "center"),
    (State.IDLE, State.HALTED): ((130, 87), (360, -40), (590, 87), (360, 18), "center"),
    (State.IDLE, State.EXHAUSTED): ((150, 133), (200, 230), (296, 285), (236, 200), "left"),
    (State.RUNNING, State.RUNNING): ((330, 133), (360, 205), (390, 133), (360, 186), "center"),
    (State.RUNNING, State.HALTED): ((424, 102), (485, 92), (546, 102), (485, 70), "center"),
    (State.HALTED, State.RUNNING): ((546, 120), (485, 130), (424, 120), (485, 142), "center"),
    (State.HALTED, State.EXHAUSTED): ((580, 133), (540, 230), (424, 288), (496, 214), "right"),
    (State.EXHAUSTED, State.IDLE): ((296, 310), (120, 310), (95, 133), (172, 318), "right"),
    (State.EXHAUSTED, State.HALTED): ((424, 312), (610, 310), (630, 133), (560, 318), "left"),
}


def picture() -> str:
    """Return the picture.

    Raises:
        KeyError: A transition has no arrow yet.
    """
    changes: dict[tuple[State, State], list[Signal]] = {}
    for (state, signal), to in TRANSITIONS.items():
        if to is not state or signal is Signal.TOP:
            changes.setdefault((state, to), []).append(signal)
    said = [f"From {state} to {to}: {', '.join(signals)}." for (state, to), signals in changes.items()]
    words = " ".join(["A monitor begins idle.", *said])
    sheet = (drawing := Drawing(720, 350, "Life of a monitor on one dataset", words)).sheet()
    for ends, signals in changes.items():
        *points, (x, y), anchor = _ARROWS[ends]
        arrow(sheet, *points, colour=SOFT)
        rows = [", ".join(signals[at : at + 2]) for at in range(0, len(signals), 2)]
        for row, text in enumerate(rows):
            say(sheet, (x, y + 16 * row), text + "," * (row + 1 < len(rows)), size=12.5, ha=anchor)
    arrow(sheet, (16, 110), (44, 110), colour=SOFT)
    sheet.plot(12, 110, "o", color=SOFT, markersize=10)
    for state, ((x, y), colour) in _STATES.items():
        for look in (
            {"facecolor": PAPER},
            {"facecolor": colour, "alpha": 0.15},
            {"facecolor": "none", "edgecolor": colour, "linewidth": 1.5},
        ):
            box = FancyBboxPatch((x - 64, y - 23), 128, 46, "round,pad=0,rounding_size=10", **look)
            sheet.add_patch(box)
        say(sheet, (x, y), state, shift=(0, -5), size=15, ha="center", weight="bold")
    return drawing.svg()
