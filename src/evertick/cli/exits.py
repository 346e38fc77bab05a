"""The exit codes of the command line, for the help and for the reference page."""

from __future__ import annotations

import textwrap

from evertick.scheduler.process import EXIT_REPLACED, EXIT_RESTART, EXIT_STALLED

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_CODES", "EXIT_INTERRUPTED", "EXIT_UNKNOWN", "EXIT_WRONG", "exit_codes_help"]

_HELP_WIDTH = 76

EXIT_WRONG = 2
# Monitors expect it after ok (0), warning (1) and critical (2).
EXIT_UNKNOWN = 3
# The shell reports these for a program that SIGINT or SIGPIPE has ended.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

EXIT_CODES = {
    0: "success; run, daemon: stopped by TERM or INT; top: ended by q or Ctrl-C",
    1: (
        "error; doctor, db check: problems found; logs --follow, backfill: a run did not succeed; rerun, import: not "
        "everything was done; status: warning"
    ),
    EXIT_WRONG: "usage error: an unknown flag, an impossible rule, a wrong configuration; status: critical",
    EXIT_UNKNOWN: "status: unknown",
    EXIT_STALLED: "run, daemon: the event loop was blocked for longer than stall_limit",
    EXIT_REPLACED: "run, daemon: the -wal or -shm file of SQLite was deleted or replaced",
    EXIT_RESTART: "run, daemon: stopped by HUP, which asks for a restart",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C, or a question was answered with no",
    EXIT_BROKEN_PIPE: "the reader of a pipe closed it",
}


def exit_codes_help() -> str:
    lines = [
        line
        for code, words in sorted(EXIT_CODES.items())
        for line in textwrap.wrap(words, _HELP_WIDTH, initial_indent=f"  {code:<5} ", subsequent_indent=" " * 8)
    ]
    return "\b\nExit codes:\n" + "\n".join(lines)
