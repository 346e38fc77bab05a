"""Names for jobs that had none: by the program that a command runs.

The same command gets the same name in every import, whatever else is there: the second job of a program is told apart
by what it is, not by its place.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection
from hashlib import blake2b
from pathlib import PurePosixPath

__all__ = ["free_name", "name_for"]

_LONGEST = 60
# They run another program, which is the one that matters.
_RUNNERS = frozenset(
    (
        *("bash", "chronic", "chrt", "command", "dash", "doas", "env", "exec", "flock", "ionice", "ksh", "nice"),
        *("node", "nohup", "perl", "php", "python", "python2", "python3", "ruby", "setsid", "sh", "stdbuf", "sudo"),
        *("systemd-cat", "taskset", "time", "timeout", "zsh"),
    )
)
# What a command does on its way.
_ON_THE_WAY = frozenset(["cd", "test", "[", "[[", "umask", "sleep", "source", ".", "export", "set", "ulimit", "exit"])
# Options of programs that run another one, with a word behind them: sudo -u www-data, flock -w 10.
_WITH_A_NAME = ("-u", "-g", "--user", "--group", "-w", "-E")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_BETWEEN = frozenset(["&&", "||", ";", "|", "&", "(", ")", "{", "}", ";;"])


def name_for(command: str, told_apart_by: str, taken: Collection[str]) -> str:
    """A name that nobody has yet."""
    name = _slug(_program(command)) or "job"
    if name not in taken:
        return name
    digest = blake2b(told_apart_by.encode(errors="surrogatepass"), digest_size=3).hexdigest()
    candidate, count = f"{name}-{digest}", 2
    while candidate in taken:  # the very same line once more
        candidate, count = f"{name}-{digest}-{count}", count + 1
    return candidate


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number where somebody else has it."""
    return next(
        each for each in itertools.chain((name,), (f"{name}-{n}" for n in itertools.count(2))) if each not in taken
    )


def _program(command: str) -> str:
    """The first program of a command that is no step on the way to another one."""
    words = _words(command)
    first = next((word for word in words if word not in _BETWEEN), "")
    is_skipping, is_lock_next, before = False, False, ""
    for word in words:
        before, option = word, before
        if word in _BETWEEN:
            is_skipping = False
        elif is_skipping or option in _WITH_A_NAME or _ASSIGNMENT.match(word):
            continue
        elif PurePosixPath(word).name == "flock":
            is_lock_next = True
        elif is_lock_next and not word.startswith("-"):
            is_lock_next = False  # its lock file, whatever that is called
        elif word in _ON_THE_WAY:
            is_skipping = True
        elif not word.startswith(("-", "/dev/", "$", ">", "<")) and not _is_runner(word):
            return word
    return first


def _is_runner(word: str) -> bool:
    """A program that runs another, or what goes with it: `timeout 30s`, `flock /run/lock/x.lock`, `nice -n 10`."""
    path = PurePosixPath(word)
    return path.name in _RUNNERS or path.suffix == ".lock" or re.fullmatch(r"\d+[smhd]?", word) is not None


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # a quote that is never closed; the shell will say so
        return command.split()


def _slug(word: str) -> str:
    path = PurePosixPath(word.split()[0] if " " in word.strip() else word)
    stem = path.stem if path.suffix in (".sh", ".py", ".pl", ".rb", ".php", ".bash", ".js") else path.name
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_LONGEST].strip("-")
