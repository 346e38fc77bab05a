"""The commands preview, explain and forecast."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import msgspec

from evertick.cli.command.completion import complete_keys
from evertick.cli.database import on_store
from evertick.cli.parameters import MomentParameter, ZoneParameter, labels_option
from evertick.cli.show.heatmap import heatmap_svg, print_heatmap
from evertick.cli.show.output import Column, as_json_option, hint, print_facts, print_json, print_table, say
from evertick.cli.show.progress import progress
from evertick.cli.show.words import distance, now, stamp, times_of, zone_name
from evertick.cli.time_zone import moments_tz_option
from evertick.errors import Refused
from evertick.operations.next_fires import Ahead, planned_fires
from evertick.operations.preview import AppForecast
from evertick.plan.forecast import DAYS_MAX, Collision
from evertick.plan.spread import Suggestion
from evertick.plan.upcoming import COUNT_MOST
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.when import Cron, When, parse_when, to_us
from evertick.when.base import UPCOMING_LIMIT
from evertick.when.duration import duration_us, duration_words

__all__ = [
    "explain",
    "forecast",
    "preview",
]

_COUNT = 10
_UPCOMING = 5
# The key for `H` if none is given.
_EXAMPLE_KEY = "example"


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@click.option("--count", type=click.IntRange(1, UPCOMING_LIMIT), help=f"The number of fires; default: {_COUNT}.")
@click.option("--until", type=MomentParameter(), help="All fires until then (or --count of them).")
@moments_tz_option
@as_json_option
@on_store
async def preview(
    scheduler: Scheduler, key: str | None, count: int | None, until: datetime | None, as_json: bool
) -> None:
    """Show the next fires of all schedules, or of one.

    MOMENT is in the zone of each schedule, or in that of --tz; ZONE is its name.

    The moments of a blackout that become one run, or none, are one line; --count counts only fires that run.

    \b
    Example:
      evertick preview --count 20
      evertick preview report --until 7d
      evertick preview --tz Europe/Berlin
    """
    most = count or (_COUNT if until is None else UPCOMING_LIMIT)
    schedules = await scheduler.schedules(is_paused=False) if key is None else [await scheduler.schedule(key)]
    planned = await call(scheduler, planned_fires, schedules, count=most, until=until)
    if as_json:
        print_json(planned)
        return
    if key is not None and schedules[0].is_paused:
        hint(f"note: {key!r} is paused; it would fire at these moments")
    if not planned:
        hint("no schedule has a next fire")
        return
    moment = now()
    columns = [
        Column(title="MOMENT", is_moment=True),
        Column(title="ZONE", below="shared", gives_way=1),
        Column(title="IN", below="shared", gives_way=2),
        Column(title="KEY", is_whole_below=True),
        Column(title="TASK", is_cut=True, gives_way=4),
    ]
    if any(each.prospect is not None for each in planned):
        columns.append(Column(title="NOTE", is_cut=True, is_whole_below=True, gives_way=3))
    print_table(columns, [_row(each, moment)[: len(columns)] for each in planned])


def _row(each: Ahead, moment: datetime) -> list[str]:
    with times_of(each.fire_at.tzinfo) as zone:
        fire_at, note = stamp(each.fire_at, is_exact=True), _prospect_words(each)
    return [fire_at, zone_name(zone), distance(each.at, moment), each.key, each.task, note]


def _prospect_words(planned: Ahead) -> str:
    many = f"{planned.moments}{'' if planned.moments < COUNT_MOST else ' or more'} moments"
    match planned.prospect:
        case "held" if planned.moments > 1:
            return f"{many} held by its blackout; the newest runs at {stamp(planned.at, is_exact=True)}"
        case "dropped" if planned.moments > 1:
            return f"{many} dropped by its blackout"
        case "moved":
            return f"moved to {stamp(planned.at, is_exact=True)}"
        case "held":
            return f"held by its blackout until {stamp(planned.at, is_exact=True)}"
        case "dropped":
            return "dropped by its blackout"
        case "skipped":
            return "will be skipped"
        case None:
            return ""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A rule in words, and its next moments."""

    text: str
    words: str
    upcoming: list[datetime]
    minimum_distance_seconds: float | None
    warnings: list[str]
    notes: list[str]


