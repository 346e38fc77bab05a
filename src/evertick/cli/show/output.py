"""The output of commands: tables, facts and lines for people, JSON for programs.

On a terminal the output has colours, and text is wrapped. A cell that does not fit goes below its row, is cut or is
left out, as its column defines. In a pipe it is plain aligned text, complete. rich is loaded for a terminal only.
Everything that jobs and people wrote (errors, notes, keys) passes `clean` first, which removes control characters.
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

_EMPTY = "-"
_GAP = 2
# A column keeps this many letters before columns that are never cut lose any.
_CUT_LEAST = 4
_INDENT = 4

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

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON only.")


class Column(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    is_right: bool = False
    # Cut on a narrow terminal, to `cut_least` characters before other columns are left out.
    is_cut: bool = False
    cut_least: int = 8
    # Cut at the beginning, because such texts differ at their end.
    is_cut_in_front: bool = False
    # Left out if not all columns fit, the highest first; 0: never.
    gives_way: int = 0
    # A column that is left out is printed below the row: on a line with others, or on its own line, which is never
    # wrapped and can be copied.
    below: Literal["", "shared", "own"] = ""
    # A text that is cut in its column is printed in full below its row.
    is_whole_below: bool = False
    # If not all columns fit, a moment is shortened to seconds, and an offset that all rows share goes to the head.
    is_moment: bool = False
    # Left out on a narrower terminal.
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
    """JSON without control characters. `indent`: None for one line."""
    encoded = msgspec.json.encode(data)
    return escaped((encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode())


def hint(text: str, *, head: str = "", is_dim: bool = False) -> None:
    """Print a sentence on stderr, which is not part of the answer. On a terminal it is wrapped below its head."""
    whole = head + clean(text)
    if sys.stderr.isatty():
        # An id or a path is not broken, so that it can be copied.
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
    """Continue only after a yes. Without a terminal the command needs `--yes`."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"cannot ask for confirmation without a terminal; write --yes to {doing}")
    click.confirm(clean(question), abort=True, err=True)


