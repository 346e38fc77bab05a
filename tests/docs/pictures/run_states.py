"""The life of a run: the states and legal transitions of the model, in places chosen here."""

from __future__ import annotations

from evertick.model import TRANSITIONS, State, Verdict
from pictures.drawing import Box, Canvas, Point

__all__ = ["draw"]

_SUBTITLES = {
    State.WAITING: "for time or a slot",
    State.BLOCKED: "by a limit or a run",
    State.PARKED: "quarantined",
    State.RUNNING: "claimed by a node",
    State.DISPATCHED: "in an external queue",
}
_BOXES = {
    State.BLOCKED: Box(130, 92, 150, 50),
    State.WAITING: Box(310, 228, 150, 50),
    State.RUNNING: Box(620, 228, 150, 50),
    State.DISPATCHED: Box(620, 92, 150, 50),
    State.PARKED: Box(465, 352, 150, 50),
    State.DONE: Box(450, 478, 820, 46),
}
_FLOOR = _BOXES[State.DONE].top

# The way of each transition, and the place and lines of its label.
_WAYS: dict[tuple[State, State], tuple[list[Point], Point, list[str], str]] = {
    (State.WAITING, State.RUNNING): ([(385, 218), (545, 218)], (465, 210), ["claimed"], "middle"),
    (State.RUNNING, State.WAITING): (
        [(545, 238), (385, 238)],
        (465, 255),
        ["retried, released,", "or its node died"],
        "middle",
    ),
    (State.WAITING, State.BLOCKED): ([(235, 228), (160, 228), (160, 117)], (168, 198), ["limit", "reached"], ""),
    (State.BLOCKED, State.WAITING): (
        [(205, 82), (268, 82), (268, 203)],
        (212, 74),
        ["earlier run ended, or limit has room"],
        "",
    ),
    (State.WAITING, State.PARKED): ([(315, 253), (315, 362), (390, 362)], (388, 380), ["task unknown"], "right"),
    (State.PARKED, State.WAITING): (
        [(390, 342), (345, 342), (345, 253)],
        (352, 300),
        ["a node can", "run it"],
        "",
    ),
    (State.RUNNING, State.PARKED): (
        [(590, 253), (590, 352), (540, 352)],
        (583, 290),
        ["arguments unfit,", "or row unreadable"],
        "right",
    ),
    (State.RUNNING, State.RUNNING): (
        [(695, 216), (725, 216), (725, 240), (695, 240)],
        (733, 224),
        ["taken over from", "a dead node"],
        "",
    ),
    (State.RUNNING, State.DISPATCHED): ([(620, 203), (620, 117)], (628, 164), ["by its driver"], ""),
    (State.DISPATCHED, State.WAITING): (
        [(545, 106), (352, 106), (352, 203)],
        (361, 124),
        ["worker failed, fell silent,", "released it, or none took it"],
        "",
    ),
    (State.DISPATCHED, State.DONE): (
        [(695, 92), (845, 92), (845, _FLOOR)],
        (837, 330),
        ["worker reported", "the end,", "cancelled, lost"],
        "right",
    ),
    (State.RUNNING, State.DONE): ([(640, 253), (640, _FLOOR)], (648, 404), ["outcome written"], ""),
    (State.PARKED, State.DONE): ([(465, 377), (465, _FLOOR)], (473, 412), ["cancelled,", "replaced"], ""),
    (State.WAITING, State.DONE): ([(270, 253), (270, _FLOOR)], (262, 344), ["cancelled,", "expired"], "right"),
    (State.BLOCKED, State.DONE): ([(95, 117), (95, _FLOOR)], (103, 344), ["cancelled"], ""),
}


def draw() -> str:
    legal = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    assert set(_WAYS) == legal, f"the picture and the model differ: {set(_WAYS) ^ legal}"
    canvas = Canvas(
        900,
        476,
        "The life of a run",
        "; ".join(f"{before} to {after}: {' '.join(lines)}" for (before, after), (_, _, lines, _) in _WAYS.items()),
        top=44,
    )
    for points, _, _, _ in _WAYS.values():
        canvas.arrow(points)
    canvas.circle(310, 152, 6)
    canvas.arrow([(310, 158), (310, 203)])
    canvas.label(310, 140, ["recorded"], "middle")
    for state, box in _BOXES.items():
        if state is State.DONE:
            canvas.box(box, "end", "done", [" · ".join(Verdict)])
        else:
            kind = "main" if state in (State.RUNNING, State.DISPATCHED) else "other"
            canvas.box(box, kind, state.value, [_SUBTITLES[state]])
    for _, (x, y), lines, kind in _WAYS.values():
        canvas.label(x, y, lines, kind)
    return canvas.svg()
