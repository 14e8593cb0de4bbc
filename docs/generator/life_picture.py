"""The life of a monitor on one dataset as a picture, from the table of transitions."""

from __future__ import annotations

from typing import Final

from docs.generator.drawing import Anchor, Drawing, Point
from stream_svt.monitor.life_cycle import TRANSITIONS, Signal, State

_BOX: Final = (128.0, 46.0)
_CENTRES: Final[dict[State, Point]] = {
    State.IDLE: (110, 110),
    State.RUNNING: (360, 110),
    State.HALTED: (610, 110),
    State.EXHAUSTED: (360, 300),
}
# From border to border: start, pull, end, place of the words and how they are set. Every change of state has a row.
_ARROWS: Final[dict[tuple[State, State], tuple[Point, Point, Point, Point, Anchor]]] = {
    (State.IDLE, State.RUNNING): ((174, 110), (235, 110), (296, 110), (235, 101), "middle"),
    (State.IDLE, State.HALTED): ((130, 87), (360, -40), (590, 87), (360, 18), "middle"),
    (State.IDLE, State.EXHAUSTED): ((150, 133), (200, 230), (296, 285), (236, 200), "start"),
    (State.RUNNING, State.RUNNING): ((330, 133), (360, 205), (390, 133), (360, 186), "middle"),
    (State.RUNNING, State.HALTED): ((424, 102), (485, 92), (546, 102), (485, 70), "middle"),
    (State.HALTED, State.RUNNING): ((546, 120), (485, 130), (424, 120), (485, 142), "middle"),
    (State.HALTED, State.EXHAUSTED): ((580, 133), (540, 230), (424, 288), (496, 214), "end"),
    (State.EXHAUSTED, State.IDLE): ((296, 310), (120, 310), (95, 133), (172, 318), "end"),
    (State.EXHAUSTED, State.HALTED): ((424, 312), (610, 310), (630, 133), (560, 318), "start"),
}


def picture() -> str:
    """Return the picture.

    Raises
    ------
    KeyError
        A transition has no arrow yet.
    """
    changes: dict[tuple[State, State], list[Signal]] = {}
    for (state, signal), to in TRANSITIONS.items():
        if to is not state or signal is Signal.TOP:
            changes.setdefault((state, to), []).append(signal)
    said = [f"From {state} to {to}: {', '.join(signals)}." for (state, to), signals in changes.items()]
    drawing = Drawing(
        720, 350, "Life of a monitor on one dataset", " ".join(["A monitor begins idle.", *said])
    )
    for ends, signals in changes.items():
        start, pull, end, words, anchor = _ARROWS[ends]
        drawing.curve(start, pull, end, colour="soft")
        for row, text in enumerate(_rows(signals)):
            drawing.text((words[0], words[1] + 16 * row), text, size=12.5, anchor=anchor)
    drawing.arrow((16, 110), (44, 110), colour="soft")
    drawing.dot((12, 110), colour="soft", radius=5)
    for state, (x, y) in _CENTRES.items():
        colour = {State.RUNNING: "green", State.EXHAUSTED: "orange"}.get(state, "blue")
        corner = (x - _BOX[0] / 2, y - _BOX[1] / 2)
        drawing.box(corner, *_BOX, fill="paper", radius=10)
        drawing.box(corner, *_BOX, fill=colour, stroke=colour, opacity=0.15, radius=10)  # type: ignore[arg-type]
        drawing.text((x, y + 5), state, size=15, anchor="middle", bold=True)
    return drawing.svg()


def _rows(signals: list[Signal]) -> list[str]:
    return [
        ", ".join(signals[at : at + 2]) + ("," if at + 2 < len(signals) else "")
        for at in range(0, len(signals), 2)
    ]
