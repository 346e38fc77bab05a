"""Names for imported jobs: the name of the program that a command runs, unique among all jobs.

A shell command may test and wait before it starts a program, and pipe its output through others. The name comes from
the first program that is neither such a step nor a standard tool. If there is none, or its name is vague (`cron`,
`update`), the name of the file in /etc/cron.d is used, too.

A command gets the same name in every import: the name of a second job of a program depends on its line, not on its
position.

Two jobs with one name in a directory of jobs are rejected, so an import reads the names in use there. Files that cannot
be read have none; `evertick config check` reports them.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path, PurePosixPath

from evertick.text.regular_file import read_regular

__all__ = ["free_name", "name_for", "names_in_use"]

_NAME_MAX_CHARS = 60
# The nesting of commands: sudo nice sh -c "…".
_DEPTH_MAX = 16
# Only the beginning of a longer command is read.
_READ_MAX_CHARS = 10_000
_FILES_MAX = 1_000
_FILE_MAX_BYTES = 4 * 1024 * 1024
# The main configuration, in the directory above that of the jobs.
_MAIN_FILE = "evertick.toml"

# Commands that run another program, which gives the name; with their options that take a value.
_RUNNERS = {
    **dict.fromkeys(
        ["command", "chronic", "cronic", "dbus-run-session", "eatmydata", "nocache", "nohup", "run-one"], ""
    ),
    **dict.fromkeys(["setsid", "setuidgid", "systemd-inhibit", "taskset", "unshare"], ""),
    "chpst": "-u -U -b -e -m",
    "chroot": "-g -u",
    "chrt": "-T -P -D",
    "doas": "-u -C",
    "env": "-u --unset -C --chdir",
    "exec": "-a",
    "flock": "-w --timeout -E --conflict-exit-code",
    "ionice": "-c -n -p -t",
    "lckdo": "-W -E",
    "nice": "-n",
    "runuser": "-u -g -G",
    "stdbuf": "-i -o -e",
    "sudo": "-u -g -h -p -C -r -t -U -D -R -T --user --group",
    "systemd-cat": "-t -p",
    "systemd-run": "-p -u -M -H -E --unit --property",
    "time": "-f -o",
    "timeout": "-k -s",
    "xargs": "-I -i -n -P -L -d -a -s -E",
    "xvfb-run": "-n -s -f -e -p",
}
# Runners with an argument before the program: a lock file, a user, a directory, a mask.
_WITH_ARGUMENT = frozenset(("chroot", "flock", "lckdo", "setuidgid", "taskset"))
# They run a script, or the code after an option like -c.
_SHELL = re.compile(r"(ba|da|k|mk|z|a)?sh")
_INTERPRETER = re.compile(r"(?:(python|perl|php|ruby|node|lua)|(pypy))[\d.]*")
_CODE = {"python": "c", "pypy": "c", "perl": "eE", "php": "r", "ruby": "e", "node": "ep", "lua": "e"}
_WITH_VALUE = {
    "python": "-W -X",
    "pypy": "-W -X",
    "perl": "-I",
    "php": "-d -c",
    "ruby": "-I -r",
    "node": "-r --require",
    "sh": "-o -O +o +O --rcfile --init-file",
}
# Steps before or after the program of a command.
_STEPS = frozenset(
    (
        *("test", "[", "[[", "cd", "pushd", "popd", "umask", "sleep", "usleep", "source", ".", "export", "set"),
        *("ulimit", "exit", "return", "break", "continue", "trap", "wait", "shift", "local", "declare", "readonly"),
        *("shopt", "eval", "read", "true", "false", ":", "which", "type", "hash", "let", "renice", "nproc", "unset"),
        *("pgrep", "pidof", "hostname", "id", "whoami", "basename", "dirname", "seq", "shuf", "mktemp", "getconf"),
        *("on_ac_power", "systemd-detect-virt", "mountpoint"),
    )
)
# Standard tools say little about a job; those that only print or filter say least.
_TOOLS = frozenset(
    (
        *("chgrp", "chmod", "chown", "cp", "dd", "find", "install", "kill", "killall", "ln", "logger", "ls", "mail"),
        *("mailx", "mkdir", "mv", "pkill", "rm", "rmdir", "sendmail", "sync", "touch", "truncate"),
    )
)
_FILTERS = frozenset(
    (
        *("awk", "cat", "cut", "date", "echo", "egrep", "fgrep", "gawk", "grep", "head", "mawk", "printf", "pwd"),
        *("rev", "sed", "sort", "tac", "tail", "tee", "tr", "ts", "uniq", "wc"),
    )
)
# Names of programs that do not say what they work on.
_VAGUE = frozenset(
    (
        *("app", "check", "clean", "cleanup", "cli", "cron", "cron-job", "cronjob", "daily", "gc", "hourly", "index"),
        *("job", "jobs", "main", "manage", "monthly", "purge", "rotate", "run", "script", "start", "sync", "task"),
        *("tasks", "update", "weekly", "worker"),
    )
)
# Programs whose jobs are named after this argument.
_NAMED_BY_ARGUMENT = {"invoke-rc.d": 0, "run-parts": 0, "service": 0, "systemctl": 1}
_KEYWORDS = frozenset(("!", "if", "then", "elif", "else", "fi", "do", "done", "while", "until", "esac", "{", "}"))
# Words follow them up to the end of the command, but no program.
_LISTS = frozenset(("for", "select", "function"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_SEPARATOR = re.compile(r"[;&|()\n]+")
_REDIRECTION = re.compile(r"&?[<>]+[&|]?")
_NUMBER = re.compile(r"\d+(\.\d+)?[smhd]?")
_SUFFIXES = (".sh", ".py", ".pl", ".rb", ".php", ".bash", ".js", ".phar", ".jar")


def name_for(command: str, identity: str, taken: Collection[str], file_name: str = "") -> str:
    """An unused name. `file_name`: the name of the file in /etc/cron.d."""
    name = _name(command, _slug(file_name)) or "job"
    if name not in taken:
        return name
    digest = blake2b(identity.encode(errors="surrogatepass"), digest_size=3).hexdigest()
    candidate, count = f"{name}-{digest}", 2
    while candidate in taken:  # the same line again
        candidate, count = f"{name}-{digest}-{count}", count + 1
    return candidate


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number if another job has it."""
    return next(
        each for each in itertools.chain((name,), (f"{name}-{n}" for n in itertools.count(2))) if each not in taken
    )


