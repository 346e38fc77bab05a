"""The output of commands: tables, facts and lines for people, JSON for programs.

On a terminal: colours, and what does not fit beside the rest goes below its row, is cut, or is left out, as each column
says; sentences are broken between words. In a pipe: plain aligned text, whole. rich is loaded for a terminal only. All
that jobs and people wrote (errors, notes, keys) passes `clean` first: no control character of it reaches a terminal.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from evertick.cli.show.words import brief, offset_of
from evertick.text.printable import escaped, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "Column",
    "as_json_option",
    "ask",
    "clean",
    "console",
    "hint",
    "json_text",
    "print_facts",
    "print_json",
    "print_section",
    "print_table",
    "say",
    "say_below",
    "style_of",
    "table_for_terminal",
]

_NOTHING = "-"
_BETWEEN = 2
# Letters of a column before what must be whole is cut for it.
_CUT_LEAST = 4
_SET_IN = 4

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
    "killed": "red",
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
}

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


class Column(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    is_right: bool = False
    # May be cut where the terminal is narrow, to so many characters before others are left out.
    is_cut: bool = False
    cut_least: int = 8
    # Cut at its beginning: what tells such texts apart stands at their end.
    is_cut_in_front: bool = False
    # Left out where not all fit, the highest first; 0: never.
    gives_way: int = 0
    # Then it is not lost but stands below the row: on a line with others, or on one of its own that is never broken,
    # to be copied.
    below: Literal["", "shared", "own"] = ""
    # A text that is cut in its column stands whole below its row.
    is_whole_below: bool = False
    # A moment: where not all fit told without parts of seconds, and with an offset that all have in the head.
    is_moment: bool = False
    # Left out on a terminal narrower than this: what only some readers need.
    width_least: int = 0
    # Coloured by its first word (a verdict, a state).
    is_coloured: bool = False


def clean(text: str) -> str:
    """The text on one line, without control characters."""
    return printable(text).strip()


def style_of(word: str) -> str:
    return _STYLES.get(word, "")


def print_json(data: Any) -> None:
    click.echo(json_text(data, indent=2))


def json_text(data: Any, *, indent: int | None = None) -> str:
    """JSON that a terminal shows as it is. `indent`: None for one line."""
    encoded = msgspec.json.encode(data)
    return escaped((encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode())


def hint(text: str, *, head: str = "", is_dim: bool = False) -> None:
    """A sentence on stderr, no part of the answer. On a terminal it is wrapped, set in by the length of its head."""
    whole = head + clean(text)
    if sys.stderr.isatty():
        # Text that a user may copy, like an id or a path, stays in one piece.
        lines = textwrap.wrap(
            whole,
            shutil.get_terminal_size().columns,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
        whole = "\n".join(lines)
        whole = click.style(whole, dim=True) if is_dim else whole
    click.echo(whole, err=True)


def ask(question: str, doing: str) -> None:
    """Go on only after a yes; without a terminal, only `--yes` is one."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"there is nobody to ask; write --yes to {doing} without a question")
    click.confirm(clean(question), abort=True, err=True)


