"""What the library says, in the words of the command line: it names commands and flags, not calls and arguments."""

from __future__ import annotations

import re

__all__ = ["in_commands"]

_CALLS = "add|backfill|cancel|move|pause|preview|remove|rerun|resume|run_early|skip_next|trigger|undo|update|why"
_CALL = re.compile(rf"\b({_CALLS})\(\)")
# An argument that an error begins with, where the flag has another name.
_FLAGS = {"after: ": "--after: ", "start: ": "--from: ", "end: ": "--to: ", "tz: ": "--tz: "}
# Of another app than the default one: what is to be written has to name it.
_NO_FEED = re.compile(r"app '(?!default')(?P<app>[^'\s]+)' keeps no feed")
_PHRASES = {
    'open it once with migrate="auto"': "start a node, which makes it",
    'or start one node with migrate="auto"': 'or start a node that may (migrate="auto", as it is by default)',
    "raise retention": "let the nodes keep it longer (retention=)",
    "pass the `cursor` of an event or a page, or None for the oldest": (
        "write the cursor that an earlier call has ended with; without --after it is the last hour"
    ),
    "Scheduler(feed='7d') or scheduler.keep_feed('7d')": (
        "`evertick events --keep 7d`, or in code with Scheduler(feed='7d')"
    ),
}


def in_commands(text: str) -> str:
    for argument, flag in _FLAGS.items():
        if text.startswith(argument):
            text = flag + text.removeprefix(argument)
    for phrase, instead in _PHRASES.items():
        text = text.replace(phrase, instead)
    if found := _NO_FEED.match(text):
        text = text.replace("events --keep", f"events --app {found['app']} --keep")
    return _CALL.sub(lambda call: f"`evertick {call[1].replace('_', '-')}`", text)