def _name(command: str, file: str) -> str:
    programs = [each for each in map(_slug, _programs(command[:_READ_MAX_CHARS], _DEPTH_MAX)) if each]
    tools = _TOOLS | _FILTERS
    if (program := next((each for each in programs if each not in tools), None)) is not None:
        return _joined(file, program) if program in _VAGUE else program
    if (tool := next((each for each in programs if each in _TOOLS), None)) is not None:
        return _joined(file, tool)
    return file or next(iter(programs), "") or _slug(_first_word(command))


def _first_word(command: str) -> str:
    words = (word for word in _words(command[:_READ_MAX_CHARS]) if not _SEPARATOR.fullmatch(word))
    return next((word for word in words if word not in _KEYWORDS and not _ASSIGNMENT.match(word)), "")


def _joined(file: str, program: str) -> str:
    return program if program in file.split("-") or not file else f"{file}-{program}"[:_NAME_MAX_CHARS].strip("-")


def _programs(command: str, depth: int) -> Iterator[str]:
    """The programs of a command in order, without steps."""
    if depth:
        for words in _simple_commands(_words(_without_substitutions(command))):
            yield from _program(words, depth)


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    """The simple commands, without redirections and keywords of the shell."""
    current: list[str] = []
    is_target, is_pattern = False, False
    for word in words:
        if is_target:
            is_target = False
        elif is_pattern:  # case … in, and each pattern of it
            is_pattern = ")" not in word and word != "esac"
        elif _REDIRECTION.fullmatch(word):
            if current and current[-1].isdigit():
                current.pop()  # 2>…
            is_target = True
        elif _SEPARATOR.fullmatch(word):
            yield current
            current, is_pattern = [], word == ";;"
        elif not current and word == "case":
            is_pattern = True
        elif not current and word in _KEYWORDS:
            continue
        else:
            current.append(word)
    yield current


def _program(words: list[str], depth: int) -> Iterator[str]:
    """The program of a simple command; for a runner, the program that it runs."""
    rest = list(itertools.dropwhile(_ASSIGNMENT.match, words))
    if not rest or rest[0] in _LISTS or depth <= 0:
        return
    word, rest = rest[0], rest[1:]
    name = PurePosixPath(word).name
    if name in ("su", "runuser") and "-u" not in rest:
        yield from _of_user(rest, depth)
    elif name == "command" and rest[:1] in (["-v"], ["-V"]):
        return
    elif name in _RUNNERS:
        yield from _of_runner(name, rest, depth)
    elif _SHELL.fullmatch(name):
        yield from _of_shell(rest, depth)
    elif (interpreter := _INTERPRETER.fullmatch(name)) is not None:
        yield from _of_interpreter(interpreter[1] or interpreter[2], rest)
    elif name in _NAMED_BY_ARGUMENT:
        arguments = [each for each in rest if not each.startswith("-")]
        yield PurePosixPath((arguments[_NAMED_BY_ARGUMENT[name] :] or [name])[0]).name
    elif name == "find" and "-exec" in rest and (inner := rest[rest.index("-exec") + 1 :]):
        yield from _program(inner, depth - 1) if inner[0] not in _TOOLS else (name,)
    elif name not in _STEPS and not name.startswith("-") and "$" not in name and not _NUMBER.fullmatch(name):
        yield name


