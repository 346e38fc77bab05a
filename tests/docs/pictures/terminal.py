"""Pictures of commands on a terminal, dark on every page."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from unittest.mock import patch

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from evertick.cli import cli
from evertick.cli.command import top
from evertick.clock import system_clock
from evertick.testing.ledger import moment_us
from pictures.shop import NOW

__all__ = ["draw"]

_CELL, _LINE, _LEFT, _TOP = 7.8, 18, 18, 62
_THEME = TerminalTheme(
    (27, 31, 39),
    (221, 226, 233),
    [
        (27, 31, 39),
        (240, 113, 120),
        (120, 200, 140),
        (229, 192, 110),
        (108, 168, 240),
        (198, 150, 230),
        (90, 200, 205),
        (221, 226, 233),
    ],
    [
        (120, 128, 140),
        (240, 113, 120),
        (120, 200, 140),
        (229, 192, 110),
        (108, 168, 240),
        (198, 150, 230),
        (90, 200, 205),
        (255, 255, 255),
    ],
)
_STYLE = """text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
text { fill: #dde2e9; } .bold { font-weight: 700; } .dim { opacity: 0.65; } .prompt { fill: #78c88c; }"""


class _Screen(io.StringIO):
    """Output that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def draw(words: Sequence[str], database: Path, *, columns: int, lines: int = 100) -> str:
    """The picture of `evertick WORDS` about this ledger, on a terminal of this size."""
    printed = _printed([*words, "--database", f"sqlite:///{database}"], columns, lines)
    console = Console(width=columns, color_system="truecolor", force_terminal=True, file=io.StringIO())
    rows = [list(line.render(console)) for line in AnsiDecoder().decode(printed)]
    while rows and not "".join(segment.text for segment in rows[-1]).strip():
        rows.pop()
    return _svg(" ".join(["evertick", *words]), rows, columns)


def _printed(arguments: list[str], columns: int, lines: int) -> str:
    screen, errors = _Screen(), io.StringIO()
    environment = {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    # The one look that is pictured: a live view ends after its first frame.
    with (
        patch.dict(os.environ, environment),
        patch.object(system_clock, "now_us", lambda: moment_us(NOW, what="now")),
        patch.object(top, "_is_set_within", _at_once),
        contextlib.redirect_stdout(screen),
        contextlib.redirect_stderr(errors),
    ):
        try:
            cli.main(arguments, prog_name="evertick")
        except SystemExit as ended:
            code = ended.code
    assert code == 0, errors.getvalue()
    return screen.getvalue()


async def _at_once(*_: object) -> bool:
    return True


def _svg(command: str, rows: Sequence[list[Segment]], columns: int) -> str:
    width, height = round(2 * _LEFT + columns * _CELL), _TOP + _LINE * len(rows) + 12
    words = "\n".join("".join(segment.text for segment in row).rstrip() for row in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title words">',
        f'<title id="title">{escape(command)}</title>',
        f'<desc id="words">{escape(words)}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#1b1f27" stroke="#3a414d"/>',
        *(
            f'<circle cx="{22 + 18 * n}" cy="20" r="5.5" fill="{c}"/>'
            for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        _text(0, _TOP - 10, "$", 'class="prompt"'),
        _text(2, _TOP - 10, command, 'class="bold"'),
    ]
    for number, row in enumerate(rows, 1):
        parts += _row(row, _TOP - 10 + _LINE * number)
    return "\n".join([*parts, "</svg>", ""])


def _row(row: Sequence[Segment], y: float) -> Iterator[str]:
    column = 0
    for text, style, _ in row:
        style = style or Style()
        if style.bgcolor is not None and not style.bgcolor.is_default:
            yield (
                f'<rect x="{_LEFT + column * _CELL:.4g}" y="{y - 13:g}" width="{len(text) * _CELL:.4g}" '
                f'height="{_LINE - 1}" fill="{_hex(style.bgcolor.get_truecolor(_THEME, foreground=False))}"/>'
            )
        if text.strip():
            lead = len(text) - len(text.lstrip())
            yield _text(column + lead, y, text.strip(), _look(style))
        column += len(text)


def _text(column: int, y: float, text: str, look: str = "") -> str:
    """Stretched to its cells, in any font."""
    x, length = _LEFT + column * _CELL, len(text) * _CELL
    return (
        f'<text x="{x:.5g}" y="{y:g}" textLength="{length:.5g}" lengthAdjust="spacingAndGlyphs" xml:space="preserve" '
        f"{look}>{escape(text)}</text>"
    ).replace(" >", ">")


def _look(style: Style) -> str:
    classes = [name for name, holds in (("bold", style.bold), ("dim", style.dim)) if holds]
    look = f'class="{" ".join(classes)}"' if classes else ""
    if style.color is not None and not style.color.is_default:
        look += f' style="fill: {_hex(style.color.get_truecolor(_THEME))}"'
    return look.strip()


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