def say(*parts: str | tuple[str, str]) -> None:
    """One line of texts, each perhaps with a style."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    if not sys.stdout.isatty():
        click.echo("".join(printable(text) for text, _ in pairs).rstrip())
        return
    from rich.text import Text

    console().print(Text.assemble(*((printable(text), style) for text, style in pairs)))


def say_below(text: str) -> None:
    """A sentence that belongs to the line before: set in, and over as many lines as it needs on a terminal."""
    if not sys.stdout.isatty():
        click.echo(f"    {clean(text)}")
        return
    from rich.padding import Padding
    from rich.text import Text

    console().print(Padding(Text(clean(text)), (0, 0, 0, 4)))


def print_section(title: str, lines: Iterable[str]) -> None:
    """A text of several lines below what was said before, each set in as it was."""
    say("")
    say((title, "bold"))
    for line in lines:
        say(f"  {line}")


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
        _print_table_for_terminal(columns, rows)
    else:
        _print_plain(columns, [[clean(cell) or _NOTHING for cell in row] for row in rows])


def _print_plain(columns: Sequence[Column], rows: list[list[str]]) -> None:
    widths = [_width(columns, rows, place) for place in range(len(columns))]
    for line in [[column.title for column in columns], *rows]:
        cells = zip(columns, line, widths, strict=True)
        click.echo("  ".join(_padded(column, cell, width) for column, cell, width in cells).rstrip())


def _width(columns: Sequence[Column], rows: list[list[str]], place: int, measure: Callable[[str], int] = len) -> int:
    return max([len(columns[place].title), *(measure(row[place]) for row in rows)])


def _padded(column: Column, cell: str, width: int) -> str:
    return cell.rjust(width) if column.is_right else cell.ljust(width)


def table_for_terminal(columns: Sequence[Column], given: Iterable[Sequence[str]], width: int) -> Table:
    """A table as rich draws it, for a terminal of this width, each row on one line."""
    from rich.table import Table
    from rich.text import Text

    columns, rows = list(columns), [[clean(cell) or _NOTHING for cell in row] for row in given]
    widths, _ = _fitted(columns, rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="bold")
    for place, cells in widths.items():
        column = columns[place]
        table.add_column(column.title, justify="right" if column.is_right else "left", no_wrap=True, width=cells)
    for row in rows:
        for place in (place for place in widths if columns[place].is_cut_in_front):
            row[place] = _tail(row[place], widths[place])
        styles = [style_of(row[place].partition(" ")[0]) if columns[place].is_coloured else "" for place in widths]
        cells_of = zip((row[place] for place in widths), styles, strict=True)
        table.add_row(*(Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in cells_of))
    return table


def _print_table_for_terminal(given_columns: Sequence[Column], given: Iterable[Sequence[str]]) -> None:
    from rich.cells import cell_len
    from rich.padding import Padding
    from rich.text import Text

    screen, columns = console(), list(given_columns)
    whole = [[clean(cell) or _NOTHING for cell in row] for row in given]
    rows = [[*row] for row in whole]
    widths, moved = _fitted(columns, rows, screen.width)
    screen.print(_line_of([columns[place].title for place in widths], ["bold"] * len(widths), columns, widths))
    for row, cells in zip(whole, rows, strict=True):
        styles = [style_of(row[place].partition(" ")[0]) if columns[place].is_coloured else "" for place in widths]
        cut = {place for place in widths if columns[place].is_whole_below and cell_len(cells[place]) > widths[place]}
        # The last column needs no beginning of what is whole below it.
        shown = ["" if place in cut and place == max(widths) else cells[place] for place in widths]
        screen.print(_line_of(shown, styles, columns, widths))
        for line in _broken_below(given_columns, row, cut, moved, max(widths), screen.width - _SET_IN):
            screen.print(Padding(Text(line), (0, 0, 0, _SET_IN), expand=False))
        for place in (place for place in moved if given_columns[place].below == "own" and row[place] != _NOTHING):
            text = Text(f"{' ' * _SET_IN}{_titled(given_columns[place], row[place])}")
            screen.print(text, no_wrap=True, overflow="ignore", crop=False)


def _line_of(cells: list[str], styles: list[str], columns: Sequence[Column], widths: dict[int, int]) -> Text:
    from rich.text import Text

    parts = []
    for cell, style, (place, width) in zip(cells, styles, widths.items(), strict=True):
        text = Text(_tail(cell, width) if columns[place].is_cut_in_front else cell, style)
        text.truncate(width, overflow="ellipsis")
        text.align("right" if columns[place].is_right else "left", width)
        parts.append(text)
    line = Text(" " * _BETWEEN).join(parts)
    line.rstrip()
    return line


def _titled(column: Column, cell: str) -> str:
    title = column.title.lower()
    return cell if cell.startswith(f"{title} ") else f"{title}: {cell}"


def _broken_below(
    columns: Sequence[Column], row: list[str], cut: set[int], moved: Sequence[int], last: int, width: int
) -> Iterator[str]:
    """The lines below a row that may be broken: of columns that have given way, and of texts that are cut."""
    gone = {place for place in moved if row[place] != _NOTHING}
    shared = [place for place in moved if place in gone and columns[place].below == "shared"]
    alone = [place for place in gone if columns[place].is_whole_below and not columns[place].below]
    line = ""
    for place in [*shared, *sorted({*cut, *alone})]:
        part = _titled(columns[place], row[place])
        if line and len(line) + _BETWEEN + len(part) > width:
            yield line
            line = ""
        # On a line of its own it is clear what the last column tells.
        is_plain = not line and columns[place].is_whole_below and place >= last
        line += row[place] if is_plain else f"{' ' * _BETWEEN if line else ''}{part}"
    if line:
        yield line


def _tail(text: str, width: int) -> str:
    return text if len(text) <= width else f"…{text[1 - width :]}" if width > 1 else "…"


def _fitted(columns: list[Column], rows: list[list[str]], width: int) -> tuple[dict[int, int], list[int]]:
    """The places of the columns to show, each with its width, and of those that have given way, in their order.

    Moments in `rows` are shortened, and their heads in `columns`, before anything is left out. A column whose cut texts
    stand whole below gets as little as its head needs first.
    """
    from rich.cells import cell_len

    shown = [place for place in range(len(columns)) if _is_shown(columns[place], width, rows, place)]
    whole = {place: _width(columns, rows, place, cell_len) for place in shown}
    if _least(columns, whole) > width:
        for place in (place for place in whole if columns[place].is_moment):
            _shorten_moments(columns, rows, place)
            whole[place] = _width(columns, rows, place, cell_len)
    squeezed: set[int] = set()
    while _least(columns, whole) > width and (able := [place for place in whole if columns[place].gives_way]):
        place = max(able, key=lambda place: (place in squeezed, columns[place].gives_way))
        if columns[place].is_whole_below and columns[place].is_cut and place not in squeezed:
            columns[place] = msgspec.structs.replace(columns[place], cut_least=len(columns[place].title))
            squeezed.add(place)
        else:
            del whole[place]
    widths = _cut(columns, whole, width - _least(columns, whole))
    for place in squeezed & whole.keys():
        if not any(row[place] != _NOTHING and cell_len(row[place]) <= widths[place] for row in rows):
            del whole[place]  # a head without anything below it
            widths = _cut(columns, whole, width - _least(columns, whole))
    return widths, [place for place in shown if place not in whole]


def _least(columns: Sequence[Column], whole: dict[int, int]) -> int:
    """The width of the table when every column that may be cut is."""
    return sum(_cut(columns, whole, 0).values()) + _BETWEEN * max(0, len(whole) - 1)


def _cut(columns: Sequence[Column], whole: dict[int, int], spare: int) -> dict[int, int]:
    """The widths of the columns when those that may be cut have this much more than the least, the narrowest first.

    Less than nothing to spare: it is taken from the widest of those that may be cut, and if that is not enough from the
    widest of all.
    """
    widths = {
        place: min(full, columns[place].cut_least) if columns[place].is_cut else full for place, full in whole.items()
    }
    while spare > 0 and (wanting := [place for place in widths if widths[place] < whole[place]]):
        widths[min(wanting, key=widths.__getitem__)] += 1
        spare -= 1
    while spare < 0 and max(widths.values()) > 1:
        cuttable = [place for place in widths if columns[place].is_cut and widths[place] > _CUT_LEAST]
        widths[max(cuttable or widths, key=widths.__getitem__)] -= 1
        spare += 1
    return widths


def _shorten_moments(columns: list[Column], rows: list[list[str]], place: int) -> None:
    """Without parts of seconds. The offset goes into the head, if it is that of all: it is never lost."""
    offsets = {offset_of(row[place]) for row in rows if row[place] != _NOTHING}
    for row in rows:
        row[place] = row[place] if row[place] == _NOTHING else brief(row[place], with_offset=len(offsets) > 1)
    if len(offsets) == 1:
        columns[place] = msgspec.structs.replace(columns[place], title=f"{columns[place].title} {offsets.pop()}")


def _is_shown(column: Column, width: int, rows: list[list[str]], place: int) -> bool:
    """Whether a terminal has room for the column, and the column something to say."""
    return width >= column.width_least and any(row[place] != _NOTHING for row in rows)


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)
