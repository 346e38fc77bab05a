"""The life of one fire: the file of each step, its room, and the method of the store that it calls."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from pages import ROOT

from evertick.store.base import Store
from pictures.drawing import Box, Canvas

__all__ = ["draw"]

_PACKAGE = ROOT / "src/evertick"
_LANES = (("engine",), ("ledger", "plan", "when"), ("store",), ("driver", "job"))
_KINDS = ("main", "other", "store", "end")
_GUTTER, _LANE, _TOP, _ROW = 126, 214, 58, 62
_BOX_WIDTH, _BOX_HEIGHT = 194, 44


class _File(NamedTuple):
    path: str
    does: str


class _Step(NamedTuple):
    title: str
    by: _File
    # One lane to the right, one below the other.
    calls: tuple[_File, ...] = ()
    # Of the store.
    method: str = ""


_STEPS = (
    _Step("Wake", _File("engine/loop.py", "sleeps until a fire is due")),
    _Step(
        "Read",
        _File("engine/fire.py", "Recorder.step"),
        (_File("store/sqlite/schedules.py", "what is due, without locks"),),
        "due_schedules",
    ),
    _Step(
        "Plan",
        _File("engine/fire.py", "a plan for each schedule"),
        (
            _File("ledger/planning.py", "inputs and cached rule"),
            _File("plan/plan.py", "runs, gaps and cursor"),
            _File("when/cron.py", "the following moment"),
        ),
    ),
    _Step(
        "Record",
        _File("engine/fire.py", "a batch of plans"),
        (_File("store/sqlite/fires.py", "one guarded transaction"),),
        "record_fires",
    ),
    _Step(
        "Claim",
        _File("engine/work.py", "Worker.step"),
        (_File("store/sqlite/claims.py", "a fence; checks limits"),),
        "claim",
    ),
    _Step(
        "Execute",
        _File("engine/work.py", "a task for each run"),
        (
            _File("driver/python/function.py", "or shell, HTTP, queue …"),
            _File("job/context.py", "what the job sees"),
        ),
    ),
    _Step("Judge", _File("engine/judge.py", "verdict, retry or release")),
    _Step(
        "Finish",
        _File("engine/finish.py", "a batch of outcomes"),
        (_File("store/sqlite/endings.py", "guarded by the fence"),),
        "finish",
    ),
)


def _lane(path: str) -> int:
    return next(number for number, rooms in enumerate(_LANES) if path.partition("/")[0] in rooms)


def _x(path: str) -> float:
    return _GUTTER + _LANE * (_lane(path) + 0.5)


def _rows() -> list[float]:
    """The middle of the first line of each step."""
    middles, y = [], _TOP + _ROW / 2
    for step in _STEPS:
        middles.append(y)
        y += _ROW * max(len(step.calls), 1)
    return middles


def draw() -> str:
    rows = _rows()
    width, height = _GUTTER + _LANE * len(_LANES) + 14, round(rows[-1] + _ROW / 2 + 18)
    words = "; ".join(f"{step.title}: {', '.join(each.path for each in (step.by, *step.calls))}" for step in _STEPS)
    canvas = Canvas(width, height, "One fire through the rooms", words)
    for number, rooms in enumerate(_LANES):
        canvas.panel(_GUTTER + _LANE * number + 3, 14, _LANE - 6, height - 28)
        canvas.text(_GUTTER + _LANE * (number + 0.5), 40, "   ".join(f"{room}/" for room in rooms), "ink middle title")
    _draw_order(canvas, rows)
    for number, (step, y) in enumerate(zip(_STEPS, rows, strict=True), 1):
        canvas.circle(26, y, 11, str(number))
        canvas.text(44, y + 4.5, step.title, "ink bold")
        _draw_step(canvas, step, y)
    return canvas.svg()


def _draw_order(canvas: Canvas, rows: list[float]) -> None:
    x, half = _x("engine/"), _BOX_HEIGHT / 2
    for before, after in pairwise(rows):
        canvas.arrow([(x, before + half), (x, after - half)])
    titles = [step.title for step in _STEPS]
    recorded, executed = rows[titles.index("Record")], rows[titles.index("Execute")]
    left = x - _BOX_WIDTH / 2
    canvas.arrow([(left, recorded), (left - 16, recorded), (left - 16, executed), (left, executed)], is_dashed=True)
    canvas.label(left - 22, recorded + 34, ["already claimed"], "right")


def _draw_step(canvas: Canvas, step: _Step, y: float) -> None:
    boxes = [_draw_file(canvas, step.by, y)]
    boxes += [_draw_file(canvas, each, y + _ROW * number) for number, each in enumerate(step.calls)]
    if len(boxes) > 1:
        canvas.arrow([(boxes[0].right, y), (boxes[1].left, y)])
    for before, after in pairwise(boxes[1:]):
        canvas.arrow([(before.x, before.bottom), (after.x, after.top)])
    if step.method:
        assert hasattr(Store, step.method), step.method
        middle = (boxes[0].right + boxes[1].left) / 2
        canvas.text(middle, y - 7, f"store.{step.method}", "soft small middle mono")


def _draw_file(canvas: Canvas, file: _File, y: float) -> Box:
    assert (_PACKAGE / file.path).exists(), file.path
    box = Box(_x(file.path), y, _BOX_WIDTH, _BOX_HEIGHT)
    canvas.box(box, _KINDS[_lane(file.path)], file.path, [file.does], is_mono=True)
    return box
