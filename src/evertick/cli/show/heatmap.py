"""A forecast as a heatmap: fires per hour, a row per day, for a terminal, a pipe or as SVG.

If the counts differ much, the scale is logarithmic: on a linear scale, one schedule per second would hide all others.
Colours are never the only sign: there are numbers, shades or, in SVG, a title on every cell.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from math import log

import msgspec

from evertick.cli.show.output import Column, console, print_table, say
from evertick.plan.forecast import Day, Forecast

__all__ = ["heatmap_svg", "print_heatmap"]

# From few to many. They differ in grey, too.
_COLOURS = ("#d3e5f5", "#9cc7e8", "#5aa0d6", "#2471b5", "#0b3d78")
_INKS = ("#1a1a1a", "#1a1a1a", "#1a1a1a", "#ffffff", "#ffffff")
_SHADES = ("▁▁", "▂▂", "▄▄", "▆▆", "██")
_NO_FIRE = "·"
# The scale is logarithmic if the largest count is this many times the smallest.
_WIDE = 50
# Columns of a terminal that shows numbers, and of one that shows two letters per hour.
_WIDTH_OF_NUMBERS = 104
_WIDTH_OF_PAIRS = 72


def print_heatmap(forecast: Forecast) -> None:
    if sys.stdout.isatty():
        _print_for_terminal(forecast)
    else:
        hours = [Column(title=f"{hour:02}", is_right=True) for hour in range(24)]
        columns = [Column(title="DAY"), *hours, Column(title="FIRES", is_right=True)]
        print_table(columns, [_plain_row(day) for day in forecast.days])


def _plain_row(day: Day) -> list[str]:
    return [f"{day.date:%a %Y-%m-%d}", *("" if count is None else str(count) for count in day.hours), str(day.fires)]


class _Scale(msgspec.Struct, frozen=True):
    """Maps counts to colours."""

    least: int
    most: int

    @classmethod
    def of(cls, forecast: Forecast) -> _Scale:
        counts = [count for day in forecast.days for count in day.hours if count]
        return cls(min(counts, default=0), max(counts, default=0))

    def level(self, count: int) -> int:
        """The place of the colour for a count that is not 0."""
        if count <= 1:
            return 0
        is_wide = self.most > _WIDE * self.least
        place = log(count) / log(self.most) if is_wide else (count - 1) / (self.most - 1)
        return min(len(_COLOURS) - 1, int(len(_COLOURS) * place))

    def steps(self) -> Iterator[tuple[int, int, int]]:
        """Each colour, with the lowest and highest count that it stands for."""
        low = 1
        for level in range(len(_COLOURS)):
            # Bisection: the counts of a level are contiguous.
            high, reach = low - 1, self.most
            while high < reach:
                middle = (high + reach + 1) // 2
                high, reach = (middle, reach) if self.level(middle) <= level else (high, middle - 1)
            if low <= high:
                yield level, low, high
            low = high + 1


def _short(count: int) -> str:
    """The count in at most three letters."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size * 0.9995:
            return f"{round(count / size)}{unit}"
    return str(count)


# --- terminal --------------------------------------------------------------------------------------------------------


def _print_for_terminal(forecast: Forecast) -> None:
    from rich.text import Text

    columns, scale = console().width, _Scale.of(forecast)
    has_numbers = columns >= _WIDTH_OF_NUMBERS
    width = 3 if has_numbers else 2 if columns >= _WIDTH_OF_PAIRS else 1
    # The head names every hour, or every second or third, as the width allows.
    step = {3: 1, 2: 2, 1: 3}[width]
    heads = "".join(f"{hour:02}".ljust(width * step) for hour in range(0, 24, step))
    say((f"{'':15}{heads}  fires", "dim"))
    for day in forecast.days:
        line = Text(f"{day.date:%a %Y-%m-%d} ")
        for count in day.hours:
            text, style = _cell(count, scale, width, has_numbers=has_numbers)
            line.append(text, style)
        console().print(line.append(f"  {day.fires}", "bold"))
    if scale.most:
        _print_legend(scale)


def _cell(count: int | None, scale: _Scale, width: int, *, has_numbers: bool) -> tuple[str, str]:
    if not count:
        return ("" if count is None else _NO_FIRE).ljust(width), "dim"
    level = scale.level(count)
    if has_numbers:
        return _short(count).center(width), f"{_INKS[level]} on {_COLOURS[level]}"
    return _SHADES[level][:width], _COLOURS[level]


def _print_legend(scale: _Scale) -> None:
    steps: list[str | tuple[str, str]] = [f"{'':15}"]
    for level, low, high in scale.steps():
        words = str(low) if low == high else f"{low}-{high}"
        steps += [(_SHADES[level], _COLOURS[level]), f" {words}   "]
    say(*steps)


