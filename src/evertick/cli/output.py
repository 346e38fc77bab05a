"""What commands print: tables, facts and lines for people, JSON for programs.

On a terminal: colours, and long texts cut to its width. In a pipe: plain aligned text, whole. rich is loaded for a
terminal only. Whatever jobs and people wrote (errors, notes, keys) passes `clean` first: a control character in it
must not reach somebody's terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "Column",
    "as_json_option",
    "ask",
    "clean",
    "console",
    "hint",
    "print_facts",
    "print_json",
    "print_table",
    "say",
    "style_of",
    "table_for_terminal",
]

_CUT_TO_AT_LEAST = 8
_NOTHING = "-"

_STYLES = {
    "succeeded": "green",
    "failed": "bold red",
    "lost": "bold red",
    "missed": "yellow",
    "skipped": "yellow",
    "cancelled": "magenta",
    "running": "cyan",
    "waiting": "blue",
    "blocked": "blue",
    "parked": "red",
    "sending": "cyan",
    "sent": "green",
    "paused": "yellow",
    "alive": "green",
    "silent": "yellow",
    "stopped": "dim",
    "dead": "red",
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
}

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


class Column(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    is_right: bool = False
    # May be cut where the terminal is narrow.
    is_cut: bool = False
    # Left out on a terminal narrower than this: what only some readers need.
    width_least: int = 0
    # Coloured by its first word (a verdict, a state).
    is_coloured: bool = False


def clean(text: str) -> str:
    """The text on one line, without control characters."""
    return _printable(text).strip()


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def style_of(word: str) -> str:
    return _STYLES.get(word, "")


def print_json(data: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))


def hint(text: str) -> None:
    """Something for a person that is no part of the answer."""
    click.echo(clean(text), err=True)


def ask(question: str, doing: str) -> None:
    """Go on only after a yes; where nobody can answer, only `--yes` is one."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"there is nobody to ask; write --yes to {doing} without a question")
    click.confirm(clean(question), abort=True, err=True)


def say(*parts: str | tuple[str, str]) -> None:
    """One line of texts, each perhaps with a style."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    if not sys.stdout.isatty():
        click.echo("".join(_printable(text) for text, _ in pairs).rstrip())
        return
    from rich.text import Text

    console().print(Text.assemble(*((_printable(text), style) for text, style in pairs)))


def print_facts(facts: Iterable[tuple[str, str | Sequence[str]]]) -> None:
    """Names with one or several lines each; what has none is left out."""
    kept = [(name, [text] if isinstance(text, str) else list(text)) for name, text in facts if text]
    pairs = [(name if not number else "", clean(line)) for name, lines in kept for number, line in enumerate(lines)]
    if sys.stdout.isatty():
        _print_facts_for_terminal(pairs)
        return
    width = max((len(name) for name, _ in pairs), default=0)
    for name, line in pairs:
        click.echo(f"{name:{width}}  {line}")


def _print_facts_for_terminal(pairs: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, line in pairs:
        grid.add_row(Text(name, style_of(name) or "bold"), Text(line))
    console().print(grid)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        screen = console()
        screen.print(table_for_terminal(columns, rows, screen.width))
    else:
        _print_plain(columns, [[clean(cell) or _NOTHING for cell in row] for row in rows])


def _print_plain(columns: Sequence[Column], rows: list[list[str]]) -> None:
    widths = [_width(columns, rows, place) for place in range(len(columns))]
    for line in [[column.title for column in columns], *rows]:
        cells = zip(columns, line, widths, strict=True)
        click.echo("  ".join(_padded(column, cell, width) for column, cell, width in cells).rstrip())


def _width(columns: Sequence[Column], rows: list[list[str]], place: int) -> int:
    return max([len(columns[place].title), *(len(row[place]) for row in rows)])


def _padded(column: Column, cell: str, width: int) -> str:
    return cell.rjust(width) if column.is_right else cell.ljust(width)


def table_for_terminal(columns: Sequence[Column], given: Iterable[Sequence[str]], width: int) -> Table:
    """A table as rich draws it, for a terminal of this width."""
    from rich.table import Table
    from rich.text import Text

    rows = [[clean(cell) or _NOTHING for cell in row] for row in given]
    shown = [place for place in range(len(columns)) if _is_shown(columns[place], width, rows, place)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place in shown:
        column = columns[place]
        # rich narrows the columns that may wrap first; their cells do not wrap, so they are cut.
        table.add_column(
            column.title,
            justify="right" if column.is_right else "left",
            no_wrap=not column.is_cut,
            min_width=min(_CUT_TO_AT_LEAST, _width(columns, rows, place)) if column.is_cut else None,
        )
    for row in rows:
        styles = [style_of(row[place].partition(" ")[0]) if columns[place].is_coloured else "" for place in shown]
        cells = zip((row[place] for place in shown), styles, strict=True)
        table.add_row(*(Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in cells))
    return table


def _is_shown(column: Column, width: int, rows: list[list[str]], place: int) -> bool:
    """Whether a terminal has room for the column, and the column something to say."""
    return width >= column.width_least and any(row[place] != _NOTHING for row in rows)


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)
