"""A finding: a severity, what is so, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

__all__ = ["Finding", "Severity", "about_store", "counted", "named", "shortened"]

_ALIKE_MOST = 10
_NAMED_MOST = 5


class Severity(StrEnum):
    """error: it does not work, or not for long; critical, for monitors. warning: it surprises. note: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity
    # Which check found it; stable, for programs.
    check: str
    what: str
    fix: str
    # The keys, runs, nodes or tasks that it is about.
    about: tuple[str, ...] = ()


def about_store(error: Exception) -> Finding:
    """A store that cannot be asked is itself what is wrong. What its error says after a semicolon is what to do."""
    what, _, fix = str(error).partition("; ")
    return Finding(severity=Severity.ERROR, check="store", what=what, fix=fix or "look at it with `evertick db check`")


def shortened(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, and at most ten that say the same about different things: the eleventh tells how many more."""
    order = list(Severity)
    kept: list[Finding] = []
    by_check: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        by_check.setdefault((finding.severity, finding.check), []).append(finding)
    for alike in by_check.values():
        kept += alike[:_ALIKE_MOST]
        if more := alike[_ALIKE_MOST:]:
            about = tuple(each for finding in more for each in finding.about)
            what = f"and {len(more)} more like these: {named(about)}"
            kept.append(msgspec.structs.replace(more[0], what=what, about=about))
    return sorted(kept, key=lambda finding: order.index(finding.severity))


def named(names: Iterable[str], most: int = _NAMED_MOST) -> str:
    """The first few of many names."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, what: str, most: int = 10_000) -> str:
    """Like "3 runs"; "10000+ runs" where counting ended early."""
    return f"{count}{'+' if count >= most else ''} {what}{'' if count == 1 else 's'}"
