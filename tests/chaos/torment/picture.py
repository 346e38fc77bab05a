"""How long the work of killed nodes waited, drawn: a histogram as SVG."""

from __future__ import annotations

from collections import Counter

from torment.figures import TAKEOVER_SECONDS, Figures

__all__ = ["picture_of"]

_BIN_SECONDS = 0.5
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 280, 50, 20, 40
_CALM, _DISTURBED, _INK = "#00897b", "#ffb300", "#888888"


def picture_of(figures: Figures) -> str:
    """A histogram in bins of half a second, drawn as SVG."""
    longest = max([*figures.recoveries_calm, *figures.recoveries_disturbed, figures.lease_seconds + TAKEOVER_SECONDS])
    bins = int(longest / _BIN_SECONDS) + 1
    calm = Counter(int(each / _BIN_SECONDS) for each in figures.recoveries_calm)
    disturbed = Counter(int(each / _BIN_SECONDS) for each in figures.recoveries_disturbed)
    most = max((calm[number] + disturbed[number] for number in range(bins)), default=0) or 1
    wide, high = (_WIDTH - _LEFT - 10) / bins, (_HEIGHT - _TOP - _BOTTOM) / most
    floor = _HEIGHT - _BOTTOM
    parts = []
    for number in range(bins):
        left, top = _LEFT + number * wide, float(floor)
        for count, colour in ((calm[number], _CALM), (disturbed[number], _DISTURBED)):
            top -= count * high
            if count:
                parts.append(_bar(left, top, wide - 1, count * high, colour))
    parts += [
        _text(_LEFT + second / _BIN_SECONDS * wide, floor + 16, f"{second} s", "middle")
        for second in range(0, int(bins * _BIN_SECONDS) + 1, max(1, bins // 30))
    ]
    parts += [_text(_LEFT - 6, _TOP + 5, str(most), "end"), _text(_LEFT - 6, floor + 4, "0", "end")]
    parts += [_mark(figures.lease_seconds, "lease", wide), _mark(figures.lease_seconds + 3, "lease + 3 s", wide)]
    parts += [_bar(_WIDTH - 230, 8, 10, 10, _CALM), _text(_WIDTH - 215, 17, "server well", "start")]
    parts += [_bar(_WIDTH - 130, 8, 10, 10, _DISTURBED), _text(_WIDTH - 115, 17, "other trouble", "start")]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
    axis = f'<line x1="{_LEFT}" y1="{floor}" x2="{_WIDTH - 10}" y2="{floor}" stroke="{_INK}"/>'
    return "\n".join([head, axis, *parts, "</svg>", ""])


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="{_INK}" text-anchor="{anchor}">{text}</text>'


def _mark(second: float, name: str, wide: float) -> str:
    x = _LEFT + second / _BIN_SECONDS * wide
    ends = f'x1="{x:.1f}" y1="{_TOP + 12}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}"'
    return f'<line {ends} stroke="{_INK}" stroke-dasharray="3 3"/>' + _text(x, _TOP + 8, name, "middle")
