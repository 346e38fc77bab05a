"""The group outbox: list, show, retry, drop."""

from __future__ import annotations

import time

import pytest

from evertick import Constant, Message, Scheduler


@pytest.fixture
def messages(database) -> dict[str, Message]:
    """One that was given up, one that was sent, one that nobody sends."""
    node = Scheduler(database, node_name="post@host")

    @node.sender("webhook", retry=Constant("1ms", attempts=2))
    async def deliver(message: Message) -> None:
        if message.key == "bad":
            raise ConnectionError("nobody\x1b[2J answers")

    manager = Scheduler(database, concurrency=0)
    manager.sync.send("webhook", {"order": 7}, key="bad", headers={"trace": "t1"})
    manager.sync.send("webhook", {"order": 8}, key="good")
    deadline = time.monotonic() + 30
    with node:
        while manager.sync.messages(states=["waiting", "sending"]):
            assert time.monotonic() < deadline, "the messages were not settled"
            time.sleep(0.01)
    manager.sync.send("fax", "hello", key="lonely")
    found = {message.key: message for message in manager.sync.messages()}
    manager.sync.close()
    return found


def test_messages_are_listed_newest_first(messages, evertick, ask):
    assert [message["key"] for message in ask("outbox", "list")] == ["lonely", "good", "bad"]
    head, *rows = evertick("outbox", "list").stdout.splitlines()
    assert head.split() == ["MESSAGE", "CHANNEL", "STATE", "TRIES", "DUE", "KEY", "ERROR"]
    assert [row.split()[1:4] for row in rows] == [
        ["fax", "waiting", "0"],
        ["webhook", "sent", "1"],
        ["webhook", "dead", "2"],
    ]
    assert "ConnectionError: nobody [2J answers" in rows[2]
    assert "\x1b" not in rows[2]


def test_messages_are_listed_by_channel_and_state(messages, evertick, ask):
    assert [each["key"] for each in ask("outbox", "list", "--channel", "fax")] == ["lonely"]
    assert [each["key"] for each in ask("outbox", "list", "--state", "dead", "--state", "sent")] == ["good", "bad"]
    assert [each["key"] for each in ask("outbox", "list", "--limit", "1")] == ["lonely"]
    assert "has no matching messages" in evertick("outbox", "list", "--channel", "mail").stderr


def test_one_message_tells_everything_about_itself(messages, evertick, ask):
    dead = messages["bad"]
    text = evertick("outbox", "show", dead.id).stdout
    for line in ("Channel  webhook", "Key      bad", "State    dead", "Tries    2", "Headers  trace: t1"):
        assert line in text
    assert '{"order": 7}' in text
    assert "nobody" in text
    assert ask("outbox", "show", dead.id)["body"] == {"order": 7}
    assert "Body" not in evertick("outbox", "show", messages["good"].id).stdout


def test_a_message_is_named_by_the_beginning_of_its_id_where_that_is_enough(messages, evertick):
    lonely = messages["lonely"]
    assert lonely.id in evertick("outbox", "show", lonely.id[:20]).stdout
    several = evertick("outbox", "show", lonely.id[:8])
    assert (several.exit_code, "several messages" in several.stderr) == (2, True)
    unknown = evertick("outbox", "show", "nothing-like-it")
    assert (unknown.exit_code, "there is no message" in unknown.stderr) == (1, True)


def test_dead_messages_are_put_back_one_or_all(messages, evertick, ask):
    assert ask("outbox", "retry", messages["bad"].id) == {"retried": [messages["bad"].id]}
    [again] = ask("outbox", "list", "--channel", "webhook", "--state", "waiting")
    assert (again["key"], again["attempts"]) == ("bad", 0)
    result = evertick("outbox", "retry", "--dead")
    assert result.stdout == "0 messages are due now: none is dead\n"


def test_a_retry_that_nobody_will_deliver_says_so(messages, evertick):
    result = evertick("outbox", "retry", "--dead", "--channel", "webhook")
    assert result.stdout == "1 message is due now\n"
    assert "no live node has a sender for channel 'webhook'" in result.stderr


@pytest.mark.parametrize("words", [[], ["01a1e06c", "--dead"], ["01a1e06c", "--channel", "fax"]])
def test_a_retry_names_one_message_or_all_dead_ones(database, evertick, words):
    assert evertick("outbox", "retry", *words).exit_code == 2


def test_a_sent_message_cannot_be_retried(messages, evertick):
    result = evertick("outbox", "retry", messages["good"].id)
    assert (result.exit_code, "is sent, and only a waiting or dead message can be retried" in result.stderr) == (
        1,
        True,
    )


def test_a_dropped_message_is_gone(messages, evertick, ask):
    refused = evertick("outbox", "drop", messages["lonely"].id)
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    result = evertick("outbox", "drop", messages["lonely"].id, "--yes")
    assert result.stdout == f"dropped message {messages['lonely'].id}\n"
    assert ask("outbox", "drop", messages["bad"].id, "--yes")["key"] == "bad"
    assert [each["key"] for each in ask("outbox", "list")] == ["good"]


def test_the_doctor_names_dead_messages(messages, evertick):
    assert "channel webhook: 1 dead message" in evertick("doctor").stdout


def test_a_message_is_named_by_its_key_where_one_channel_has_it(messages, database, evertick):
    assert messages["lonely"].id in evertick("outbox", "show", "lonely").stdout
    manager = Scheduler(database, concurrency=0)
    manager.sync.send("webhook", "hello", key="lonely")
    manager.sync.close()
    several = evertick("outbox", "show", "lonely")
    assert several.exit_code == 2
    assert "webhook, fax" in several.stderr


def test_a_channel_that_nobody_knows_is_refused_and_those_there_are_are_named(messages, evertick):
    unknown = evertick("outbox", "retry", "--dead", "--channel", "nix")
    assert unknown.exit_code == 1
    assert "there is no channel 'nix' in app 'default'; the channels are fax, webhook" in unknown.stderr
    known = evertick("outbox", "retry", "--dead", "--channel", "fax")
    assert (known.exit_code, known.stdout) == (0, "0 messages are due now: none is dead\n")


def test_what_cannot_be_dropped_is_refused_without_a_question(messages, evertick):
    sent = evertick("outbox", "drop", messages["good"].id)
    assert sent.exit_code == 1
    assert "is sent, and only a waiting or dead message can be dropped" in sent.stderr


@pytest.mark.parametrize(
    ("command", "word", "told"),
    [
        ("why", "webhook", "'webhook' is a channel, see `evertick outbox list --channel webhook`"),
        ("show", "fax", "'fax' is a channel"),
        ("why", "post@host", "'post@host' is a node, see `evertick nodes`"),
        ("trigger", "make_report", "'make_report' is a task of the schedules quick, report"),
        ("history", "make_report()", "`evertick history --task make_report`"),
    ],
)
def test_the_name_of_something_else_is_answered_with_what_it_is(messages, evertick, command, word, told):
    result = evertick(command, word)
    assert result.exit_code == 1
    assert told in result.stderr
