"""Pictures of results as SVG: bars beside one another, and lines over a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from benchmarks.table import number_text

__all__ = ["Aim", "Axes", "Bar", "Point", "bars", "lines"]

_WIDTH = 760
# Of bars: room for their names and figures.
_LEFT, _RIGHT, _ROW = 260, 100, 22
# Of lines: room for the scale and the names.
_SCALE, _NAMES, _LINES_HEIGHT, _TOP, _BOTTOM = 70, 250, 340, 44, 40
# Below either, for what the signs mean; and half of the line of an aim that is at one place.
_LEGEND, _AIM = 20, 16
_INK, _GRID, _AIMED = "#888888", "#dddddd", "#e53935"
# Of lines that have the same colour, no two have the same dashes.
_DASHES = ("", ' stroke-dasharray="8 3"', ' stroke-dasharray="2 3"')
# Of the names of lines: their distance.
_NAME = 16
_COLOURS = ("#00897b", "#ffb300", "#5c6bc0", "#d81b60", "#6d4c41", "#43a047", "#8e24aa", "#546e7a")
_OURS, _YARDSTICK, _OTHERS = "#00897b", "#b0bec5", "#ffb300"


@dataclass(frozen=True)
class Bar:
    """`low` and `high` are the spread, `aim` is how far it is to reach."""

    title: str
    value: float
    low: float
    high: float
    kind: str
    aim: float | None = None


def bars(title: str, unit: str, rows: Sequence[Bar], legend: str) -> str:
    """In the order given, each with its spread as a line."""
    most = max(max(row.high, row.aim or 0) for row in rows) or 1
    wide = (_WIDTH - _LEFT - _RIGHT) / most
    parts = [_text(_LEFT, 16, f"{title}, {unit}", "start", 13)]
    for number, row in enumerate(rows):
        top = 28 + number * _ROW
        middle = top + _ROW / 2 - 2
        colour = {"ours": _OURS, "raw": _YARDSTICK}.get(row.kind, _OTHERS)
        parts.append(_text(_LEFT - 8, middle + 4, row.title, "end"))
        parts.append(
            f'<rect x="{_LEFT}" y="{top}" width="{row.value * wide:.1f}" height="{_ROW - 5}" fill="{colour}"/>'
        )
        parts.append(_line(_LEFT + row.low * wide, middle, _LEFT + row.high * wide, middle, _INK))
        if row.aim is not None:
            parts.append(_dashed(_LEFT + row.aim * wide, top - 2, _LEFT + row.aim * wide, top + _ROW - 3))
        end = max(row.high, row.aim or 0)
        parts.append(_text(_LEFT + end * wide + 6, middle + 4, number_text(row.value), "start"))
    bottom = 36 + len(rows) * _ROW
    parts.append(_text(_LEFT, bottom + 8, legend, "start"))
    return _svg(bottom + _LEGEND, parts)


class Point(NamedTuple):
    """Both greater than 0. A hollow one means something else than the others."""

    across: float
    up: float
    is_hollow: bool = False


class Aim(NamedTuple):
    """What points are to stay below: there, or wherever they are."""

    up: float
    across: float | None = None


@dataclass(frozen=True)
class Axes:
    """What is across and what is up, and what points are to stay below; `legend` says what a point is."""

    across: str
    up: str
    legend: str
    aims: Sequence[Aim] = ()


def lines(title: str, axes: Axes, series: Mapping[str, Sequence[Point]]) -> str:
    """On logarithmic scales; a line per name, and a dashed red one for each aim."""
    points = [point for each in series.values() for point in each]
    floor = max(_LINES_HEIGHT - _BOTTOM, _TOP + len(series) * _NAME)
    x = _Scale([point.across for point in points], _SCALE, _WIDTH - _NAMES)
    y = _Scale([*(point.up for point in points), *(aim.up for aim in axes.aims)], floor, _TOP)
    parts = [
        _text(x.begin, 16, title, "start", 13),
        _text(x.begin, 32, axes.up, "start"),
        _text(x.end, floor + 32, axes.across, "end"),
        _text(x.begin, floor + 48, axes.legend, "start"),
    ]
    for value in x.marks():
        parts += [
            _line(x(value), _TOP, x(value), floor, _GRID),
            _text(x(value), floor + 16, number_text(value), "middle"),
        ]
    for value in y.marks():
        parts += [
            _line(x.begin, y(value), x.end, y(value), _GRID),
            _text(x.begin - 6, y(value) + 4, number_text(value), "end"),
        ]
    for aim in axes.aims:
        begin, end = (x.begin, x.end) if aim.across is None else (x(aim.across) - _AIM, x(aim.across) + _AIM)
        parts.append(_dashed(begin, y(aim.up), end, y(aim.up)))
    for number, (name, each) in enumerate(series.items()):
        colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
        stroke = f'fill="none" stroke="{colour}" stroke-width="2"{dashes}'
        path = " ".join(f"{x(point.across):.1f},{y(point.up):.1f}" for point in sorted(each))
        parts.append(f'<polyline points="{path}" {stroke}/>')
        parts += [_dot(x(point.across), y(point.up), colour, is_hollow=point.is_hollow) for point in each]
        left, middle = _WIDTH - _NAMES + 8, _TOP + 8 + number * _NAME
        parts.append(f'<polyline points="{left},{middle - 4} {left + 22},{middle - 4}" {stroke}/>')
        parts.append(_text(left + 28, middle, name, "start", colour=colour))
    return _svg(floor + _BOTTOM + _LEGEND, parts)


class _Scale:
    """A logarithmic one, from the power of ten below the least to the one above the most."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self.begin + share * (self.end - self.begin)

    def marks(self) -> Iterator[float]:
        return (10.0**power for power in range(self._low, self._high + 1))


def _svg(height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _dashed(x1: float, y1: float, x2: float, y2: float) -> str:
    """Where an aim is."""
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {where} stroke="{_AIMED}" stroke-width="2" stroke-dasharray="4 3"/>'


def _dot(x: float, y: float, colour: str, *, is_hollow: bool) -> str:
    if is_hollow:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#ffffff" stroke="{colour}" stroke-width="2"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 11, colour: str = _INK) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {where}>{escape(text)}</text>"
