"""The exit codes of the command line, in one table: the help of the root and the reference page show it."""

from __future__ import annotations

import textwrap

from evertick.scheduler.process import EXIT_REPLACED, EXIT_RESTART, EXIT_STALLED

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_CODES", "EXIT_INTERRUPTED", "EXIT_UNKNOWN", "EXIT_WRONG", "exit_codes_help"]

_HELP_WIDTH = 76

EXIT_WRONG = 2
# As monitors count: after ok, warning and critical.
EXIT_UNKNOWN = 3
# As the shell reports a program that ended by SIGINT or by SIGPIPE.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

EXIT_CODES = {
    0: "done; run, daemon: after TERM or INT; top: after q or Ctrl-C",
    1: (
        "something went wrong; doctor, db check: it is; logs --follow, backfill: no success; rerun, import: not all; "
        "status: warning"
    ),
    EXIT_WRONG: ("usage error: an unknown flag, an impossible rule, a wrong configuration; status: critical"),
    EXIT_UNKNOWN: "status: unknown",
    EXIT_STALLED: "run, daemon: the event loop was blocked for longer than stall_limit",
    EXIT_REPLACED: "run, daemon: the -wal or -shm file of SQLite was deleted or replaced",
    EXIT_RESTART: "run, daemon: after HUP, which asks for a restart",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C, or a question was answered with no",
    EXIT_BROKEN_PIPE: "the reader of a pipe has gone",
}


def exit_codes_help() -> str:
    # As far as a line of help goes: it is set in by two.
    lines = [
        line
        for code, words in sorted(EXIT_CODES.items())
        for line in textwrap.wrap(words, _HELP_WIDTH, initial_indent=f"  {code:<5} ", subsequent_indent=" " * 8)
    ]
    return "\b\nExit codes:\n" + "\n".join(lines)
