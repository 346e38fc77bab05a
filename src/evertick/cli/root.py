"""The root of the command line: the list of commands, and the errors of all of them.

Commands raise. Only this file prints an error, as one sentence on stderr, and sets the exit code. With
`EVERTICK_TRACEBACK=1` the traceback is printed instead.
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

# Options that other programs take before the command.
_COMMAND_OPTIONS = ("--app", "--database", "--json")
_CALL = re.compile(r"\b(\w+)\(\)")
# By command and by the setting that an error names: the flag in its place, and the fix on the command line.
_FLAGS = {"events": {"after": "--after"}, "backfill": {"start": "--from", "end": "--to"}}
_FIXES = {
    "events": {
        "after": "write the cursor that an earlier call ended with; without --after it shows the last hour",
        "feed": "turn it on with `evertick events{app} --keep 7d`, or in code with Scheduler(feed='7d')",
    },
    "backfill": {"start": "start later, or raise retention= on the nodes"},
    "rerun": {"overlap": "--overlap queue runs it after that one, --overlap allow beside it"},
}
# Flags of the same name in all commands.
_COMMON_FLAGS = {"tz": "--tz"}


class Root(click.Group):
    """The group of all commands. It prints the errors that they raise."""

    # The command that runs, for the words of its error.
    _command = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _refuse_bytes(args, ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _COMMAND_OPTIONS:
                raise
            fix = f"write it after the command, like `evertick list {error.option_name} …`"
            raise click.UsageError(f"No such option: {error.option_name}; {fix}", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which a new user needs them

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
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(EXIT_WRONG)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            _leave_broken_pipe()
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE) == "1":
                raise
            for sentence in _sentences(error, self._command):
                hint(sentence, head="error: ")
            sys.exit(_exit_code(error))
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # click does not name the command of an option that lacks its value.
            if error.ctx is None and ctx.invoked_subcommand is not None:
                name = ctx.invoked_subcommand
                error.ctx = click.Context(self.commands[name], parent=ctx, info_name=name)
            raise
        except BrokenPipeError:
            # Handled here, because click would exit with code 1.
            _leave_broken_pipe()
        finally:
            self._command = ctx.invoked_subcommand or ""


def _refuse_bytes(args: Sequence[str], ctx: click.Context) -> None:
    """Refuse an argument that is not text. A path may have any bytes if it, or its folder, exists."""
    for given in args:
        if has_control(given, in_lines=True):
            value = given.partition("=")[2] if given.startswith("-") and "=" in given else given
            path = Path(value)
            if not (os.path.lexists(path) or (path.name != value and path.parent.is_dir())):
                problem = f"the argument {shown(given)} is not UTF-8 text, or has control characters"
                raise click.UsageError(f"{problem}; write it as plain text", ctx)


def _leave_broken_pipe() -> NoReturn:
    # Else buffered output raises again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_BROKEN_PIPE)


def _sentences(error: Exception, command: str) -> list[str]:
    """The error in one sentence; all problems of a configuration, as `config check` prints them."""
    if isinstance(error, InvalidConfiguration):
        return [clean(problem) for problem in error.problems]
    return [_sentence(error, command)]


def _sentence(error: Exception, command: str) -> str:
    match error:
        case click.UsageError():
            path = "evertick" if error.ctx is None else error.ctx.command_path
            # click indents each of several choices with a tab.
            message = " ".join(error.format_message().split()).rstrip(".")
            return clean(f"{message}{' See' if message.endswith('?') else '; see'} '{path} --help'")
        case click.ClickException():
            return clean(error.format_message())
        case EvertickError():
            return clean(phrased(error, command))
        case _:
            unexpected = f"{type(error).__name__}: {error}".rstrip(": ")
            return clean(f"unexpected {unexpected}; set {TRACEBACK_VARIABLE}=1 to see the traceback")


def phrased(error: EvertickError, command: str = "") -> str:
    """The error of a command, with flags and commands in place of arguments and calls."""
    problem, fix, setting = error.problem, error.fix, error.setting or ""
    if (flag := (_COMMON_FLAGS | _FLAGS.get(command, {})).get(setting)) is not None:
        problem = problem.replace(f"{setting}: ", f"{flag}: ", 1)
    if fix is not None:
        fix = _FIXES.get(command, {}).get(setting, fix)
        # An app other than the default one must be named.
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
      evertick demo                   a demonstration of twenty seconds
      evertick run app:scheduler      run the scheduler of app.py until Ctrl-C
      evertick list                   the next fire and last verdict of schedules
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