def _of_runner(name: str, words: list[str], depth: int) -> Iterator[str]:
    """`timeout 5m backup`, `flock -n /run/lock backup`, `sudo -u www-data backup`."""
    with_value, rest = _RUNNERS[name].split(), list(words)
    is_argument_next = name in _WITH_ARGUMENT
    while rest:
        word = rest[0]
        if word in ("-c", "--command") and name == "flock":
            yield from _programs(" ".join(rest[1:2]), depth - 1)
            return
        if word in with_value:
            rest = rest[2:]
        elif word.startswith("-") or _ASSIGNMENT.match(word) or _NUMBER.fullmatch(word) or _is_variable(word):
            rest = rest[1:]
        elif is_argument_next:
            is_argument_next, rest = False, rest[1:]
        else:
            break
    yield from _program(rest, depth - 1)


def _of_user(words: list[str], depth: int) -> Iterator[str]:
    """`su - backup -c "tidy --all"`."""
    for option, code in itertools.pairwise(words):
        if option in ("-c", "--command"):
            yield from _programs(code, depth - 1)
            return


def _of_shell(words: list[str], depth: int) -> Iterator[str]:
    """`sh script`, `bash -lc "cd /srv && ./tidy"`."""
    for at, word in _without_values(words, _WITH_VALUE["sh"]):
        if re.fullmatch(r"-[a-z]*c", word):
            code = next((each for each in words[at + 1 :] if not each.startswith("-")), "")
            yield from _programs(code, depth - 1)
            return
        if not word.startswith(("-", "+")):
            yield from _script(word)
            return


def _of_interpreter(name: str, words: list[str]) -> Iterator[str]:
    """`php -q poller.php`, `python3 -m shop.tidy`; code in the command gives no name."""
    for at, word in _without_values(words, _WITH_VALUE.get(name, "")):
        if name in ("python", "pypy") and word == "-m":
            yield from words[at + 1 : at + 2]
            return
        if re.fullmatch(rf"-[A-Za-z]*[{_CODE[name]}]", word):
            return
        if not word.startswith("-"):
            yield from _script(word)
            return


def _without_values(words: list[str], with_value: str) -> Iterator[tuple[int, str]]:
    """The words with their positions, without options that take a value."""
    is_value = False
    for at, word in enumerate(words):
        if is_value:
            is_value = False
        elif word in with_value.split():
            is_value = True
        else:
            yield at, word


def _script(word: str) -> Iterator[str]:
    name = PurePosixPath(word).name
    yield from () if "$" in name else (name,)


def _is_variable(word: str) -> bool:
    return "$" in word and "/" not in word


def _without_substitutions(command: str) -> str:
    """The command with `$_` in place of `$(…)` and backticks."""
    parts, depth, is_backtick, is_quoted, at = [], 0, False, False, 0
    while at < len(command):
        letter = command[at]
        if letter == "\\":
            parts += [command[at : at + 2]] if not depth and not is_backtick else []
            at += 2
            continue
        if letter == "'" and not depth and not is_backtick and not is_quoted:
            end = command.find("'", at + 1)
            end = len(command) - 1 if end < 0 else end
            parts.append(command[at : end + 1])
            at = end + 1
            continue
        if letter == '"' and not depth and not is_backtick:
            is_quoted = not is_quoted
        if letter == "`" and not depth:
            is_backtick = not is_backtick
            parts += ["$_"] if is_backtick else []
        elif command.startswith("$(", at) and not is_backtick:
            parts += [] if depth else ["$_"]
            depth, at = depth + 1, at + 1
        elif depth and letter in "()":
            depth += 1 if letter == "(" else -1
        elif not depth and not is_backtick:
            parts.append(letter)
        at += 1
    return "".join(parts)


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # an unclosed quote, which the shell will report
        return command.split()


def _slug(word: str) -> str:
    path = PurePosixPath(word)
    stem = path.stem if path.suffix in _SUFFIXES else path.name
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_NAME_MAX_CHARS].strip("-")


# --- names in use


def names_in_use(output: Path) -> dict[str, Path]:
    """Names of jobs in the files beside the output: configurations, and modules written by imports."""
    taken: dict[str, Path] = {}
    for path in _files_beside(output):
        for name in _names_in(path):
            taken.setdefault(name, path)
    return taken


def _files_beside(output: Path) -> Iterator[Path]:
    folder = output.parent
    files = (each for pattern in ("*.toml", "*.py") for each in sorted(folder.glob(pattern)))
    own = output.resolve()
    yield from islice((each for each in files if each.resolve() != own), _FILES_MAX)
    main = folder / ".." / _MAIN_FILE
    if main.is_file() and main.resolve() != own:
        yield main.resolve()


def _names_in(path: Path) -> list[str]:
    try:
        text = read_regular(path, _FILE_MAX_BYTES)[:_FILE_MAX_BYTES].decode()
        return list(_jobs_of(text) if path.suffix == ".toml" else _keys_of(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, SyntaxError, ValueError, RecursionError):
        return []


def _jobs_of(text: str) -> Iterator[str]:
    jobs = tomllib.loads(text).get("jobs")
    yield from jobs if isinstance(jobs, dict) else ()


def _keys_of(text: str) -> Iterator[str]:
    """Keys of the schedules in a module that an import has written: `scheduler.cron(…, key="backup")`."""
    if "from evertick import" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            values = (each.value for each in node.keywords if each.arg == "key")
            yield from (each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str))
