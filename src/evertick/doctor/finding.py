"""A finding: a severity, a problem and its fix."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from evertick.errors import EvertickError

__all__ = ["Finding", "Severity", "about_store", "counted", "named", "shortened"]

_ALIKE_MOST = 10
_NAMED_MOST = 5


class Severity(StrEnum):
    """error: something does not work, or soon will not (critical, for monitors). warning: it needs attention. note:
    for information."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity
    # The name of the check. It is stable, for programs.
    check: str
    what: str
    fix: str
    # The keys, runs, nodes or tasks concerned.
    about: tuple[str, ...] = ()


def about_store(error: EvertickError) -> Finding:
    """The finding about a store that cannot be read."""
    fix = error.fix or "check it with `evertick db check`"
    return Finding(severity=Severity.ERROR, check="store", what=error.problem, fix=fix)


def shortened(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, the worst first, with at most ten per check. An eleventh one names the others."""
    order = list(Severity)
    shown: list[Finding] = []
    by_check: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        by_check.setdefault((finding.severity, finding.check), []).append(finding)
    for alike in by_check.values():
        shown += alike[:_ALIKE_MOST]
        if more := alike[_ALIKE_MOST:]:
            about = tuple(each for finding in more for each in finding.about)
            what = f"and {len(more)} more like these: {named(about)}"
            shown.append(msgspec.structs.replace(more[0], what=what, about=about))
    return sorted(shown, key=lambda finding: order.index(finding.severity))


def named(names: Iterable[str], most: int = _NAMED_MOST) -> str:
    """The first names, and the number of others."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, what: str, most: int = 10_000) -> str:
    """A count with its noun: "3 runs"; "10000+ runs" if counting ended early."""
    return f"{count}{'+' if count >= most else ''} {what}{'' if count == 1 else 's'}"
