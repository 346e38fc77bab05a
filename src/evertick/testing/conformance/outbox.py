"""Promises about the outbox: written with its cause, sent by one node at a time, unique by key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evertick.model import ClaimedMessage, Message, MessageOutcome, MessageState, NewMessage, Verdict
from evertick.store.base import Change, ChannelPulse, MessageClaim, MessageFilter, NodeJoin
from evertick.testing.conformance.bench import (
    APP,
    DAY,
    HOUR,
    MINUTE,
    OTHER_APP,
    Bench,
    a_definition,
    a_run,
    an_advance,
    an_outcome,
    us,
)
from evertick.testing.conformance.transactions import Users

__all__ = ["Outbox", "TransactionalOutbox", "a_message"]

CHANNEL = "mail"


def a_message(**fields: Any) -> NewMessage:
    """The smallest message; its key is its id unless a test sets one."""
    id_ = fields.pop("id", None) or a_run().id
    return NewMessage(**{"id": id_, "channel": CHANNEL, "key": id_, "body": b'{"n":1}', **fields})


def settled(held: ClaimedMessage, kind: str, **fields: Any) -> MessageOutcome:
    own: dict[str, Any] = {"id": held.id, "fence": held.fence, "attempts": held.attempts + 1, "remember": HOUR}
    return MessageOutcome(kind=kind, **{**own, **fields})  # type: ignore[arg-type]


async def found(bench: Bench, *, app: str = APP, **wanted: Any) -> list[Message]:
    return await bench.store.messages(app, MessageFilter(**wanted))


async def one(bench: Bench, id_: str) -> Message:
    [message] = await found(bench, ids=(id_,))
    return message


async def claim(
    bench: Bench, node: str, *channels: str, room: int = 100, held: tuple[str, ...] = (), app: str = APP
) -> MessageClaim:
    return await bench.store.claim_messages(app, node, dict.fromkeys(channels or (CHANNEL,), room), held)


async def hold(bench: Bench, node: str, new: NewMessage | None = None) -> ClaimedMessage:
    """Send a message and claim it. No other message may be waiting."""
    new = new or a_message()
    await bench.store.send(APP, [new])
    [held] = (await claim(bench, node)).messages
    assert held.id == new.id
    return held


class Outbox:
    # --- sending

    async def test_a_sent_message_waits_with_the_fields_it_was_written_with(self, bench: Bench) -> None:
        before = await bench.now()
        new = a_message(key="invoice-7", body=b'{"to":["a","b"]}', headers={"x": "y"}, caused_by="run")
        [message] = await bench.store.send(APP, [new])
        assert (message.id, message.app, message.channel, message.key) == (new.id, APP, CHANNEL, "invoice-7")
        assert (message.body, message.headers, message.caused_by) == ({"to": ["a", "b"]}, {"x": "y"}, "run")
        assert (message.state, message.attempts, message.is_new) == (MessageState.WAITING, 0, True)
        assert before <= us(message.due_at) <= await bench.now()
        assert msgspec.structs.replace(await one(bench, new.id), is_new=True) == message

    async def test_the_same_message_sent_twice_is_one_message(self, bench: Bench) -> None:
        new = a_message()
        [first], [again] = await bench.store.send(APP, [new]), await bench.store.send(APP, [new])
        assert (first.is_new, again.is_new, again.id) == (True, False, new.id)
        assert len(await found(bench)) == 1

    async def test_sending_a_known_key_returns_the_existing_message(self, bench: Bench) -> None:
        first, other, elsewhere = a_message(key="k"), a_message(key="other"), a_message(key="k", channel="chat")
        await bench.store.send(APP, [first])
        answers = await bench.store.send(APP, [a_message(key="k"), other, elsewhere])
        assert [(each.id, each.is_new) for each in answers] == [
            (first.id, False),
            (other.id, True),
            (elsewhere.id, True),
        ]

    async def test_of_two_messages_with_one_key_in_a_batch_the_first_is_kept(self, bench: Bench) -> None:
        first, second = a_message(key="k"), a_message(key="k")
        answers = await bench.store.send(APP, [first, second])
        assert [(each.id, each.is_new) for each in answers] == [(first.id, True), (first.id, False)]

    async def test_apps_do_not_see_each_others_messages_and_keys(self, bench: Bench) -> None:
        [own_message] = await bench.store.send(APP, [a_message(key="k")])
        [foreign] = await bench.store.send(OTHER_APP, [a_message(key="k")])
        assert (own_message.is_new, foreign.is_new) == (True, True)
        assert [each.id for each in await found(bench)] == [own_message.id]
        node = await bench.node(app=OTHER_APP)
        assert [each.id for each in (await claim(bench, node, app=OTHER_APP)).messages] == [foreign.id]
        assert await bench.store.drop_messages(APP, [foreign.id]) == []
        assert await bench.store.retry_messages(APP, [foreign.id]) == []

    # --- claims

    async def test_a_claim_takes_due_messages_of_its_channels_longest_due_first(self, bench: Bench) -> None:
        later, first, second, other = a_message(delay=HOUR), a_message(), a_message(), a_message(channel="chat")
        for each in (later, first, second, other):
            await bench.store.send(APP, [each])
            await bench.pass_time(1_000)
        node = await bench.node()
        answer = await claim(bench, node)
        assert [each.id for each in answer.messages] == [first.id, second.id]
        assert answer.next_due_at == us((await one(bench, later.id)).due_at)
        assert (await one(bench, first.id)).state is MessageState.SENDING
        assert (await one(bench, first.id)).node == node
        assert [each.id for each in (await claim(bench, node, "chat", held=(first.id, second.id))).messages] == [
            other.id
        ]

    async def test_a_claim_takes_no_more_of_a_channel_than_it_has_room_for(self, bench: Bench) -> None:
        sent = [a_message(channel=channel) for channel in ("mail", "mail", "chat", "chat")]
        await bench.store.send(APP, sent)
        node = await bench.node()
        answer = await bench.store.claim_messages(APP, node, {"mail": 1, "chat": 0}, ())
        assert [each.channel for each in answer.messages] == ["mail"]
        assert answer.next_due_at is not None
        assert answer.next_due_at <= answer.now

    async def test_two_nodes_never_hold_the_same_message(self, bench: Bench) -> None:
        await bench.store.send(APP, [a_message() for _ in range(3)])
        one_node, other = await bench.node(), await bench.node()
        first = await claim(bench, one_node, room=2)
        second = await claim(bench, other)
        assert (len(first.messages), len(second.messages)) == (2, 1)
        assert not {each.id for each in first.messages} & {each.id for each in second.messages}
        assert max(each.fence for each in first.messages) < min(each.fence for each in second.messages)

    async def test_a_dead_node_gets_no_messages(self, bench: Bench) -> None:
        await bench.store.send(APP, [a_message()])
        assert (await claim(bench, await bench.dead_node())).messages == []
        assert (await claim(bench, "never joined")).messages == []

    async def test_a_message_of_a_dead_node_is_reassigned_and_has_spent_an_attempt(self, bench: Bench) -> None:
        node, successor = await bench.node(), await bench.node()
        held = await hold(bench, node)
        assert (await claim(bench, successor)).messages == []
        await bench.store.leave(node)
        [again] = (await claim(bench, successor)).messages
        assert (again.id, again.key, again.attempts) == (held.id, held.key, 1)
        assert again.fence > held.fence
        assert "died" in (again.error or "")
        assert await bench.store.settle_messages(APP, node, [settled(held, "sent")]) == ["lost"]
        assert (await one(bench, held.id)).state is MessageState.SENDING

    async def test_a_message_whose_claim_was_not_answered_is_claimed_again_without_an_attempt(
        self, bench: Bench
    ) -> None:
        node = await bench.node()
        held = await hold(bench, node)
        assert (await claim(bench, node, held=(held.id,))).messages == []
        [again] = (await claim(bench, node)).messages
        assert (again.id, again.attempts) == (held.id, 0)
        assert again.fence > held.fence
        assert await bench.store.settle_messages(APP, node, [settled(held, "sent")]) == ["lost"]
        assert await bench.store.settle_messages(APP, node, [settled(again, "sent")]) == ["done"]

    # --- settling

    async def test_a_sent_message_is_remembered_by_its_key_and_not_by_its_body(self, bench: Bench) -> None:
        node = await bench.node()
        held = await hold(bench, node, a_message(key="k", headers={"x": "y"}))
        assert await bench.store.settle_messages(APP, node, [settled(held, "sent")]) == ["done"]
        message = await one(bench, held.id)
        assert (message.state, message.attempts, message.body, message.headers) == (MessageState.SENT, 1, None, {})
        assert message.settled_at is not None
        assert (await claim(bench, node)).messages == []
        [again] = await bench.store.send(APP, [a_message(key="k")])
        assert (again.id, again.is_new) == (held.id, False)

    async def test_a_message_that_need_not_be_remembered_is_pruned_with_its_key(self, bench: Bench) -> None:
        node = await bench.node()
        forgotten, kept = a_message(key="forgotten"), a_message(key="kept")
        for new, remember in ((forgotten, 0), (kept, HOUR)):
            held = await hold(bench, node, new)
            await bench.store.settle_messages(APP, node, [settled(held, "sent", remember=remember)])
        await bench.pass_time(1_000)
        pruned = await bench.store.prune(APP, before=await bench.now() - DAY, keep_per_schedule=10, limit=100)
        assert pruned == 1
        assert [each.id for each in await found(bench)] == [kept.id]
        [again] = await bench.store.send(APP, [a_message(key="forgotten")])
        assert again.is_new

    async def test_pruning_leaves_messages_that_are_not_settled(self, bench: Bench) -> None:
        await hold(bench, await bench.node())
        await bench.store.send(APP, [a_message()])
        assert await bench.store.prune(APP, before=await bench.now(), keep_per_schedule=10, limit=100) == 0
        assert len(await found(bench)) == 2

    async def test_a_retry_waits_for_its_delay_and_has_spent_an_attempt(self, bench: Bench) -> None:
        node = await bench.node()
        held, before = await hold(bench, node), await bench.now()
        assert await bench.store.settle_messages(APP, node, [settled(held, "retry", delay=50_000, error="no")]) == [
            "done"
        ]
        message = await one(bench, held.id)
        assert (message.state, message.attempts, message.error) == (MessageState.WAITING, 1, "no")
        assert us(message.due_at) >= before + 50_000
        answer = await claim(bench, node)
        assert (answer.messages, answer.next_due_at) == ([], us(message.due_at))
        await bench.pass_time(60_000)
        [again] = (await claim(bench, node)).messages
        assert (again.key, again.attempts, again.body) == (held.key, 1, held.body)

    async def test_a_released_message_spends_no_attempt(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await hold(bench, node)
        assert await bench.store.settle_messages(APP, node, [settled(held, "release")]) == ["done"]
        [again] = (await claim(bench, other)).messages
        assert (again.id, again.attempts) == (held.id, 0)

    async def test_a_dead_message_keeps_its_body_and_its_key(self, bench: Bench) -> None:
        node = await bench.node()
        held = await hold(bench, node, a_message(key="k"))
        await bench.store.settle_messages(APP, node, [settled(held, "dead", error="gone")])
        message = await one(bench, held.id)
        assert (message.state, message.attempts, message.error) == (MessageState.DEAD, 1, "gone")
        assert message.body == {"n": 1}
        assert (await claim(bench, node)).messages == []
        [again] = await bench.store.send(APP, [a_message(key="k")])
        assert (again.id, again.is_new, again.state) == (held.id, False, MessageState.DEAD)

    @pytest.mark.parametrize("kind", ["sent", "retry", "dead", "release"])
    async def test_a_settlement_sent_again_is_answered_with_already(self, bench: Bench, kind: str) -> None:
        node = await bench.node()
        outcome = settled(await hold(bench, node), kind)
        answers = [await bench.store.settle_messages(APP, node, [outcome]) for _ in range(2)]
        assert answers == [["done"], ["already"]]
        assert (await one(bench, outcome.id)).attempts == (0 if kind == "release" else 1)

    async def test_each_message_of_a_batch_gets_its_own_answer(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.send(APP, [a_message() for _ in range(3)])
        first, second, third = (await claim(bench, node)).messages
        stale = msgspec.structs.replace(settled(second, "sent"), fence=second.fence - 1)
        unknown = msgspec.structs.replace(settled(first, "sent"), id="no id at all")
        outcomes = [settled(first, "sent"), stale, unknown, settled(first, "dead"), settled(third, "retry")]
        answers = await bench.store.settle_messages(APP, node, outcomes)
        assert answers == ["done", "lost", "lost", "already", "done"]
        assert await bench.store.settle_messages(APP, await bench.node(), [settled(second, "sent")]) == ["lost"]
        assert (await one(bench, second.id)).state is MessageState.SENDING

    # --- commands of operators

    async def test_a_dead_message_can_be_retried_with_all_its_attempts(self, bench: Bench) -> None:
        node = await bench.node()
        held = await hold(bench, node)
        await bench.store.settle_messages(APP, node, [settled(held, "dead", attempts=5, error="gone")])
        assert await bench.store.retry_messages(APP, [held.id, "no id at all"]) == [held.id]
        message = await one(bench, held.id)
        assert (message.state, message.attempts, message.settled_at) == (MessageState.WAITING, 0, None)
        [again] = (await claim(bench, node)).messages
        assert (again.id, again.body) == (held.id, b'{"n":1}')

    async def test_a_message_that_waits_for_its_retry_can_be_sent_now(self, bench: Bench) -> None:
        new = a_message(delay=HOUR)
        await bench.store.send(APP, [new])
        assert await bench.store.retry_messages(APP, [new.id]) == [new.id]
        assert [each.id for each in (await claim(bench, await bench.node())).messages] == [new.id]

    async def test_failed_messages_of_a_channel_can_be_made_due_now(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.send(APP, [a_message() for _ in range(3)])
        tried = (await claim(bench, node)).messages
        await bench.store.settle_messages(APP, node, [settled(each, "retry", delay=HOUR) for each in tried])
        assert await bench.store.hasten_messages(APP, CHANNEL, 2) == 2
        assert await bench.store.hasten_messages(APP, CHANNEL, 2) == 1
        assert await bench.store.hasten_messages(APP, CHANNEL, 2) == 0
        again = (await claim(bench, node)).messages
        assert sorted((each.id, each.attempts) for each in again) == sorted((each.id, 1) for each in tried)

    async def test_only_messages_that_wait_for_a_retry_are_made_due_now(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.send(APP, [a_message() for _ in range(3)])
        dead, sent, sending = (await claim(bench, node)).messages
        await bench.store.settle_messages(APP, node, [settled(dead, "dead"), settled(sent, "sent")])
        await bench.store.send(APP, [a_message(delay=HOUR), a_message(channel="chat")])
        [other] = (await claim(bench, node, "chat", held=(sending.id,))).messages
        await bench.store.settle_messages(APP, node, [settled(other, "retry", delay=HOUR)])
        assert await bench.store.hasten_messages(APP, CHANNEL, 10) == 0
        assert await bench.store.hasten_messages(OTHER_APP, "chat", 10) == 0
        assert await bench.store.hasten_messages(APP, "chat", 10) == 1

    async def test_a_message_being_sent_or_sent_is_neither_retried_nor_dropped(self, bench: Bench) -> None:
        node = await bench.node()
        sent = await hold(bench, node)
        await bench.store.settle_messages(APP, node, [settled(sent, "sent")])
        sending = await hold(bench, node)
        for act in (bench.store.retry_messages, bench.store.drop_messages):
            assert await act(APP, [sent.id, sending.id]) == []

    async def test_dropping_a_message_frees_its_key(self, bench: Bench) -> None:
        new = a_message(key="k")
        await bench.store.send(APP, [new])
        assert await bench.store.drop_messages(APP, [new.id]) == [new.id]
        assert await found(bench) == []
        assert (await bench.store.send(APP, [a_message(key="k")]))[0].is_new

    async def test_messages_are_found_by_id_channel_and_state_newest_first(self, bench: Bench) -> None:
        first, second, third = a_message(), a_message(channel="chat"), a_message()
        for each in (first, second, third):
            await bench.store.send(APP, [each])
            await bench.pass_time(1_000)
        await claim(bench, await bench.node(), "chat")
        assert [each.id for each in await found(bench)] == [third.id, second.id, first.id]
        assert [each.id for each in await found(bench, limit=1)] == [third.id]
        assert [each.id for each in await found(bench, channel="chat")] == [second.id]
        assert [each.id for each in await found(bench, states=(MessageState.SENDING,))] == [second.id]
        assert [each.id for each in await found(bench, ids=(first.id, "no id at all"))] == [first.id]
        assert [each.id for each in await found(bench, id_prefix=first.id)] == [first.id]

    async def test_channels_count_their_messages_by_state(self, bench: Bench) -> None:
        assert await bench.store.channels(APP) == []
        node = await bench.node()
        await bench.store.send(APP, [a_message(channel=name) for name in ("mail", "mail", "mail", "chat", "done")])
        [sent] = (await claim(bench, node, "done")).messages
        await bench.store.settle_messages(APP, node, [settled(sent, "sent")])
        [dead, _] = (await claim(bench, node, room=2)).messages
        await bench.store.settle_messages(APP, node, [settled(dead, "dead")])
        chat, mail = await bench.store.channels(APP)
        assert msgspec.structs.replace(chat, oldest_due_at=None) == ChannelPulse(
            channel="chat", waiting=1, sending=0, dead=0, oldest_due_at=None
        )
        assert chat.oldest_due_at is not None
        assert msgspec.structs.replace(mail, oldest_due_at=None) == ChannelPulse(
            channel="mail", waiting=1, sending=1, dead=1, oldest_due_at=None
        )

    async def test_a_channel_shows_since_when_it_cannot_deliver(self, bench: Bench) -> None:
        node, first = await bench.node(), a_message()
        await bench.store.send(APP, [first, a_message(channel="chat", delay=HOUR)])
        created = us((await found(bench, ids=(first.id,)))[0].created_at)
        await bench.pass_time(1_000)
        await bench.store.send(APP, [a_message()])
        # Messages with a delay and first attempts do not count.
        assert [each.oldest_failing_at for each in await bench.store.channels(APP)] == [None, None]
        claimed = (await claim(bench, node)).messages
        assert [each.oldest_failing_at for each in await bench.store.channels(APP)] == [None, None]
        retries = [settled(each, "retry", delay=HOUR) for each in claimed]
        await bench.store.settle_messages(APP, node, retries)
        chat, mail = await bench.store.channels(APP)
        assert (chat.oldest_failing_at, mail.oldest_failing_at) == (None, created)
        # It counts after each retry, and while it is sent again.
        await bench.store.retry_messages(APP, [first.id])
        [again] = (await claim(bench, node)).messages
        assert [each.oldest_failing_at for each in await bench.store.channels(APP)] == [None, created]
        await bench.store.settle_messages(APP, node, [settled(again, "dead")])
        [_, mail] = await bench.store.channels(APP)
        assert mail.oldest_failing_at is not None
        assert mail.oldest_failing_at > created
        # A dead message that is retried has not failed yet.
        await bench.store.retry_messages(APP, [first.id])
        [_, mail] = await bench.store.channels(APP)
        assert mail.oldest_failing_at is not None
        assert mail.oldest_failing_at > created

    async def test_a_node_lists_the_channels_it_sends(self, bench: Bench) -> None:
        join = NodeJoin(
            id=a_run().id,
            name="n",
            app=APP,
            version="1",
            lease=HOUR,
            queues=("default",),
            tasks={},
            declares={},
            channels=("chat", "mail"),
        )
        await bench.store.join(join)
        [node] = await bench.store.nodes(APP)
        assert (node.channels, node.leaves) == (("chat", "mail"), {})

    async def test_a_node_lists_the_tasks_it_leaves_to_others_and_may_change_them(self, bench: Bench) -> None:
        node, left = await bench.node(), {"build": "redis", "Größe": "nats"}
        join = NodeJoin(
            id=node, name="n", app=APP, version="1", lease=HOUR, queues=("default",), tasks={}, declares={}, leaves=left
        )
        await bench.store.join(join)
        assert [(each.leaves, each.tasks) for each in await bench.store.nodes(APP)] == [(left, ())]
        await bench.store.join(msgspec.structs.replace(join, leaves={}))
        assert [each.leaves for each in await bench.store.nodes(APP)] == [{}]

    # --- messages in the transaction of their cause

    async def test_a_run_fails_if_the_messages_of_its_outcome_cannot_be_written(self, bench: Bench) -> None:
        node = await bench.node()
        run = await bench.end(node, await bench.hold(node), result=b"\xff", messages=(a_message(),))
        assert run.verdict is Verdict.FAILED
        assert run.error is not None
        assert "messages" in run.error
        assert await found(bench) == []

    async def test_messages_of_an_outcome_are_written_if_it_is_accepted(self, bench: Bench) -> None:
        node = await bench.node()
        held, new = await bench.hold(node), a_message()
        assert await bench.finish(node, an_outcome(held, messages=(new,))) == ["done"]
        assert [each.id for each in await found(bench)] == [new.id]
        assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED
        assert await bench.finish(node, an_outcome(held, messages=(a_message(),))) == ["already"]
        assert len(await found(bench)) == 1

    @pytest.mark.parametrize("kind", ["retry", "release", "park"])
    async def test_every_kind_of_outcome_can_carry_messages(self, bench: Bench, kind: str) -> None:
        node = await bench.node()
        held, new = await bench.hold(node), a_message()
        assert await bench.finish(node, an_outcome(held, kind, messages=(new,))) == ["done"]
        assert [each.id for each in await found(bench)] == [new.id]

    async def test_a_lost_outcome_sends_no_messages(self, bench: Bench) -> None:
        node, successor = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        await bench.rehome(successor)
        assert await bench.finish(node, an_outcome(held, messages=(a_message(),))) == ["lost"]
        assert await found(bench) == []

    async def test_a_retry_that_a_cancel_overrides_sends_no_messages(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.cancel(held.id)
        assert await bench.finish(node, an_outcome(held, "retry", messages=(a_message(),))) == ["done"]
        assert (await bench.run(held.id)).verdict is Verdict.CANCELLED
        assert await found(bench) == []

    async def test_only_accepted_outcomes_of_a_batch_send_their_messages(self, bench: Bench) -> None:
        node = await bench.node()
        runs = [await bench.hold(node) for _ in range(3)]
        news = [a_message(key="same"), a_message(), a_message(key="same")]
        await bench.finish(node, an_outcome(runs[1]))
        outcomes = [an_outcome(run, messages=(new,)) for run, new in zip(runs, news, strict=True)]
        assert await bench.finish(node, *outcomes) == ["done", "already", "done"]
        assert [each.key for each in await found(bench)] == ["same"]

    async def test_messages_of_a_plan_are_written_if_it_is_accepted(self, bench: Bench) -> None:
        schedule, new = await bench.add(), a_message()
        advance = an_advance(schedule, messages=(new,))
        assert (await bench.record(advance)).taken == [True]
        assert [each.id for each in await found(bench)] == [new.id]
        again = an_advance(schedule, messages=(a_message(),))
        assert (await bench.record(again)).taken == [False]
        assert len(await found(bench)) == 1

    async def test_messages_of_a_change_are_written_if_it_is_accepted(self, bench: Bench) -> None:
        added, edited, settled = a_message(), a_message(), a_message()
        add = Change(key="k", kind="add", definition=a_definition(), fire_at=0, at=0, messages=(added,))
        assert await bench.store.change_schedules(APP, [add]) == [True]
        assert await bench.store.change_schedules(APP, [add]) == [False]
        stored = await bench.stored("k")
        settle = an_advance(stored, messages=(settled,))
        assert await bench.change("edit", stored, settle, messages=(edited,))
        assert not await bench.change("edit", stored, settle, messages=(a_message(),))
        assert {each.id for each in await found(bench)} == {added.id, edited.id, settled.id}

    async def test_an_all_or_none_batch_of_changes_sends_no_messages_if_one_is_refused(self, bench: Bench) -> None:
        stored = await bench.add()
        stale = an_advance(msgspec.structs.replace(stored, version=stored.version + 1))
        changes = [
            Change(key="new", kind="add", definition=a_definition(), messages=(a_message(),)),
            Change(key=stored.key, kind="edit", settle=stale, messages=(a_message(),)),
        ]
        assert False in await bench.store.change_schedules(APP, changes, all_or_none=True)
        assert await found(bench) == []


class TransactionalOutbox:
    async def test_a_message_exists_after_the_users_commit_and_not_before(self, bench: Bench, users: Users) -> None:
        user, new = await users.begin(), a_message(headers={"a": "b"}, delay=MINUTE)
        [message] = await bench.store.within(user.connection).send(APP, [new])
        assert (message.id, message.is_new, message.body) == (new.id, True, {"n": 1})
        assert await found(bench) == []
        await user.commit()
        assert [each.id for each in await found(bench)] == [new.id]

    async def test_a_rollback_of_the_user_removes_the_message(self, bench: Bench, users: Users) -> None:
        user = await users.begin()
        await bench.store.within(user.connection).send(APP, [a_message(key="k")])
        await user.rollback()
        assert await found(bench) == []
        assert (await bench.store.send(APP, [a_message(key="k")]))[0].is_new

    async def test_within_a_transaction_sending_a_known_key_returns_the_existing_message(
        self, bench: Bench, users: Users
    ) -> None:
        first = a_message(key="k")
        await bench.store.send(APP, [first])
        user = await users.begin()
        [known] = await bench.store.within(user.connection).send(APP, [a_message(key="k")])
        await user.commit()
        assert (known.id, known.is_new) == (first.id, False)

    async def test_messages_of_a_finish_are_part_of_the_users_transaction(self, bench: Bench, users: Users) -> None:
        node = await bench.node()
        held, new = await bench.hold(node), a_message()
        undone = await users.begin()
        await bench.store.within(undone.connection).finish(APP, node, an_outcome(held, messages=(new,)))
        await undone.rollback()
        assert await found(bench) == []
        user = await users.begin()
        await bench.store.within(user.connection).finish(APP, node, an_outcome(held, messages=(new,)))
        await user.commit()
        assert [each.id for each in await found(bench)] == [new.id]

    async def test_messages_of_a_job_transaction_exist_after_its_commit(self, bench: Bench) -> None:
        node = await bench.node()
        held, new = await bench.hold(node), a_message()
        transaction = bench.store.transaction(seconds=60, is_plain=False)
        await transaction.begin(APP, node, held.id, held.fence)
        assert await transaction.commit(APP, node, an_outcome(held, messages=(new,)))
        assert [each.id for each in await found(bench)] == [new.id]
