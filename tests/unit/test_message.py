"""Messages for the outbox, and the outcomes of deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evertick import Constant, Context, InvalidInput, InvalidSetting, Refused, Retry, Scheduler
from evertick.clock import system_clock
from evertick.driver.base import Sender
from evertick.engine.outbox_delivery import judge_delivery
from evertick.job.context import MESSAGES_MAX, JobRecord, record_of
from evertick.model import Claimed, ClaimedMessage, Message, MessageOutcome
from evertick.model.message import BODY_MAX_BYTES, DELAY_MAX, HEADERS_MAX_BYTES, new_message
from evertick.when.moment import HOUR, SECOND


def test_a_message_without_a_key_has_its_id_as_key() -> None:
    message = new_message("m1", "mail", {"to": "ann"})
    assert (message.key, message.body, message.headers, message.delay) == ("m1", b'{"to":"ann"}', {}, 0)
    assert new_message("m1", "mail", 1, key="order;7", delay="2s").delay == 2 * SECOND


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"channel": ""}, "channel: '' must have 1 to 200 printable characters, not 0"),
        ({"channel": 7}, "channel: 7 is not text"),
        ({"key": " k"}, "key: ' k' must have"),
        ({"key": "a\nb"}, "key: 'a\\\\nb' must have"),
        ({"key": "k" * 201}, "not 201"),
        ({"body": object()}, "body: it is not JSON-like data"),
        ({"body": "\udc80"}, "body: it is not JSON-like data"),
        ({"body": "x" * BODY_MAX_BYTES}, f"body: it has {BODY_MAX_BYTES + 2} bytes, more than {BODY_MAX_BYTES}"),
        ({"headers": ["x"]}, "headers: .* must be a dict of strings"),
        ({"headers": {"n": 1}}, "headers: .* must be a dict of strings"),
        ({"headers": {"n": "x" * HEADERS_MAX_BYTES}}, "headers: they have"),
        ({"headers": {"n": "\udc80"}}, "headers: 'n': .* must not contain control characters, line ends or surrogates"),
        ({"delay": DELAY_MAX / SECOND + 1}, "delay: .* is more than"),
        ({"delay": "soon"}, "soon"),
    ],
)
def test_an_invalid_message_is_refused_with_the_reason(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        new_message("m1", **{"channel": "mail", "body": 1, **given})


def test_a_run_sends_a_bounded_number_of_messages() -> None:
    run = Claimed(id="r", fence=1, task="t", args=b"{}", fire_at=0, due_at=0, claimed_at=0)
    context = Context(JobRecord(run, system_clock))
    ids = [context.send("mail", number) for number in range(MESSAGES_MAX)]
    assert [message.id for message in record_of(context).messages] == ids
    assert {message.caused_by for message in record_of(context).messages} == {"r"}
    with pytest.raises(Refused, match="sends more than 1000 messages"):
        context.send("mail", "one more")


def test_a_run_sends_a_bounded_number_of_bytes() -> None:
    run = Claimed(id="r", fence=1, task="t", args=b"{}", fire_at=0, due_at=0, claimed_at=0)
    context = Context(JobRecord(run, system_clock))
    large = "x" * (BODY_MAX_BYTES - 2)
    for _ in range(16):
        context.send("mail", large)
    with pytest.raises(Refused, match="4194304 bytes"):
        context.send("mail", large)


# --- outcomes of a delivery --------------------------------------------------------------------------------------


async def _deliver(message: Message) -> None: ...


def judged(error: BaseException | None, *, attempts: int = 0, **options: Any) -> MessageOutcome:
    sender = Sender(channel="mail", deliver=_deliver, **{"retry": Constant("10s", attempts=3, jitter=0.5), **options})
    message = ClaimedMessage(
        id="m", fence=7, channel="mail", key="k", body=b"1", headers={}, attempts=attempts, due_at=0, created_at=0
    )
    return judge_delivery(message, sender, error, uniform=0.5, keep_dead=9)


def test_a_delivery_that_returned_is_sent_and_remembered() -> None:
    outcome = judged(None, remember=HOUR)
    assert (outcome.kind, outcome.attempts, outcome.remember, outcome.error) == ("sent", 1, HOUR, None)
    assert (outcome.id, outcome.fence) == ("m", 7)


def test_a_delivery_that_raised_is_retried_by_the_policy() -> None:
    outcome = judged(ConnectionError("no"))
    assert (outcome.kind, outcome.attempts, outcome.delay) == ("retry", 1, 12_500_000)
    assert outcome.error == "ConnectionError: no"


def test_a_message_is_dead_after_the_last_attempt_or_a_permanent_error() -> None:
    assert (judged(ConnectionError(), attempts=2).kind, judged(ConnectionError(), attempts=2).remember) == ("dead", 9)
    assert judged(ValueError(), give_up_on=(ValueError,)).kind == "dead"
    assert judged(Retry(after="1s"), attempts=2).kind == "dead"


def test_a_sender_can_set_the_retry_delay() -> None:
    assert judged(Retry(after="90s")).delay == 90 * SECOND
    wrong = judged(Retry(after="whenever"))
    assert (wrong.kind, wrong.delay) == ("retry", 12_500_000)
    assert "whenever" in (wrong.error or "")


def test_a_delivery_that_cancels_itself_has_failed() -> None:
    assert judged(asyncio.CancelledError("gone")).kind == "retry"


# --- declarations of senders


def _takes_nothing() -> None: ...


def _takes_two(message: Message, other: int) -> None: ...


def _takes_by_name(*, message: Message) -> None: ...


async def _generates(message: Message) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_takes_nothing, r"'mail': its function takes \(\) -> .*, but gets one Message"),
        (_takes_two, "takes .*other: .*write `\\(message: Message\\)`"),
        (_takes_by_name, "takes .*but gets one Message"),
        (_generates, "is a generator function, which does nothing when it is called"),
        (7, "is not a function"),
    ],
)
def test_a_sender_with_a_wrong_signature_is_refused_at_its_declaration(function: Any, expected: str) -> None:
    with pytest.raises(InvalidSetting, match=expected):
        Scheduler("sqlite://").sender("mail")(function)


def test_a_sender_can_have_extra_parameters_with_defaults() -> None:
    scheduler = Scheduler("sqlite://")
    for channel, function in enumerate([lambda message, other=1: None, lambda *messages: None, print]):
        scheduler.sender(str(channel))(function)
    assert sorted(scheduler.runtime.senders) == ["0", "1", "2"]


def test_a_sender_without_its_channel_is_refused() -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(
        InvalidSetting, match=r"needs the name of its channel.*_takes_two; write @scheduler.sender\(.webhook"
    ):
        scheduler.sender(_takes_two)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="channel: 7 is not text"):
        scheduler.sender(7)  # type: ignore[arg-type]