@click.command()
@click.argument("rule")
@click.option("--tz", metavar="ZONE", help="The zone of the rule, like Europe/Berlin; default: UTC.")
@click.option("--dst", metavar="RULE", help="The rule for clock changes: cron (default), skip, shift or wall.")
@click.option("--days", metavar="RULE", help="Day of month and day of week: or (default), and.")
@click.option("--key", metavar="KEY", help="The key of the schedule, from which H is computed.")
@as_json_option
def explain(rule: str, tz: str | None, dst: str | None, days: str | None, key: str | None, as_json: bool) -> None:
    """Explain a rule in words. Needs no database.

    Shows the rule in words, its next moments, the least time between two of them, and warnings.

    RULE is a cron expression, text like "every 90s" or "once 2026-01-31T09:00:00Z", or a sentence.

    \b
    Example:
      evertick explain "30 2 * * mon-fri" --tz Europe/Berlin
      evertick explain "@every 90s"
      evertick explain "weekdays at 18:30 in Europe/Berlin"
    """
    options = {"tz": tz, "dst": dst, "days": days, "key": key}
    text = "; ".join([rule, *(f"{name}={value}" for name, value in options.items() if value is not None)])
    moment = now()
    explained = _explained(parse_when(text), moment)
    if as_json:
        print_json(explained)
        return
    upcoming = [
        f"{stamp(each, is_local=False, is_exact=True)}  {each:%a}  {distance(each, moment)}"
        for each in explained.upcoming
    ]
    least = explained.minimum_distance_seconds
    print_facts(
        [
            ("Rule", explained.text),
            ("In words", explained.words),
            ("Next", upcoming or "never"),
            ("At least", "" if least is None else f"{duration_words(duration_us(least))} apart"),
            ("Warning", explained.warnings),
            ("Note", explained.notes),
        ]
    )


def _explained(rule: When, moment: datetime) -> Explained:
    bound = rule.bind(key=_EXAMPLE_KEY, created=to_us(moment))
    notes = []
    if isinstance(bound, Cron) and isinstance(rule, Cron) and bound.key != rule.key:
        notes.append(f"H is computed from the key of the schedule, here {_EXAMPLE_KEY!r}; --key sets another")
    distance_least = bound.minimum_distance(moment)
    return Explained(
        text=bound.text,
        words=bound.explain(),
        upcoming=bound.upcoming(moment, _UPCOMING),
        minimum_distance_seconds=None if distance_least is None else distance_least.total_seconds(),
        warnings=bound.warnings(moment) if isinstance(bound, Cron) else [],
        notes=notes,
    )


_SHOWN = 5
_KEYS_SHOWN = 4
# Parts of a forecast that the text output prints as hints.
_NOT_IN_JSON = ("schedules", "unreadable")


@click.command()
@click.option("--days", type=click.IntRange(1, DAYS_MAX), default=7, show_default=True, help="Days, today included.")
@click.option("--key", "keys", multiple=True, shell_complete=complete_keys, help="Only this schedule; may be repeated.")
@labels_option
@click.option("--tz", type=ZoneParameter(), help="The zone of the hours and days; default: that of this machine.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also write a heatmap to this file.")
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
    """Forecast the fires of the next days.

    Shows fires per hour, the busiest minutes, the instants at which several schedules fire at once, and rules that
    would spread them. Paused schedules are left out.

    \b
    Example:
      evertick forecast
      evertick forecast --days 14 --label team=sales --tz Europe/Berlin
      evertick forecast --svg forecast.svg
    """
    with progress("schedules read", is_quiet=as_json) as report:
        made = await scheduler.forecast(
            days=days, keys=keys, labels=dict(labels), tz=tz, on_read=lambda count: report(count, None)
        )
    for key, error in made.unreadable.items():
        hint(f"note: {key} is left out: {error}")
    if svg is not None:
        _write(svg, heatmap_svg(made, f"Forecast of app {scheduler.app}"))
    if as_json:
        print_json({name: value for name, value in msgspec.structs.asdict(made).items() if name not in _NOT_IN_JSON})
    elif not made.schedules:
        hint(f"no schedule of app {scheduler.app!r} that matches will fire")
    else:
        _print(made)
    if svg is not None and not as_json:
        hint(f"note: the heatmap was written to {svg}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        problem = f"{str(path)!r} cannot be written ({error.strerror})"
        raise Refused(problem, fix="name another file with --svg") from error


def _print(made: AppForecast) -> None:
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
    _print_suggestions(made.suggestions)


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
    # A recommended rule is never cut, so that it can be copied.
    columns = [
        Column(title="KEY"),
        Column(title="RULE", below="own", gives_way=2),
        Column(title="INSTEAD", below="own", gives_way=1),
    ]
    print_table(columns, [[each.key, each.when, each.instead] for each in spread])
    hint("note: `evertick update KEY --when RULE` sets such a rule; --dry-run previews the change")
