"""The tables of the page about the configuration, made from the code.

`python tests/docs/configuration_page.py` writes them anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evertick.config.job import DEFAULT_KEYS, POLICY_KEYS, TASK_KEYS
from evertick.config.rule import RULE_OPTIONS
from evertick.config.section import SECTIONS, Key, keys_of

__all__ = ["PAGE", "written_anew"]

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/configuration.md"
BEGIN, END = "<!-- begin: made from the code -->\n", "<!-- end: made from the code -->\n"


def written_anew(page: str) -> str:
    """The page with the tables as they should be."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}{_tables()}{END}{tail}"


def _tables() -> str:
    lines = [""]
    for name, section in SECTIONS.items():
        lines += [f"### {name}", "", " ".join((section.__doc__ or "").split()), ""]
        lines += ["| key | kind | default | meaning |", "|---|---|---|---|"]
        lines += [_row(f"{name}.{key}", about, default) for key, about, default in keys_of(section)]
        lines.append("")
    lines += ["### Options of jobs", ""]
    lines += [f"- of the rule, see [schedules](schedules.md): {_named(RULE_OPTIONS)}"]
    lines += [f"- of the schedule, see [schedules](schedules.md#options-of-a-schedule): {_named(POLICY_KEYS)}"]
    lines += [f"- of the task, see [tasks](tasks.md#options): {_named(TASK_KEYS)}"]
    lines += [f"- what may stand in `[defaults]`: {_named(DEFAULT_KEYS)}", ""]
    return "\n".join(lines)


def _row(key: str, about: Key, default: Any) -> str:
    kind = about.kind.words.replace('"', "`")
    holds = about.otherwise or ("none" if default is None else f"`{_text(default)}`")
    return f"| `{key}` | {kind} | {holds} | {about.words} |"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(f'"{each}"' for each in value) + "]" if isinstance(value, tuple) else str(value)


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text()))