# --- SVG -------------------------------------------------------------------------------------------------------------

_CELL_WIDTH, _CELL_HEIGHT, _SPACE = 30, 24, 3
_LEFT, _TOP, _RIGHT, _BOTTOM = 122, 92, 84, 58
_STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 12px; fill: #333; }
  .page { fill: #fff; } .title { font-size: 18px; font-weight: 600; fill: #111; } .soft { fill: #777; }
  .none { fill: #f0f0f0; } .past { fill: none; stroke: #e4e4e4; }
  .number { font-size: 11px; text-anchor: middle; } .right { text-anchor: end; } .middle { text-anchor: middle; }
"""


def heatmap_svg(forecast: Forecast, title: str) -> str:
    """The forecast as SVG, without scripts, fonts or other files."""
    width = _LEFT + 24 * (_CELL_WIDTH + _SPACE) + _RIGHT
    scale = _Scale.of(forecast)
    height = _TOP + len(forecast.days) * (_CELL_HEIGHT + _SPACE) + _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title words">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="words">{escape(_words(forecast))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="title" x="24" y="36">{escape(title)}</text>',
        f'<text class="soft" x="24" y="58">{escape(_words(forecast))}</text>',
        *_svg_heads(),
        *(line for row, day in enumerate(forecast.days) for line in _svg_day(day, row, scale)),
        *_svg_legend(scale, height - _BOTTOM + 22),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _words(forecast: Forecast) -> str:
    since, until = f"{forecast.since:%Y-%m-%d %H:%M}", f"{forecast.until:%Y-%m-%d %H:%M}"
    zone = getattr(forecast.since.tzinfo, "key", None) or f"UTC{forecast.since:%z}"
    busiest = ""
    if forecast.busiest:
        busiest = f"; busiest minute {forecast.busiest[0].at:%Y-%m-%d %H:%M} with {forecast.busiest[0].fires:,}"
    return f"{forecast.fires:,} fires from {since} to {until}, {zone}{busiest}"


def _svg_heads() -> Iterator[str]:
    for hour in range(24):
        x = _LEFT + hour * (_CELL_WIDTH + _SPACE) + _CELL_WIDTH / 2
        yield f'<text class="soft middle" x="{x:g}" y="{_TOP - 8}">{hour:02}</text>'
    x = _LEFT + 24 * (_CELL_WIDTH + _SPACE) + _RIGHT - 24
    yield f'<text class="soft right" x="{x}" y="{_TOP - 8}">fires</text>'


def _svg_day(day: Day, row: int, scale: _Scale) -> Iterator[str]:
    y = _TOP + row * (_CELL_HEIGHT + _SPACE)
    baseline = y + _CELL_HEIGHT / 2 + 4
    yield f'<text class="right" x="{_LEFT - 10}" y="{baseline:g}">{day.date:%a %Y-%m-%d}</text>'
    for hour, count in enumerate(day.hours):
        x = _LEFT + hour * (_CELL_WIDTH + _SPACE)
        words = "passed, or left out by a clock change" if count is None else f"{count:,} fires"
        level = scale.level(count) if count else 0
        paint = f'fill="{_COLOURS[level]}"' if count else f'class="{"past" if count is None else "none"}"'
        yield (
            f'<rect x="{x}" y="{y}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" rx="4" {paint}>'
            f"<title>{day.date:%a %Y-%m-%d} {hour:02}:00: {words}</title></rect>"
        )
        if count:
            middle = x + _CELL_WIDTH / 2
            ink = f'style="fill: {_INKS[level]}"'
            yield f'<text class="number" x="{middle:g}" y="{baseline:g}" {ink}>{_short(count)}</text>'
    end = _LEFT + 24 * (_CELL_WIDTH + _SPACE) + _RIGHT - 24
    yield f'<text class="right" x="{end}" y="{baseline:g}">{day.fires:,}</text>'


def _svg_legend(scale: _Scale, y: int) -> Iterator[str]:
    yield f'<text class="soft right" x="{_LEFT - 10}" y="{y + 12}">per hour</text>'
    yield f'<rect class="none" x="{_LEFT}" y="{y}" width="18" height="16" rx="4"/>'
    yield f'<text x="{_LEFT + 24}" y="{y + 12}">0</text>'
    x = _LEFT + 48
    for level, low, high in scale.steps():
        words = f"{low:,}" if low == high else f"{low:,}\u2013{high:,}"
        yield f'<rect x="{x}" y="{y}" width="18" height="16" rx="4" fill="{_COLOURS[level]}"/>'
        yield f'<text x="{x + 24}" y="{y + 12}">{words}</text>'
        x += 24 + 18 + 7 * len(words)
