"""The root of the command line: which commands there are, and how a command that fails says so.

An error is one sentence on stderr, never a traceback (unless `EVERTICK_TRACEBACK=1` asks for it). Commands raise; only
this file turns what they raise into words and an exit code.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from evertick.cli.command.apply import apply
from evertick.cli.command.calendars import calendar
from evertick.cli.command.completion import completion
from evertick.cli.command.config import config
from evertick.cli.command.db import db
from evertick.cli.command.demo import demo
from evertick.cli.command.dist import dist
from evertick.cli.command.events import events
from evertick.cli.command.health import doctor, status
from evertick.cli.command.imports import import_
from evertick.cli.command.nodes import duties, ha, nodes
from evertick.cli.command.outbox import outbox
from evertick.cli.command.overrides import backfill, move, run_early, skip_next, undo
from evertick.cli.command.preview import explain, forecast, preview
from evertick.cli.command.rerun import failed, rerun
from evertick.cli.command.run import daemon, run
from evertick.cli.command.runs import cancel, history, logs, runs, why
from evertick.cli.command.schedules import add, list_schedules, pause, remove, resume, show, trigger, update
from evertick.cli.command.top import top
from evertick.cli.command.version import version_json_option, version_option
from evertick.cli.command.worker import worker
from evertick.cli.exits import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_WRONG, exit_codes_help
from evertick.cli.show.output import clean, hint
from evertick.errors import EvertickError, InvalidConfiguration, InvalidInput
from evertick.scheduler.process import TRACEBACK_VARIABLE
from evertick.text.values import has_control, shown

__all__ = ["TRACEBACK_VARIABLE", "cli", "phrased"]

_OF_COMMANDS = ("--app", "--database", "--json")
_CALL = re.compile(r"\b(\w+)\(\)")
# Settings that errors name, where the flag has another name; and what to do about them from here.
_FLAGS = {"after": "--after", "start": "--from", "end": "--to", "tz": "--tz"}
_FIXES = {
    "after": "write the cursor that an earlier call has ended with; without --after it is the last hour",
    "feed": "turn it on with `evertick events{app} --keep 7d`, or in code with Scheduler(feed='7d')",
    "start": "begin later, or let the nodes keep it longer (retention=)",
}


class Root(click.Group):
    """A group whose commands may raise anything."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _refuse_bytes(args, ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Other programs take such options here.
            if error.option_name not in _OF_COMMANDS:
                raise
            fix = f"write it behind the command, like `evertick list {error.option_name} …`"
            raise click.UsageError(f"No such option: {error.option_name}; {fix}", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which a newcomer needs them, not of the alphabet

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        try:
            code = super().main(
                args, prog_name, complete_var, standalone_mode=False, windows_expand_args=windows_expand_args, **extra
            )
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as asked:
            asked.show()
            sys.exit(EXIT_WRONG)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            _leave_broken_pipe()
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE) == "1":
                raise
            for sentence in _sentences(error):
                hint(sentence, head="error: ")
            sys.exit(_exit_code(error))
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # click does not say of which command an option lacks its value.
            if error.ctx is None and ctx.invoked_subcommand is not None:
                name = ctx.invoked_subcommand
                error.ctx = click.Context(self.commands[name], parent=ctx, info_name=name)
            raise
        except BrokenPipeError:
            # Here and not further out, since click would make exit code 1 of it.
            _leave_broken_pipe()


def _refuse_bytes(args: Sequence[str], ctx: click.Context) -> None:
    """Refuse an argument that is no text. A path may have any bytes: it is known by being there, or its folder."""
    for given in args:
        if has_control(given, in_lines=True):
            value = given.partition("=")[2] if given.startswith("-") and "=" in given else given
            path = Path(value)
            if not (os.path.lexists(path) or (path.name != value and path.parent.is_dir())):
                raise click.UsageError(
                    f"the argument {shown(given)} is no UTF-8 text, or has control characters; write it as plain text",
                    ctx,
                )


def _leave_broken_pipe() -> NoReturn:
    # Buffered output would raise once more while the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_BROKEN_PIPE)


def _sentences(error: Exception) -> list[str]:
    """One; of a configuration all that is wrong with it, as `config check` has it."""
    if isinstance(error, InvalidConfiguration):
        return [clean(problem) for problem in error.problems]
    return [_sentence(error)]


def _sentence(error: Exception) -> str:
    match error:
        case click.UsageError():
            path = "evertick" if error.ctx is None else error.ctx.command_path
            # A list of choices comes with a tab before each.
            message = " ".join(error.format_message().split()).rstrip(".")
            return clean(f"{message}{' See' if message.endswith('?') else '; see'} '{path} --help'")
        case click.ClickException():
            return clean(error.format_message())
        case EvertickError():
            return clean(phrased(error))
        case _:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            return clean(f"unexpected {what}; set {TRACEBACK_VARIABLE}=1 to see where it comes from")


def phrased(error: EvertickError) -> str:
    """The error with flags and commands in the place of arguments and calls."""
    problem, fix = error.problem, error.fix
    if (flag := _FLAGS.get(error.setting or "")) is not None:
        problem = problem.replace(f"{error.setting}: ", f"{flag}: ", 1)
    if fix is not None:
        fix = _FIXES.get(error.setting or "", fix)
        # Of another app than the default one: the command has to name it.
        app = "" if error.value in (None, "default") else f" --app {error.value}"
        fix = _CALL.sub(_command, fix.replace("{app}", app))
    return problem if fix is None else f"{problem}; {fix}"


def _command(call: re.Match[str]) -> str:
    name = call[1].replace("_", "-")
    return f"`evertick {name}`" if name in cli.commands else call[0]


def _exit_code(error: Exception) -> int:
    match error:
        case click.ClickException():
            return error.exit_code
        case InvalidInput():
            return EXIT_WRONG
        case _:
            return 1


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_codes_help())
@version_option
@version_json_option
def cli() -> None:
    """Runs jobs on time, once per promised moment, and can always say why.

    \b
    Example:
      evertick demo                   see it work, in twenty seconds
      evertick run app:scheduler      run the scheduler of app.py until Ctrl-C
      evertick list                   what is scheduled, and what came of it
    """


for command in (
    run,
    daemon,
    worker,
    list_schedules,
    show,
    logs,
    runs,
    history,
    events,
    failed,
    why,
    trigger,
    rerun,
    cancel,
    apply,
    add,
    update,
    pause,
    resume,
    remove,
    skip_next,
    move,
    run_early,
    undo,
    backfill,
    preview,
    forecast,
    explain,
    calendar,
    import_,
    outbox,
    top,
    status,
    nodes,
    duties,
    ha,
    doctor,
    config,
    db,
    dist,
    completion,
    demo,
):
    cli.add_command(command)