def say(*parts: str | tuple[str, str]) -> None:
    """Print one line of texts, each with an optional style."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    if not sys.stdout.isatty():
        click.echo("".join(printable(text) for text, _ in pairs).rstrip())
        return
    from rich.text import Text

    console().print(Text.assemble(*((printable(text), style) for text, style in pairs)))


def say_below(text: str) -> None:
    """Print a sentence about the line before: indented, and wrapped on a terminal."""
    if not sys.stdout.isatty():
        click.echo(f"    {clean(text)}")
        return
    from rich.padding import Padding
    from rich.text import Text

    console().print(Padding(Text(clean(text)), (0, 0, 0, 4)))


def print_section(title: str, lines: Iterable[str]) -> None:
    """Print a title and its lines, indented."""
    say("")
    say((title, "bold"))
    for line in lines:
        say(f"  {line}")


def print_facts(facts: Iterable[tuple[str, str | Sequence[str]]]) -> None:
    """Print names with one or more lines each; names without text are left out."""
    known = [(name, [text] if isinstance(text, str) else list(text)) for name, text in facts if text]
    pairs = [(name if not number else "", clean(line)) for name, lines in known for number, line in enumerate(lines)]
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
        _print_plain(columns, [[clean(cell) or _EMPTY for cell in row] for row in rows])


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
    """A table of rich for a terminal of this width, with one line per row."""
    from rich.table import Table
    from rich.text import Text

    columns, rows = list(columns), [[clean(cell) or _EMPTY for cell in row] for row in given]
    widths, _ = _fitted(columns, rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
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
    whole = [[clean(cell) or _EMPTY for cell in row] for row in given]
    rows = [[*row] for row in whole]
    widths, moved = _fitted(columns, rows, screen.width)
    screen.print(_line_of([columns[place].title for place in widths], ["bold"] * len(widths), columns, widths))
    for row, cells in zip(whole, rows, strict=True):
        styles = [style_of(row[place].partition(" ")[0]) if columns[place].is_coloured else "" for place in widths]
        cut = {place for place in widths if columns[place].is_whole_below and cell_len(cells[place]) > widths[place]}
        # A last column that is printed below needs no beginning here.
        shown = ["" if place in cut and place == max(widths) else cells[place] for place in widths]
        screen.print(_line_of(shown, styles, columns, widths))
        for line in _broken_below(given_columns, row, cut, moved, max(widths), screen.width - _INDENT):
            screen.print(Padding(Text(line), (0, 0, 0, _INDENT), expand=False))
        for place in (place for place in moved if given_columns[place].below == "own" and row[place] != _EMPTY):
            text = Text(f"{' ' * _INDENT}{_titled(given_columns[place], row[place])}")
            screen.print(text, no_wrap=True, overflow="ignore", crop=False)


def _line_of(cells: list[str], styles: list[str], columns: Sequence[Column], widths: dict[int, int]) -> Text:
    from rich.text import Text

    parts = []
    for cell, style, (place, width) in zip(cells, styles, widths.items(), strict=True):
        text = Text(_tail(cell, width) if columns[place].is_cut_in_front else cell, style)
        text.truncate(width, overflow="ellipsis")
        text.align("right" if columns[place].is_right else "left", width)
        parts.append(text)
    line = Text(" " * _GAP).join(parts)
    line.rstrip()
    return line


def _titled(column: Column, cell: str) -> str:
    title = column.title.lower()
    return cell if cell.startswith(f"{title} ") else f"{title}: {cell}"


def _broken_below(
    columns: Sequence[Column], row: list[str], cut: set[int], moved: Sequence[int], last: int, width: int
) -> Iterator[str]:
    """The lines below a row that may be wrapped: of columns that were left out, and of texts that were cut."""
    hidden = {place for place in moved if row[place] != _EMPTY}
    shared = [place for place in moved if place in hidden and columns[place].below == "shared"]
    alone = [place for place in hidden if columns[place].is_whole_below and not columns[place].below]
    line = ""
    for place in [*shared, *sorted({*cut, *alone})]:
        part = _titled(columns[place], row[place])
        if line and len(line) + _GAP + len(part) > width:
            yield line
            line = ""
        # The last column needs no title on a line of its own.
        is_untitled = not line and columns[place].is_whole_below and place >= last
        line += row[place] if is_untitled else f"{' ' * _GAP if line else ''}{part}"
    if line:
        yield line


def _tail(text: str, width: int) -> str:
    return text if len(text) <= width else f"…{text[1 - width :]}" if width > 1 else "…"


def _fitted(columns: list[Column], rows: list[list[str]], width: int) -> tuple[dict[int, int], list[int]]:
    """The places of the columns to show, each with its width, and of those that are left out, in their order.

    Moments in `rows`, and their heads in `columns`, are shortened before a column is left out. A column whose cut texts
    are printed below is first reduced to the width of its head.
    """
    from rich.cells import cell_len

    shown = [place for place in range(len(columns)) if _is_shown(columns[place], width, rows, place)]
    whole = {place: _width(columns, rows, place, cell_len) for place in shown}
    if _least(columns, whole) > width:
        for place in (place for place in whole if columns[place].is_moment):
            _shorten_moments(columns, rows, place)
            whole[place] = _width(columns, rows, place, cell_len)
    squeezed: set[int] = set()
    while _least(columns, whole) > width and (optional := [place for place in whole if columns[place].gives_way]):
        place = max(optional, key=lambda place: (place in squeezed, columns[place].gives_way))
        if columns[place].is_whole_below and columns[place].is_cut and place not in squeezed:
            columns[place] = msgspec.structs.replace(columns[place], cut_least=len(columns[place].title))
            squeezed.add(place)
        else:
            del whole[place]
    widths = _cut(columns, whole, width - _least(columns, whole))
    for place in squeezed & whole.keys():
        if not any(row[place] != _EMPTY and cell_len(row[place]) <= widths[place] for row in rows):
            del whole[place]  # a head with empty cells
            widths = _cut(columns, whole, width - _least(columns, whole))
    return widths, [place for place in shown if place not in whole]


def _least(columns: Sequence[Column], whole: dict[int, int]) -> int:
    """The width of the table if every column that may be cut is cut."""
    return sum(_cut(columns, whole, 0).values()) + _GAP * max(0, len(whole) - 1)


def _cut(columns: Sequence[Column], whole: dict[int, int], spare: int) -> dict[int, int]:
    """The widths of the columns if this much space is left when all are cut. The narrowest column gets it first.

    A negative `spare` is taken from the widest column that may be cut, and if that is not enough, from the widest one.
    """
    widths = {
        place: min(full, columns[place].cut_least) if columns[place].is_cut else full for place, full in whole.items()
    }
    while spare > 0 and (incomplete := [place for place in widths if widths[place] < whole[place]]):
        widths[min(incomplete, key=widths.__getitem__)] += 1
        spare -= 1
    while spare < 0 and max(widths.values()) > 1:
        cuttable = [place for place in widths if columns[place].is_cut and widths[place] > _CUT_LEAST]
        widths[max(cuttable or widths, key=widths.__getitem__)] -= 1
        spare += 1
    return widths


def _shorten_moments(columns: list[Column], rows: list[list[str]], place: int) -> None:
    """Shorten moments to seconds. If all rows have the same offset, it goes to the head."""
    offsets = {offset_of(row[place]) for row in rows if row[place] != _EMPTY}
    for row in rows:
        row[place] = row[place] if row[place] == _EMPTY else brief(row[place], with_offset=len(offsets) > 1)
    if len(offsets) == 1:
        columns[place] = msgspec.structs.replace(columns[place], title=f"{columns[place].title} {offsets.pop()}")


def _is_shown(column: Column, width: int, rows: list[list[str]], place: int) -> bool:
    """Whether the terminal is wide enough for the column, and one of its cells has text."""
    return width >= column.width_least and any(row[place] != _EMPTY for row in rows)


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)
