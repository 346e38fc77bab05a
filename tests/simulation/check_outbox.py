"""A message is there if and only if what causes it was written, and reaches the outside at least once or is dead.

In stories with an outbox every job sends a message at its very beginning, under a key that names its claim. So the
attempts that succeeded, and those alone, have a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simulation.dispatched import DISPATCHED_WORKS
from simulation.evidence import SECOND, Evidence
from simulation.jobs import token
from simulation.journal import Dispatching, RowChange
from simulation.replay import Call, Ledger, Row
from simulation.senders import CHANNEL, TRIES

__all__ = ["check_outbox"]


def check_outbox(evidence: Evidence) -> Iterator[str]:
    if not evidence.story.sends:
        return
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))
    yield from checker.deliveries()
    yield from checker.ends()
    yield from checker.takeovers()


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._ledger = Ledger()
        self._messages: dict[str, Row] = {}
        # When each incarnation claimed each message, and under which fences.
        self._claims: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self._words: dict[str, list[Dispatching]] = {}
        for word in evidence.happenings:
            if isinstance(word, Dispatching):
                self._words.setdefault(word.message, []).append(word)

    def step(self, call: Call) -> Iterator[str]:
        yield from self._sent_with_its_cause(call)
        for change in call.changes:
            if _is_ours(change):
                yield from self._changed(call, change)
            self._ledger.apply(change)

    def _sent_with_its_cause(self, call: Call) -> Iterator[str]:
        new = {change.row["key"] for change in call.changes if _is_ours(change) and change.how == "insert"}
        caused = {
            token(change.row["id"], change.row["fence"])
            for change in call.changes
            if change.table == "history"
            and change.row["verdict"] == "succeeded"
            and change.row["task"] not in DISPATCHED_WORKS
        }
        yield from (f"{key} has succeeded, and its message was not written" for key in caused - new)
        yield from (f"message {key} was written, and its run did not succeed with it" for key in new - caused)

    def _changed(self, call: Call, change: RowChange) -> Iterator[str]:
        row, before = change.row, self._messages.get(change.row["id"])
        self._messages[row["id"]] = row
        if row["state"] == "sending" and (before is None or before["fence"] != row["fence"]):
            self._claims.setdefault((row["id"], row["node"]), []).append((row["fence"], call.at))
            if row["fence"] <= max((fence for fence, _ in self._earlier(row)), default=0):
                yield f"message {row['key']} was claimed under fence {row['fence']}, which is no new one"
        if before is not None and before["state"] == "sending":
            yield from self._left(call, before, row)
        if before is not None and before["state"] in ("sent", "dead"):
            yield f"message {row['key']} was {before['state']}, and is {row['state']}"

    def _earlier(self, row: Row) -> list[tuple[int, int]]:
        claims = [claim for (id_, _), found in self._claims.items() if id_ == row["id"] for claim in found]
        return [claim for claim in claims if claim[0] != row["fence"]]

    def _left(self, call: Call, before: Row, row: Row) -> Iterator[str]:
        """Who a message is taken from has settled it, is dead, or does not know that it has it."""
        owner = before["node"]
        machine = self._ledger.machine_of[owner]
        died_at = self._ledger.nodes[owner]["died_at"]
        if call.intent == "claim_messages" and died_at is None and machine != call.who:
            yield f"message {row['key']} was taken from {owner}, which lives"
        if call.intent == "settle_messages" and machine != call.who:
            yield f"message {row['key']} of {owner} was settled by {call.who}"
        if row["state"] == "sent" and not any(
            word.what == "delivered" and word.node == owner for word in self._words.get(row["id"], ())
        ):
            yield f"message {row['key']} is sent, and {owner} has not delivered it"
        if row["state"] == "dead" and row["attempts"] < TRIES:
            yield f"message {row['key']} was given up after {row['attempts']} tries"

    def deliveries(self) -> Iterator[str]:
        """Nothing is delivered before it was claimed, nor twice under one claim."""
        for id_, words in self._words.items():
            begun = [word for word in words if word.what == "begun"]
            for node, count in Counter(word.node for word in begun).items():
                claims = self._claims.get((id_, node), [])
                if count > len(claims):
                    yield f"message {id_} was delivered {count} times by {node}, and claimed {len(claims)} times"
            for word in begun:
                if not any(at <= word.at for _, at in self._claims.get((id_, word.node), ())):
                    yield f"message {id_} was delivered by {word.node} before it was claimed"

    def ends(self) -> Iterator[str]:
        for row in self._messages.values():
            if row["state"] not in ("sent", "dead"):
                yield f"message {row['key']} is {row['state']} at the end"

    def takeovers(self) -> Iterator[str]:
        """What a dead node was sending is claimed again in time, if somebody was left alone to do it."""
        evidence = self._evidence
        for (id_, node), claims in self._claims.items():
            died_at = self._ledger.nodes[node]["died_at"]
            last_fence, _ = max(claims)
            if died_at is None or not evidence.is_gentle or self._messages[id_]["fence"] == last_fence:
                continue
            later = [
                at
                for (other, _), found in self._claims.items()
                if other == id_
                for fence, at in found
                if fence > last_fence
            ]
            until = died_at + 2 * evidence.beat + evidence.poll + 15 * SECOND
            if later and min(later) > until and self._was_free(died_at, until):
                yield f"message {id_} of {node}, which died at {died_at}, was claimed again only at {min(later)}"

    def _was_free(self, since: int, until: int) -> bool:
        calm = self._evidence.calm
        return calm.store_was_well(since, until) and any(
            calm.left_alone(machine, since, until) for machine in calm.up_since
        )


def _is_ours(change: RowChange) -> bool:
    """Not of those that dispatch runs, or tell workers to stop."""
    return change.table == "outbox" and change.row["channel"] == CHANNEL
