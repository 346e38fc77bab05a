"""SVG charts: horizontal bars, ranges on a logarithmic axis, and lines.

The ink is a grey that is legible on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple, Protocol

from benchmarks.report.text import number_text

__all__ = ["Aim", "Axis", "Bar", "Point", "Range", "Series", "bars", "lines", "ranges"]

_WIDTH = 760
# Horizontal charts: room for names and numbers, and the height of a row and of a heading.
_LEFT, _RIGHT, _ROW, _HEADING = 230, 96, 22, 26
# Line charts: room for the scale, and the vertical places of the plot and of its texts.
_SCALE, _NAMES, _TOP, _FLOOR = 76, 200, 48, 320
_TITLE_Y, _LINE_HEIGHT = 18, 18
_INK, _AIM, _INSIDE = "#7a7a7a", "#e53935", "#ffffff"
_GRID = 'stroke="#7a7a7a" stroke-opacity="0.3"'
_COLOURS = ("#00897b", "#5c6bc0", "#fb8c00", "#8e24aa")
_DASHES = ("", ' stroke-dasharray="7 4"', ' stroke-dasharray="2 3"')
_KINDS = {"ours": "#00897b", "raw": "#90a4ae", "peer": "#fb8c00"}
# Half of the length of an aim that belongs to one number.
_AIM_HALF = 16
_TITLE_SIZE, _TEXT_SIZE = 15, 12
_MARKS_LEAST = 3


@dataclass(frozen=True)
class Bar:
    """`low` and `high` are the range of the rounds. `kind` is `ours`, `raw` or `peer`."""

    title: str
    value: float
    low: float
    high: float
    kind: str
    aim: float | None = None


@dataclass(frozen=True)
class Range:
    """Two values of one row, such as p50 and p99. Without values, `note` is shown."""

    title: str
    kind: str
    low: float | None = None
    high: float | None = None
    note: str = ""


class Point(NamedTuple):
    """Both values are positive."""

    across: float
    up: float
    is_hollow: bool = False


class Aim(NamedTuple):
    """A limit that points should stay below, at one number or at all."""

    up: float
    across: float | None = None


@dataclass(frozen=True)
class Series:
    """A line. Lines of equal colour differ in their dashes."""

    name: str
    points: Sequence[Point]
    colour: int
    dash: int = 0


@dataclass(frozen=True)
class Axis:
    """The texts of a line chart, and its aims. `is_log` applies to the horizontal axis."""

    across: str
    up: str
    legend: str
    aims: Sequence[Aim] = ()
    is_log: bool = True


def bars(title: str, groups: Mapping[str, Sequence[Bar]], legend: str) -> str:
    """Bars with their range as a line, in groups with a heading."""
    rows = [row for each in groups.values() for row in each]
    x = _Linear(0, max(max(row.high, row.aim or 0) for row in rows) or 1, _LEFT, _WIDTH - _RIGHT)
    parts = [_text(8, _TITLE_Y, title, "start", _TITLE_SIZE)]
    top = float(_TITLE_Y)
    for heading, own in groups.items():
        top += _HEADING
        parts.append(_text(8, top, heading, "start", weight="bold"))
        top += 8
        for row in own:
            middle = top + _ROW / 2 - 2
            parts.append(_text(_LEFT - 8, middle + 4, row.title, "end"))
            parts.append(
                f'<rect x="{_LEFT}" y="{top:g}" width="{x(row.value) - _LEFT:.1f}" height="{_ROW - 5}" '
                f'fill="{_KINDS[row.kind]}"/>'
            )
            # White within the bar, ink beyond it.
            parts.append(_line(x(row.low), middle, x(row.value), middle, _stroke(_INSIDE)))
            parts.append(_line(x(row.value), middle, x(row.high), middle, _stroke(_INK)))
            if row.aim is not None:
                parts.append(_aim(x(row.aim), top - 2, x(row.aim), top + _ROW - 3))
            end = x(max(row.high, row.value, row.aim or 0))
            parts.append(_text(end + 6, middle + 4, number_text(row.value), "start"))
            top += _ROW
    parts.append(_text(8, top + _LINE_HEIGHT, legend, "start"))
    return _svg(top + _LINE_HEIGHT + 8, parts)


def ranges(title: str, unit: str, groups: Mapping[str, Sequence[Range]], legend: str) -> str:
    """Two dots and the line between them for each row, on a logarithmic axis."""
    rows = [row for each in groups.values() for row in each]
    values = [value for row in rows for value in (row.low, row.high) if value is not None]
    x = _Log(values, _LEFT, _WIDTH - _RIGHT - 30)
    parts: list[str] = []
    top = float(_TITLE_Y)
    for heading, own in groups.items():
        top += _HEADING
        parts.append(_text(8, top, heading, "start", weight="bold"))
        top += 8
        for row in own:
            middle = top + _ROW / 2
            parts.append(_text(_LEFT - 8, middle + 4, row.title, "end"))
            if row.low is None or row.high is None:
                parts.append(_text(_LEFT + 6, middle + 4, row.note, "start"))
            else:
                colour = _KINDS[row.kind]
                parts.append(_line(x(row.low), middle, x(row.high), middle, _stroke(colour, 4)))
                parts += [_dot(x(row.low), middle, colour, is_hollow=True), _dot(x(row.high), middle, colour)]
                shown = f"{number_text(row.low)} / {number_text(row.high)}"
                parts.append(_text(x(row.high) + 9, middle + 4, shown, "start"))
            top += _ROW
    grid = [_line(x(value), _TITLE_Y + 12, x(value), top + 4, _GRID) for value in x.marks()]
    marks = [_text(x(value), top + _LINE_HEIGHT, f"{_mark(value)} {unit}", "middle") for value in x.marks()]
    head = _text(8, _TITLE_Y, title, "start", _TITLE_SIZE)
    foot = _text(8, top + 2 * _LINE_HEIGHT + 2, legend, "start")
    return _svg(top + 2 * _LINE_HEIGHT + 10, [head, *grid, *parts, *marks, foot])


def lines(title: str, axis: Axis, series: Sequence[Series]) -> str:
    """Lines with a logarithmic vertical axis, named beside the plot, and a dashed line for each aim."""
    points = [point for each in series for point in each.points]
    floor = max(_FLOOR, _TOP + len(series) * _LINE_HEIGHT)
    across = [point.across for point in points]
    begin, end = _SCALE, _WIDTH - _NAMES
    x: _Scale = _Log(across, begin, end) if axis.is_log else _Linear(0, max(across), begin, end)
    y = _Log([*(point.up for point in points), *(aim.up for aim in axis.aims)], floor, _TOP)
    parts = [
        _text(8, _TITLE_Y, title, "start", _TITLE_SIZE),
        _text(begin, _TOP - 10, axis.up, "end"),
        _text((begin + end) / 2, floor + 36, axis.across, "middle"),
        _text(8, floor + 58, axis.legend, "start"),
    ]
    for value in x.marks():
        parts += [
            _line(x(value), _TOP, x(value), floor, _GRID),
            _text(x(value), floor + 18, _mark(value), "middle"),
        ]
    for value in y.marks():
        parts += [
            _line(begin, y(value), end, y(value), _GRID),
            _text(begin - 8, y(value) + 4, _mark(value), "end"),
        ]
    for aim in axis.aims:
        first, last = (begin, end) if aim.across is None else (x(aim.across) - _AIM_HALF, x(aim.across) + _AIM_HALF)
        parts.append(_aim(first, y(aim.up), last, y(aim.up)))
    for number, each in enumerate(series):
        colour = _COLOURS[each.colour % len(_COLOURS)]
        stroke = f'fill="none" stroke="{colour}" stroke-width="2.5"{_DASHES[each.dash % len(_DASHES)]}'
        path = " ".join(f"{x(point.across):.1f},{y(point.up):.1f}" for point in sorted(each.points))
        parts.append(f'<polyline points="{path}" {stroke}/>')
        parts += [_dot(x(point.across), y(point.up), colour, is_hollow=point.is_hollow) for point in each.points]
        left, middle = end + 16, _TOP + 8 + number * _LINE_HEIGHT
        parts.append(f'<polyline points="{left},{middle - 4} {left + 28},{middle - 4}" {stroke}/>')
        parts.append(_text(left + 34, middle, each.name, "start"))
    return _svg(floor + 66, parts)


class _Scale(Protocol):
    def __call__(self, value: float) -> float: ...

    def marks(self) -> Iterator[float]: ...


class _Linear:
    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._high, self._begin, self._end = low, high, begin, end

    def __call__(self, value: float) -> float:
        return self._begin + (value - self._low) / (self._high - self._low) * (self._end - self._begin)

    def marks(self) -> Iterator[float]:
        """Multiples of a power of ten, between four and ten of them."""
        step = 10.0 ** math.floor(math.log10(self._high - self._low))
        step = step if (self._high - self._low) / step >= _MARKS_LEAST else step / 5
        return (number * step for number in range(math.ceil(self._low / step), math.floor(self._high / step) + 1))


class _Log:
    """From a round number below the least value to one above the greatest."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self._begin, self._end = begin, end
        low, high = min(values), max(values)
        below = [value for value in _round_numbers(low, high) if value <= low * 1.000001]
        above = [value for value in _round_numbers(low, high) if value >= high * 0.999999 and value > below[-1]]
        self._low, self._high = math.log10(below[-1]), math.log10(above[0])

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def marks(self) -> Iterator[float]:
        """Powers of ten, or all round numbers if there are few."""
        found = [value for value in _round_numbers(10**self._low, 10**self._high) if self._has(value)]
        powers = [value for value in found if math.isclose(math.log10(value) % 1, 0, abs_tol=1e-9)]
        return iter(powers if len(powers) >= _MARKS_LEAST else found)

    def _has(self, value: float) -> bool:
        return self._low - 1e-9 <= math.log10(value) <= self._high + 1e-9


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten around the two."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    return [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]


def _mark(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _svg(height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {stroke}/>'


def _stroke(colour: str, width: float = 1) -> str:
    return f'stroke="{colour}" stroke-width="{width:g}"'


def _aim(x1: float, y1: float, x2: float, y2: float) -> str:
    return _line(x1, y1, x2, y2, f'{_stroke(_AIM, 2)} stroke-dasharray="4 3"')


def _dot(x: float, y: float, colour: str, *, is_hollow: bool = False) -> str:
    fill = "#ffffff" if is_hollow else colour
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = _TEXT_SIZE, weight: str = "") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{_INK}" text-anchor="{anchor}"'
    return f"<text {where}{f' font-weight={chr(34)}{weight}{chr(34)}' if weight else ''}>{escape(text)}</text>"
