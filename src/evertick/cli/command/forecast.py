"""The command forecast: how busy the days to come are, where schedules collide, how to spread them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import msgspec

from evertick.cli.candidates import complete_keys
from evertick.cli.database import on_store
from evertick.cli.parameters import ZoneParameter, labels_option
from evertick.cli.show.heatmap import heatmap_svg, print_heatmap
from evertick.cli.show.output import Column, as_json_option, hint, print_json, print_table, say
from evertick.cli.show.progress import progress
from evertick.cli.show.words import stamp
from evertick.errors import NotFound, Refused
from evertick.explain.all_schedules import survey
from evertick.plan.forecast import DAYS_MAX, Collision, Expected, Forecast
from evertick.plan.forecast import forecast as make_forecast
from evertick.plan.spread import Suggestion, suggestions
from evertick.scheduler.scheduler import Scheduler
from evertick.when import from_us

__all__ = ["forecast"]

_SHOWN = 5
_KEYS_SHOWN = 4


@click.command()
@click.option("--days", type=click.IntRange(1, DAYS_MAX), default=7, show_default=True, help="So many, with today.")
@click.option("--key", "keys", multiple=True, shell_complete=complete_keys, help="Only this schedule; may be repeated.")
@labels_option
@click.option("--tz", type=ZoneParameter(), help="The zone of the hours and days; default: that of this machine.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also write the picture to this file.")
@as_json_option
@on_store
async def forecast(
    scheduler: Scheduler,
    days: int,
    keys: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    tz: ZoneInfo | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show how busy the days to come are.

    Fires per hour, the busiest minutes, and the instants at which several schedules fire at once, with rules that
    would spread them. Paused schedules are left out.

    \b
    Example:
      evertick forecast
      evertick forecast --days 14 --label team=sales --tz Europe/Berlin
      evertick forecast --svg forecast.svg
    """
    expected = await _expected(scheduler, keys, dict(labels), as_json)
    since = await (await scheduler.runtime.store()).now()
    made = make_forecast(expected, since, days, lambda us: _shown(us, tz))
    spread = suggestions(made.collisions, expected, since)
    if svg is not None:
        _write(svg, heatmap_svg(made, f"Forecast of app {scheduler.app}"))
    if as_json:
        print_json({**msgspec.structs.asdict(made), "suggestions": spread})
    elif not expected:
        hint(f"nothing is going to fire in app {scheduler.app!r} for this question")
    else:
        _print(made, spread)
    if svg is not None and not as_json:
        hint(f"note: the picture is in {svg}")


def _shown(us: int, tz: ZoneInfo | None) -> datetime:
    return from_us(us).astimezone() if tz is None else from_us(us, tz)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{str(path)!r} cannot be written ({error.strerror}); name another file with --svg") from error


async def _expected(
    scheduler: Scheduler, keys: tuple[str, ...], labels: dict[str, str], as_json: bool
) -> dict[str, Expected]:
    expected, found, unreadable = {}, set(), {}
    with progress("schedules read", is_quiet=as_json) as report:
        async for each in survey(await scheduler.runtime.store(), scheduler.app, keys=keys, labels=labels):
            found.add(each.schedule.key)
            report(len(found), None)
            if each.rule_error is not None:
                unreadable[each.schedule.key] = each.rule_error
            if each.expected is not None:
                expected[each.schedule.key] = each.expected
    for key, error in unreadable.items():
        hint(f"note: {key} is left out: {error}")
    for key in keys:
        if key not in found and not labels:
            raise NotFound(
                f"there is no schedule {key!r} in app {scheduler.app!r}; `evertick list` shows those there are"
            )
    return expected


def _print(made: Forecast, spread: list[Suggestion]) -> None:
    print_heatmap(made)
    say("")
    say(("Busiest minutes", "bold"))
    columns = [Column(title="MINUTE"), Column(title="FIRES", is_right=True)]
    minutes = [[stamp(each.at, is_local=False), str(each.fires)] for each in made.busiest[:_SHOWN]]
    print_table(columns, minutes)
    if not made.collisions:
        return
    say("")
    say(("At the same instant", "bold"))
    columns = [
        Column(title="FIRST", is_moment=True),
        Column(title="SCHEDULES", is_right=True),
        Column(title="TIMES", is_right=True),
        Column(title="KEYS", is_cut=True, is_whole_below=True, gives_way=1),
    ]
    print_table(columns, [_collision_row(each) for each in made.collisions[:_SHOWN]])
    _print_suggestions(spread)


def _collision_row(collision: Collision) -> list[str]:
    keys, more = collision.keys[:_KEYS_SHOWN], len(collision.keys) - _KEYS_SHOWN
    return [
        stamp(collision.at, is_local=False, is_exact=True),
        str(len(collision.keys)),
        f"{collision.times}{'' if collision.is_exact else '+'}",
        ", ".join(keys) + (f" and {more} more" if more > 0 else ""),
    ]


def _print_suggestions(spread: list[Suggestion]) -> None:
    if not spread:
        return
    say("")
    say(("To spread them", "bold"))
    # What is recommended is there to be copied, whole.
    columns = [
        Column(title="KEY"),
        Column(title="RULE", below="own", gives_way=2),
        Column(title="INSTEAD", below="own", gives_way=1),
    ]
    print_table(columns, [[each.key, each.when, each.instead] for each in spread])
    hint("note: `evertick update KEY --when RULE` sets such a rule; with --dry-run it shows what that changes")
