"""SVG diagrams of boxes, arrows and texts, legible on a light and on a dark page.

A picture brings its own background, so it is legible even where its colours and those of the page differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Box", "Canvas"]

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
_LIGHT = {
    "page": "#ffffff",
    "panel": "#f4f6f8",
    "ink": "#1f2933",
    "soft": "#5b6770",
    "line": "#66727c",
    "main": "#d9efec",
    "main-edge": "#00796b",
    "other": "#e6eaf6",
    "other-edge": "#4a5aa8",
    "store": "#fdf0d9",
    "store-edge": "#b26a00",
    "end": "#e7e9ec",
    "end-edge": "#6b7680",
}
_DARK = {
    "page": "#1c1f26",
    "panel": "#262a33",
    "ink": "#e6e9ee",
    "soft": "#a3adb8",
    "line": "#98a3ae",
    "main": "#123f3a",
    "main-edge": "#4db6ac",
    "other": "#2a3157",
    "other-edge": "#8f9be0",
    "store": "#4a3512",
    "store-edge": "#e0a040",
    "end": "#343a44",
    "end-edge": "#98a3ae",
}
_RADIUS = 10.0
Point = tuple[float, float]


def _rules(colours: dict[str, str]) -> str:
    fills = [f".{name} {{ fill: {colours[name]}; }}" for name in ("page", "ink", "soft", "panel")]
    kinds = [
        f".{kind} {{ fill: {colours[kind]}; stroke: {colours[f'{kind}-edge']}; }}"
        for kind in ("main", "other", "store", "end")
    ]
    line = f".line {{ stroke: {colours['line']}; }} .head {{ fill: {colours['line']}; }}"
    return " ".join([*fills, *kinds, line, f".halo {{ stroke: {colours['page']}; }}"])


_STYLE = f"""text {{ font-family: {_FONT}; font-size: 14.5px; }} .small {{ font-size: 13px; }}
.title {{ font-size: 16px; font-weight: 600; }} .bold {{ font-weight: 600; }}
.mono {{ font-family: monospace; font-size: 12px; }}
.middle {{ text-anchor: middle; }} .right {{ text-anchor: end; }} .line {{ fill: none; stroke-width: 1.5; }}
.halo {{ paint-order: stroke; stroke-width: 4px; stroke-linejoin: round; }} .dashed {{ stroke-dasharray: 5 4; }}
.main, .other, .store, .end {{ stroke-width: 1.5; }}
{_rules(_LIGHT)}
@media (prefers-color-scheme: dark) {{ {_rules(_DARK)} }}"""


class Box(NamedTuple):
    """By its middle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


class Canvas:
    """Collects the parts of a picture."""

    def __init__(self, width: int, height: int, title: str, words: str, *, top: int = 0) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="title words">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="words">{escape(words)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" y="{top}" width="{width}" height="{height}" rx="8"/>',
        ]

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])

    def text(self, x: float, y: float, text: str, kind: str = "ink") -> None:
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def label(self, x: float, y: float, lines: Sequence[str], kind: str = "") -> None:
        """Small lines of text from `y` downward, legible on top of a line."""
        for number, line in enumerate(lines):
            self.text(x, y + 15 * number, line, f"soft small halo {kind}".rstrip())

    def panel(self, x: float, y: float, width: float, height: float) -> None:
        self._parts.append(f'<rect class="panel" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>')

    def box(self, box: Box, kind: str, title: str, lines: Sequence[str] = (), *, is_mono: bool = False) -> None:
        self._parts.append(
            f'<rect class="{kind}" x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" height="{box.height:g}" '
            'rx="6"/>'
        )
        self._words(box.x, box.y, title, lines, is_mono=is_mono)

    def cylinder(self, box: Box, title: str, lines: Sequence[str] = ()) -> None:
        """A database."""
        half, depth = box.width / 2, 9
        self._parts += [
            f'<path class="store" d="M{box.left:g},{box.top + depth:g} v{box.height - 2 * depth:g} '
            f'a{half:g},{depth} 0 0 0 {box.width:g},0 v{-(box.height - 2 * depth):g}"/>',
            f'<ellipse class="store" cx="{box.x:g}" cy="{box.top + depth:g}" rx="{half:g}" ry="{depth}"/>',
        ]
        self._words(box.x, box.y + depth, title, lines)

    def _words(self, x: float, y: float, title: str, lines: Sequence[str], *, is_mono: bool = False) -> None:
        first = y + 5 - 8.5 * len(lines)
        self.text(x, first, title, f"ink middle {'mono small' if is_mono else 'bold'}")
        for number, line in enumerate(lines, 1):
            self.text(x, first + 17 * number, line, "soft small middle")

    def circle(self, x: float, y: float, radius: float, text: str = "") -> None:
        self._parts.append(f'<circle class="end" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')
        if text:
            self.text(x, y + 4.5, text, "ink bold middle")

    def arrow(self, points: Iterable[Point], *, is_dashed: bool = False, is_double: bool = False) -> None:
        """Along these points, with round corners, to the last of them."""
        corners = list(points)
        kind = "line dashed" if is_dashed else "line"
        self._parts.append(f'<path class="{kind}" d="{_rounded(corners)}"/>')
        self._head(corners[-2], corners[-1])
        if is_double:
            self._head(corners[1], corners[0])

    def _head(self, before: Point, tip: Point) -> None:
        (x, y), (dx, dy) = tip, _towards(before, tip)
        back = (x - 8 * dx, y - 8 * dy)
        sides = [(back[0] - 4 * dy, back[1] + 4 * dx), (back[0] + 4 * dy, back[1] - 4 * dx)]
        points = " ".join(f"{px:.4g},{py:.4g}" for px, py in [tip, *sides])
        self._parts.append(f'<polygon class="head" points="{points}"/>')


def _towards(start: Point, end: Point) -> Point:
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    return dx / length, dy / length


def _rounded(corners: Sequence[Point]) -> str:
    parts = [f"M{corners[0][0]:g},{corners[0][1]:g}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        (ax, ay), (bx, by) = _towards(corner, before), _towards(corner, after)
        (x, y) = corner
        start, end = (x + _RADIUS * ax, y + _RADIUS * ay), (x + _RADIUS * bx, y + _RADIUS * by)
        parts.append(f"L{start[0]:g},{start[1]:g} Q{x:g},{y:g} {end[0]:g},{end[1]:g}")
    parts.append(f"L{corners[-1][0]:g},{corners[-1][1]:g}")
    return " ".join(parts)
