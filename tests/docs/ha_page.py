"""The table of the page about high availability, made from the code. `python tests/docs/ha_page.py` writes it anew."""

from __future__ import annotations

from pathlib import Path

from evertick.engine.loops import DUTIES, LOOPS
from evertick.explain.availability import REPLICAS

__all__ = ["PAGE", "written_anew"]

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/ha.md"
BEGIN, END = "<!-- begin: made from the code -->\n", "<!-- end: made from the code -->\n"

_USERS = {
    ("schedule", "claimed"): "a schedule",
    ("schedule", "every-node"): 'a schedule with `mode="every-node"`',
    ("duty", "duty"): "a duty, `@scheduler.duty(...)`",
}


def written_anew(page: str) -> str:
    """The page with the table as it should be."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}{_tables()}{END}{tail}"


def _tables() -> str:
    own = [
        f"| `{kind.name}` | {sort} | {kind.mode} | {kind.does} | {kind.replicas} |"
        for sort, kinds in (("loop", LOOPS), ("duty", DUTIES))
        for kind in kinds
    ]
    users = [f"| {_USERS[kind, mode]} | {mode} | {replicas} |" for (kind, mode), replicas in REPLICAS.items()]
    return "\n".join(
        [
            "",
            "Evertick's own:",
            "",
            "| name | kind | mode | what it does | with N nodes |",
            "|---|---|---|---|---|",
            *own,
            "",
            "Yours:",
            "",
            "| what | mode | with N nodes |",
            "|---|---|---|",
            *users,
            "",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text()))
