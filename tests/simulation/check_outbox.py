"""A message exists if and only if its cause was written, and is delivered at least once or is dead.

In stories with an outbox every job sends a message at its start, with its claim as key. So exactly the successful
attempts have a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simulation.dispatched import DISPATCHED_WORKS
from simulation.evidence import SECOND, Evidence
from simulation.jobs import token
from simulation.journal import DeliveryEvent, RowChange
from simulation.replay import Call, Ledger, Row
from simulation.senders import CHANNEL, TRIES

__all__ = ["check_outbox"]


def check_outbox(evidence: Evidence) -> Iterator[str]:
    if not evidence.story.sends_messages:
        return
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))
    yield from checker.deliveries()
    yield from checker.ends()
    yield from checker.recoveries()


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._ledger = Ledger()
        self._messages: dict[str, Row] = {}
        # The claims of each message by each node: fence and time.
        self._claims: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self._deliveries: dict[str, list[DeliveryEvent]] = {}
        for delivery in evidence.events:
            if isinstance(delivery, DeliveryEvent):
                self._deliveries.setdefault(delivery.message, []).append(delivery)

    def step(self, call: Call) -> Iterator[str]:
        yield from self._check_cause(call)
        for change in call.changes:
            if _is_checked(change):
                yield from self._check_change(call, change)
            self._ledger.apply(change)

    def _check_cause(self, call: Call) -> Iterator[str]:
        new = {change.row["key"] for change in call.changes if _is_checked(change) and change.how == "insert"}
        caused = {
            token(change.row["id"], change.row["fence"])
            for change in call.changes
            if change.table == "history"
            and change.row["verdict"] == "succeeded"
            and change.row["task"] not in DISPATCHED_WORKS
        }
        yield from (f"{key} succeeded, and its message was not written" for key in caused - new)
        yield from (f"message {key} was written, and its run did not succeed with it" for key in new - caused)

    def _check_change(self, call: Call, change: RowChange) -> Iterator[str]:
        row, before = change.row, self._messages.get(change.row["id"])
        self._messages[row["id"]] = row
        if row["state"] == "sending" and (before is None or before["fence"] != row["fence"]):
            self._claims.setdefault((row["id"], row["node"]), []).append((row["fence"], call.at))
            if row["fence"] <= max((fence for fence, _ in self._earlier(row)), default=0):
                yield f"message {row['key']} was claimed under fence {row['fence']}, which is not new"
        if before is not None and before["state"] == "sending":
            yield from self._check_release(call, before, row)
        if before is not None and before["state"] in ("sent", "dead"):
            yield f"message {row['key']} was {before['state']}, and is {row['state']}"

    def _earlier(self, row: Row) -> list[tuple[int, int]]:
        claims = [claim for (id_, _), found in self._claims.items() if id_ == row["id"] for claim in found]
        return [claim for claim in claims if claim[0] != row["fence"]]

    def _check_release(self, call: Call, before: Row, row: Row) -> Iterator[str]:
        """A message leaves its node when that settles it, dies, or does not know of its claim."""
        owner = before["node"]
        machine = self._ledger.machine_of[owner]
        died_at = self._ledger.nodes[owner]["died_at"]
        if call.intent == "claim_messages" and died_at is None and machine != call.who:
            yield f"message {row['key']} was taken from {owner}, which is alive"
        if call.intent == "settle_messages" and machine != call.who:
            yield f"message {row['key']} of {owner} was settled by {call.who}"
        if row["state"] == "sent" and not any(
            delivery.what == "delivered" and delivery.node == owner for delivery in self._deliveries.get(row["id"], ())
        ):
            yield f"message {row['key']} is sent, and {owner} has not delivered it"
        if row["state"] == "dead" and row["attempts"] < TRIES:
            yield f"message {row['key']} is dead after {row['attempts']} attempts"

    def deliveries(self) -> Iterator[str]:
        """No message is delivered before its claim, or twice under one claim."""
        for id_, deliveries_of in self._deliveries.items():
            begun = [delivery for delivery in deliveries_of if delivery.what == "begun"]
            for node, count in Counter(delivery.node for delivery in begun).items():
                claims = self._claims.get((id_, node), [])
                if count > len(claims):
                    yield f"message {id_} was delivered {count} times by {node}, and claimed {len(claims)} times"
            for delivery in begun:
                if not any(at <= delivery.at for _, at in self._claims.get((id_, delivery.node), ())):
                    yield f"message {id_} was delivered by {delivery.node} before it was claimed"

    def ends(self) -> Iterator[str]:
        for row in self._messages.values():
            if row["state"] not in ("sent", "dead"):
                yield f"message {row['key']} is {row['state']} at the end"

    def recoveries(self) -> Iterator[str]:
        """Messages of a dead node are claimed again in time by an undisturbed node."""
        evidence = self._evidence
        for (id_, node), claims in self._claims.items():
            died_at = self._ledger.nodes[node]["died_at"]
            last_fence, _ = max(claims)
            if died_at is None or not evidence.has_few_faults or self._messages[id_]["fence"] == last_fence:
                continue
            later = [
                at
                for (other, _), found in self._claims.items()
                if other == id_
                for fence, at in found
                if fence > last_fence
            ]
            until = died_at + 2 * evidence.beat + evidence.poll + 15 * SECOND
            if later and min(later) > until and self._was_recoverable(died_at, until):
                yield f"message {id_} of {node}, which died at {died_at}, was claimed again only at {min(later)}"

    def _was_recoverable(self, since: int, until: int) -> bool:
        disturbances = self._evidence.disturbances
        return disturbances.was_store_available(since, until) and any(
            disturbances.was_undisturbed(machine, since, until) for machine in disturbances.up_since
        )


def _is_checked(change: RowChange) -> bool:
    """Not a message that dispatches a run or kills a worker."""
    return change.table == "outbox" and change.row["channel"] == CHANNEL
