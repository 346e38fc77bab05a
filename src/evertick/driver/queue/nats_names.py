"""Subjects and streams in NATS, for nodes and workers alike; `docs/reference/worker-contract.md` has them in words."""

from __future__ import annotations

import re
from typing import Final

from evertick.driver.queue.contract import pair_of

__all__ = ["REMEMBER_SECONDS", "NatsNames", "token_of"]

# How long it is known that a dispatch was taken, or is not wanted any more: longer than any may wait to be taken.
REMEMBER_SECONDS: Final = 86_400
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class NatsNames:
    """All names under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        stream = prefix.upper()
        self.jobs_stream = f"{stream}_JOBS"
        self.reports_stream = f"{stream}_REPORTS"
        # What was taken, and what is not wanted any more: the newest word about each dispatch.
        self.marks_stream = f"{stream}_MARKS"
        self.events_stream = f"{stream}_EVENTS"

    def jobs(self, queue: str) -> str:
        return f"{self._prefix}.jobs.{queue}"

    def workers(self, queue: str) -> str:
        """The consumer that all workers of a queue share."""
        return f"workers_{queue}"

    def reports(self, fleet: str) -> str:
        return f"{self._prefix}.reports.{token_of(fleet)}"

    def nodes(self, fleet: str) -> str:
        """The consumer that all nodes of a fleet share."""
        return f"nodes_{token_of(fleet)}"

    def taken(self, run: str, fence: int) -> str:
        return f"{self._prefix}.taken.{token_of(pair_of(run, fence))}"

    def kill(self, run: str, fence: int) -> str:
        return f"{self._prefix}.kill.{token_of(pair_of(run, fence))}"

    @property
    def all_kills(self) -> str:
        return f"{self._prefix}.kill.*"

    def event(self, app: str, word: str) -> str:
        return f"{self._prefix}.{token_of(app)}.runs.{token_of(word)}"

    def any_event(self, app: str) -> str:
        return f"{self._prefix}.{token_of(app)}.runs.*"

    def subjects_of(self, stream: str) -> list[str]:
        return {
            self.jobs_stream: [f"{self._prefix}.jobs.*"],
            self.reports_stream: [f"{self._prefix}.reports.*"],
            self.marks_stream: [f"{self._prefix}.taken.*", self.all_kills],
            self.events_stream: [f"{self._prefix}.*.runs.*"],
        }[stream]


def token_of(text: str) -> str:
    """One word of a subject, whatever the text holds: ":" and "." and the like as "=" and their bytes in hex."""
    return _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text)
