"""Fills in the parts of the pages that the code defines, when MkDocs builds the site.

The tests in tests/docs read pages through `filled`, too.
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import click

from evertick.cli import cli
from evertick.config.job import DEFAULT_KEYS, POLICY_KEYS, TASK_KEYS
from evertick.config.rule import RULE_OPTIONS
from evertick.config.section import SECTIONS, Key, keys_of
from evertick.engine.loops import DUTIES, LOOPS
from evertick.explain.availability import REPLICAS

# Below a heading, which names the command or the section of the configuration.
_MARKER = re.compile(r"^(#+ (.+)\n\n)<!-- (command|settings|loops|modes|job options) -->$", re.MULTILINE)
# The head of the page of the command line describes them for all commands.
_COMMON = ("--database", "--config", "--app", "--json")
_USERS = {
    ("schedule", "claimed"): "a schedule",
    ("schedule", "every-node"): 'a schedule with `mode="every-node"`',
    ("duty", "duty"): "a duty, `@scheduler.duty(...)`",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    return filled(markdown)


def filled(markdown: str) -> str:
    """The page with every marker replaced. A heading that names nothing is an error."""
    return _MARKER.sub(lambda found: found[1] + _PARTS[found[3]](found[2]), markdown)


# --- the command line


def _command(path: str) -> str:
    """The usage, the description without its examples, and the options."""
    command: click.Command = cli
    for name in path.split():
        assert isinstance(command, click.Group)
        command = command.commands[name]
    context = click.Context(command)
    usage = " ".join(["evertick", path, *command.collect_usage_pieces(context)])
    parts = [f"Usage: `{usage}`", *_paragraphs(command), *_options(command, context)]
    return "\n\n".join(parts)


def _paragraphs(command: click.Command) -> Iterator[str]:
    for text in inspect.cleandoc(command.help or "").split("\n\n"):
        if not text.startswith("\b"):
            yield _escaped(" ".join(text.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    common = [name for name in _COMMON if any(name in each.opts for each in options)]
    rows = []
    for each in options:
        record = each.get_help_record(context)
        if record is not None and not {"--help", *_COMMON} & set(each.opts):
            names, meaning = (text.replace("INTEGER RANGE", "N").replace("INTEGER", "N") for text in record)
            rows.append(f"| `{names}` | {_escaped(meaning)} |")
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    if common:
        names = ", ".join(f"`{name}`" for name in common)
        yield f"{'Also' if rows else 'Options:'} {names}: see [common options](#common-options)."


def _escaped(text: str) -> str:
    """Plain text as Markdown. Options, and text between backticks, become code."""
    parts = re.split(r"(`[^`]*`|(?<![\w-])--?[a-z][\w-]*)", text)
    return "".join(_code(part) if number % 2 else _plain(part) for number, part in enumerate(parts))


def _code(text: str) -> str:
    return text if text.startswith("`") else f"`{text}`"


def _plain(text: str) -> str:
    return re.sub(r"([\\*_\[\]|])", r"\\\1", html.escape(text, quote=False))


# --- the configuration


def _settings(section: str) -> str:
    rows = [_setting(f"{section}.{key}", about, default) for key, about, default in keys_of(SECTIONS[section])]
    about = " ".join((SECTIONS[section].__doc__ or "").split())
    return "\n".join([about, "", "| key | kind | default | meaning |", "|---|---|---|---|", *rows])


def _setting(key: str, about: Key, default: Any) -> str:
    kind = about.kind.words.replace('"', "`")
    holds = about.otherwise or ("none" if default is None else f"`{_toml(default)}`")
    return f"| `{key}` | {kind} | {holds} | {about.words} |"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(f'"{each}"' for each in value) + "]" if isinstance(value, tuple) else str(value)


def _job_options(_: str) -> str:
    groups = {
        "the rule ([schedules](schedules.md#rules))": RULE_OPTIONS,
        "the schedule ([schedules](schedules.md#options-of-a-schedule))": POLICY_KEYS,
        "the task ([tasks](tasks.md#options))": TASK_KEYS,
        "allowed in `[defaults]`": DEFAULT_KEYS,
    }
    rows = [f"| {of} | {', '.join(f'`{name}`' for name in names)} |" for of, names in groups.items()]
    return "\n".join(["| options of | |", "|---|---|", *rows])


# --- high availability


def _loops(_: str) -> str:
    rows = [
        f"| `{kind.name}` | {sort} | {kind.mode} | {kind.does} | {kind.replicas} |"
        for sort, kinds in (("loop", LOOPS), ("duty", DUTIES))
        for kind in kinds
    ]
    return "\n".join(["| name | kind | mode | task | with N nodes |", "|---|---|---|---|---|", *rows])


def _modes(_: str) -> str:
    rows = [f"| {_USERS[kind, mode]} | {mode} | {replicas} |" for (kind, mode), replicas in REPLICAS.items()]
    return "\n".join(["| declared as | mode | with N nodes |", "|---|---|---|", *rows])


_PARTS: dict[str, Callable[[str], str]] = {
    "command": _command,
    "settings": _settings,
    "job options": _job_options,
    "loops": _loops,
    "modes": _modes,
}
