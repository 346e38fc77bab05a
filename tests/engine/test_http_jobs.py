"""HTTP jobs, carried out against real servers on this machine."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from evertick import Constant, Http, HttpBasic, HttpExpect, InvalidSetting, Run, Scheduler, Secret
from evertick.driver.http.driver import HttpDriver
from evertick.driver.http.spec import HttpSettings
from evertick.driver.secret import Secrets
from evertick.model import Attempt
from evertick.testing import virtual_time
from servers.http import Heard, WebServer, answer, web_server
from servers.tls import Certificates, certificates

SECONDS_MAX = 30.0
LOOPBACK = ("127.0.0.0/8",)
# Longer than any test may take: a test that waits for it was not stopped.
NEVER = 3600.0


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as serving:
        serving.paths["/"] = answer(body=b"hello")
        yield serving


@pytest.fixture(scope="module")
def tls() -> Iterator[Certificates]:
    with certificates() as made:
        yield made


def made(**secrets: str) -> Scheduler:
    scheduler = Scheduler("sqlite://", app="shop", drivers=["http"], stop_timeout="1s")
    scheduler.runtime.secrets = Secrets(None, {f"EVERTICK_SECRET_{name}": value for name, value in secrets.items()})
    return scheduler


async def carried_out(
    spec: Http, scheduler: Scheduler | None = None, look_up: Any = None, args: dict[str, Any] | None = None, **task: Any
) -> tuple[Run, str]:
    """The run, and its log."""
    scheduler = scheduler or made()
    job = scheduler.job("hook", spec, **task)
    if look_up is not None:
        driver = job.work.driver
        assert isinstance(driver, HttpDriver)
        driver._look_up = look_up
    async with scheduler:
        run = await job.enqueue(**(args or {}))
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await scheduler.get_run(run.id)).verdict is None:
                await asyncio.sleep(0.01)
        return found, "\n".join(line.text for line in await scheduler.log(run))


async def asked_to_wait(spec: Http) -> tuple[Run, Attempt]:
    """The run while it waits after its first attempt, and that attempt."""
    scheduler = made()
    job = scheduler.job("hook", spec)
    async with scheduler:
        run = await job.enqueue()
        async with asyncio.timeout(SECONDS_MAX):
            while not (found := await scheduler.get_run(run.id)).attempts:
                await asyncio.sleep(0.01)
        return found, (await scheduler.attempts(run))[0]


def to(server: WebServer, path: str = "/", **fields: Any) -> Http:
    return Http(f"{server.url}{path}", **{"allow": LOOPBACK, **fields})


def answering(**answers: list[str]) -> Callable[[str], Any]:
    """A resolver for these names, which returns the next answer at each lookup."""
    asked: dict[str, int] = {}

    async def look_up(host: str) -> list[str]:
        name = host.replace(".test", "")
        asked[name] = asked.get(name, 0) + 1
        known = answers[name]
        return known[min(asked[name], len(known)) - 1].split()

    look_up.asked = asked  # type: ignore[attr-defined]
    return look_up


async def test_a_request_has_its_phases_and_each_redirect_too(server: WebServer) -> None:
    server.paths["/moved"] = answer(302, {"Location": "/"})
    run, _ = await carried_out(to(server, "/moved"))
    assert run.verdict == "succeeded", run.error
    found = [(phase.name, phase.metadata) for phase in run.phases]
    assert found == [
        ("connect", {"address": "127.0.0.1"}),
        ("wait", {"status": 302}),
        ("read", {"bytes": 0}),
        ("connect", {"address": "127.0.0.1"}),
        ("wait", {"status": 200}),
        ("read", {"bytes": 5}),
    ]
    assert all(phase.seconds is not None and not phase.is_failed for phase in run.phases)


async def test_the_phases_of_a_request_that_failed_are_with_its_attempt(server: WebServer) -> None:
    async def hang_up(_: Heard, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 Said\r\nContent-Length: 500\r\n\r\nhalf")
        await writer.drain()

    server.paths["/"] = hang_up
    scheduler = made()
    job = scheduler.job("hook", to(server), retry=Constant("1h", attempts=2))
    async with scheduler:
        run = await job.enqueue()
        async with asyncio.timeout(SECONDS_MAX):
            while not (await scheduler.get_run(run.id)).attempts:
                await asyncio.sleep(0.01)
        [attempt] = await scheduler.attempts(run)
    found = [(phase.name, phase.is_failed) for phase in attempt.phases]
    assert found == [("connect", False), ("wait", False), ("read", True)]


async def test_a_connection_that_is_refused_is_a_phase_that_failed(server: WebServer) -> None:
    async with web_server() as gone:
        url = gone.url
    run, _ = await carried_out(Http(url, allow=LOOPBACK))
    assert [(phase.name, phase.is_failed, phase.metadata) for phase in run.phases] == [
        ("connect", True, {"address": "127.0.0.1"})
    ]


async def test_the_page_of_a_failure_is_in_the_ledger_and_one_line_of_it_in_the_log(
    server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    page = b"<html>\n" + b"<p>We are sorry</p>\n" * 40 + b"</html>\n"
    server.paths["/"] = answer(500, {}, page)
    run, _ = await carried_out(to(server))
    assert run.error is not None
    assert run.error.count("\n") > 20
    [record] = [each for each in caplog.records if each.name == "evertick.finish"]
    assert record.levelno == logging.ERROR
    assert "response body: <html> <p>We are sorry</p> <p>" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 400


# --- requests


async def test_a_request_identifies_its_run_and_the_response_is_the_result(server: WebServer) -> None:
    server.paths["/"] = answer(201, {"Content-Type": "text/plain", "Set-Cookie": "a=b"}, b"hello")
    run, log = await carried_out(to(server))
    assert run.verdict == "succeeded", run.error
    result = run.result
    assert isinstance(result, dict)
    assert result.pop("seconds") >= 0
    assert result == {
        "status": 201,
        "url": f"{server.url}/",
        "address": "127.0.0.1",
        "redirects": 0,
        "headers": {"content-type": "text/plain", "content-length": "5"},
        "body": "hello",
        "is_cut": False,
    }
    (heard,) = server.heard
    assert (heard.method, heard.target, heard.body) == ("GET", "/", b"")
    at = run.fire_at.isoformat().replace("+00:00", "Z")
    assert heard.headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": heard.headers["user-agent"],
        "accept": "*/*",
        "accept-encoding": "identity",
        "idempotency-key": run.id,
        "evertick-run-id": run.id,
        "evertick-task": "hook",
        "evertick-fire-at": at,
        "evertick-attempt": "1",
        "evertick-fence": str(run.fence),
        "evertick-app": "shop",
        "connection": "close",
    }
    assert heard.headers["user-agent"].startswith("evertick/")
    assert f"GET {server.url}/: 201 Said from 127.0.0.1 after" in log


async def test_headers_that_identify_the_run_can_be_turned_off(server: WebServer) -> None:
    await carried_out(to(server, run_headers=False))
    assert set(server.heard[0].headers) == {"host", "connection"}


async def test_places_are_filled_everywhere(server: WebServer) -> None:
    server.paths["/a%2Fb%20c"] = answer()
    spec = to(
        server,
        "/{args.path}?run={run_id}",
        method="put",
        headers={"X-Attempt": "no {attempt}", "user-agent": "me"},
        json={"id": "{run_id}", "who": "dear {args.who}", "n": "{args.n}"},
    )
    run, _ = await carried_out(spec, args={"path": "a/b c", "who": 'Ada "L"', "n": [1, None]})
    assert run.verdict == "succeeded", run.error
    (heard,) = server.heard
    assert (heard.method, heard.target) == ("PUT", f"/a%2Fb%20c?run={run.id}")
    assert heard.headers["x-attempt"] == "no 1"
    assert heard.headers["user-agent"] == "me"
    assert heard.headers["content-type"] == "application/json"
    assert heard.body == f'{{"id":"{run.id}","who":"dear Ada \\"L\\"","n":[1,null]}}'.encode()


async def test_a_body_of_text_is_sent_as_its_content_type_wants_it(server: WebServer) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    await carried_out(to(server, body="who={args.who}", headers=kind), args={"who": "a&b"})
    await carried_out(to(server, body="who={args.who}"), args={"who": "a&b"})
    assert [heard.body for heard in server.heard] == [b"who=a%26b", b"who=a&b"]
    assert server.heard[1].headers["content-type"] == "text/plain; charset=utf-8"


async def test_an_argument_that_is_missing_or_breaks_a_header_fails_the_run_and_sends_nothing(
    server: WebServer,
) -> None:
    missing, _ = await carried_out(to(server, json="{args.who}"))
    assert missing.error is not None
    assert "task 'hook': http: json: {args.who} is not an argument of this run" in missing.error
    broken, _ = await carried_out(to(server, headers={"X-Who": "{args.who}"}), args={"who": "a\r\nX-Admin: 1"})
    assert broken.error is not None
    assert "headers: 'X-Who': its value has a character that is not allowed in a header" in broken.error
    assert server.heard == []


@pytest.mark.parametrize("path", ["..", ".", "a/../b"])
async def test_an_argument_leads_nowhere_else_on_the_server(server: WebServer, path: str) -> None:
    """Slashes are quoted, so only a whole part of the path can be a step up."""
    spec = to(server, "/items/{args.item}/{args.part}")
    run, _ = await carried_out(spec, args={"item": path, "part": "x"})
    if "/" in path:
        assert server.heard[0].target == "/items/a%2F..%2Fb/x"
    else:
        assert run.error is not None
        assert "http: url: with these arguments the path has a '.' or '..' segment" in run.error
        assert server.heard == []


async def test_a_signed_request_can_be_checked_with_either_of_two_keys(server: WebServer) -> None:
    keys = {"NEW": "whsec_" + base64.b64encode(b"n" * 24).decode(), "OLD": "plain old key"}
    run, _ = await carried_out(to(server, json={"n": 1}, sign=(Secret("NEW"), Secret("OLD"))), made(**keys))
    assert run.verdict == "succeeded", run.error
    (heard,) = server.heard
    stamp = heard.headers["webhook-timestamp"]
    assert heard.headers["webhook-id"] == run.id
    assert abs(int(stamp) - datetime.now(UTC).timestamp()) < 60
    signed = f"{run.id}.{stamp}.".encode() + heard.body
    wanted = [hmac.new(key, signed, hashlib.sha256).digest() for key in (b"n" * 24, b"plain old key")]
    assert heard.headers["webhook-signature"] == " ".join(f"v1,{base64.b64encode(each).decode()}" for each in wanted)


# --- secrets


async def test_secrets_are_sent_and_shown_nowhere(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def repeat(heard: Heard, writer: asyncio.StreamWriter) -> None:
        said = f"{heard.target} {heard.headers}"
        writer.write(answer(500, {"ETag": heard.headers["x-key"]}, said.encode()))

    server.paths["/in-the-path"] = repeat
    scheduler = made(KEY="geheim-1", TOKEN="geheim-2", WHERE=f"{server.url}/in-the-path?q=geheim-3", PW="geheim-4")
    spec = to(server, headers={"X-Key": Secret("KEY")}, bearer=Secret("TOKEN"))
    spec = Http(Secret("WHERE"), allow=LOOPBACK, headers=spec.headers, bearer=spec.bearer)
    failed, log = await carried_out(spec, scheduler)
    assert server.heard[0].headers["authorization"] == "Bearer geheim-2"
    assert server.heard[0].headers["x-key"] == "geheim-1"
    assert failed.error is not None
    assert f"GET {server.url}/…: unexpected status 500 Said; response body:\n" in failed.error
    again = made(KEY="geheim-1", PW="geheim-4")
    expect = HttpExpect(status=500)
    basic = HttpBasic(user="me", password=Secret("PW"))
    kept, more = await carried_out(to(server, "/in-the-path", headers=spec.headers, basic=basic, expect=expect), again)
    coded = base64.b64encode(b"me:geheim-4").decode()
    assert server.heard[1].headers["authorization"] == f"Basic {coded}"
    assert kept.verdict == "succeeded"
    # Debug logs of httpcore show every byte; they are not covered here.
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("httpcore")]
    shown = f"{failed.error} {failed.result} {log} {kept.result} {more} {ours} {spec!r}"
    assert "***" in shown
    assert "geheim" not in shown
    assert coded not in shown
    assert "in-the-path" not in f"{failed.error.partition('it says')[0]} {log}"


async def test_a_secret_that_a_server_repeats_in_a_redirect_is_not_shown(server: WebServer) -> None:
    server.paths["/"] = redirect(302, "ftp://127.0.0.1/geheim")
    server.paths["/on"] = redirect(302, "/geheim")
    server.paths["/geheim"] = answer(500)
    for path in ("/", "/on"):
        run, log = await carried_out(to(server, path, bearer=Secret("TOKEN")), made(TOKEN="geheim"))
        assert run.error is not None
        assert "***" in run.error
        assert "geheim" not in f"{run.error} {log}"


def saying(start: bytes, body: bytes = b"") -> bytes:
    """An answer with a first line, and further ones, of its own."""
    return start + f"\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


LONG_SECRET = "geheim-0123456789-abcdefghij"
OK, WRONG = b"HTTP/1.1 200 OK", b"HTTP/1.1 500 Wrong"


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        # At the read limit, for a run that succeeds and one that fails.
        (saying(OK, b"x" * 90 + LONG_SECRET.encode() * 2), {"read_limit": "100B"}),
        (saying(WRONG, b"x" * 90 + LONG_SECRET.encode() * 2), {"read_limit": "100B"}),
        (saying(OK, b"x" * 62 + LONG_SECRET.encode() * 2), {"read_limit": "100B"}),
        (saying(OK, b"x" * 90 + LONG_SECRET.encode()), {"read_limit": "100B", "expect": HttpExpect(contains="y")}),
        # At the end of the shown and of the stored text.
        (saying(WRONG, b"x" * 1_990 + LONG_SECRET.encode()), {}),
        (saying(OK, b"x" * 8_182 + LONG_SECRET.encode()), {}),
        (saying(OK, b'{"a": "' + b"x" * 90 + LONG_SECRET.encode() + b'"}'), {"expect": HttpExpect(json={"/a": 1})}),
        (saying(b"HTTP/1.1 500 " + b"x" * 90 + LONG_SECRET.encode()), {}),
        (saying(b"HTTP/1.1 500 " + LONG_SECRET.encode()), {}),
        (saying(b"HTTP/1.1 302 On\r\nLocation: ftp://x/" + b"x" * 490 + LONG_SECRET.encode()), {}),
        # A line that is not a header, which the error repeats.
        (b"HTTP/1.1 200 OK\r\n" + b"x " * 224 + LONG_SECRET.encode() + b"\r\n\r\n", {}),
    ],
)
async def test_where_a_text_is_cut_no_part_of_a_secret_is_left(
    server: WebServer, said: bytes, fields: dict[str, Any]
) -> None:
    server.paths["/"] = said
    run, log = await carried_out(to(server, headers={"X-Key": Secret("KEY")}, **fields), made(KEY=LONG_SECRET))
    shown = f"{run.error} {run.result} {log}"
    assert "xxxxxxxxxx" in shown or "x x x x x" in shown or "500 ***" in shown
    assert "geh" not in shown


async def test_a_secret_that_is_cut_within_a_letter_is_not_shown_up_to_there(server: WebServer) -> None:
    server.paths["/"] = answer(body=b"x" * 93 + "geheimä-und-mehr".encode())
    basic = HttpBasic(user="me", password=Secret("PW"))
    run, _ = await carried_out(to(server, basic=basic, read_limit="100B"), made(PW="geheimä-und-mehr"))
    assert run.result["body"] == "x" * 93  # type: ignore[index]


async def test_a_cut_response_is_kept_without_secrets(server: WebServer) -> None:
    server.paths["/"] = answer(body=b"a geheim-and " * 10)
    run, _ = await carried_out(to(server, bearer=Secret("TOKEN"), read_limit="20B"), made(TOKEN="geheim"))
    assert (run.result["body"], run.result["is_cut"]) == ("a ***-and a ", True)  # type: ignore[index]


async def test_an_invalid_address_is_reported_and_not_shown() -> None:
    run, _ = await carried_out(Http(Secret("WHERE")), made(WHERE="https://-ä-/geheim"))
    assert run.error == "GET: the url is not valid; write it like 'https://host/path'"


async def test_a_secret_that_is_missing_fails_the_run_with_its_name(server: WebServer) -> None:
    run, _ = await carried_out(to(server, bearer=Secret("TOKEN")))
    assert run.error is not None
    assert "secret 'TOKEN' is not set; set the environment variable EVERTICK_SECRET_TOKEN" in run.error
    assert server.heard == []


# --- expectations


@pytest.mark.parametrize(
    ("expect", "wrong"),
    [
        (HttpExpect(status=(200, 404)), None),
        (HttpExpect(status=204), "unexpected status 200 Said"),
        (HttpExpect(contains='"ok"'), None),
        (HttpExpect(contains="fine"), "200 Said, but the body does not contain 'fine'"),
        (HttpExpect(matches=r"\"n\":\s*\d+"), None),
        (HttpExpect(matches="^$"), "200 Said, but the body does not match '^$'"),
        (HttpExpect(json={"/state": "ok", "/list/1/a~1b": 7, "/n": 1.0, "": {"state": "ok", "n": 1}}), "at ''"),
        (HttpExpect(json={"/state": "ok", "/list/1/a~1b": 7, "/n": 1.0, "/is": True}), None),
        (HttpExpect(json={"/is": 1}), "the body has true at '/is', not 1"),
        (HttpExpect(json={"/state": "down"}), 'the body has "ok" at \'/state\', not "down"'),
        (HttpExpect(json={"/list/2": 1}), "the body has no value at '/list/2'"),
        (HttpExpect(json={"/state/x": 1}), "the body has no value at '/state/x'"),
    ],
)
async def test_an_answer_must_be_what_is_expected(server: WebServer, expect: HttpExpect, wrong: str | None) -> None:
    body = b'{"state": "ok", "n": 1, "is": true, "list": [0, {"a/b": 7}]}'
    server.paths["/"] = answer(body=body)
    run, _ = await carried_out(to(server, expect=expect))
    if wrong is None:
        assert run.verdict == "succeeded", run.error
    else:
        assert run.verdict == "failed"
        assert run.error is not None
        assert wrong in run.error
        assert run.error.endswith(f"response body:\n{body.decode()}")
        assert (run.result["status"], run.result["body"]) == (200, body.decode())  # type: ignore[index]


async def test_a_response_that_is_not_json_is_reported(server: WebServer) -> None:
    run, _ = await carried_out(to(server, expect=HttpExpect(json={"/a": 1})))
    assert run.error is not None
    assert "but the body is not JSON: " in run.error


async def test_an_expression_that_would_search_for_ever_is_given_up(server: WebServer) -> None:
    server.paths["/"] = answer(body=b"a" * 60 + b"!")
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.05)
            beats += 1

    beating = asyncio.create_task(beat())
    run, _ = await carried_out(to(server, expect=HttpExpect(matches="^(a+)+$")))
    beating.cancel()
    assert run.error is not None
    assert "matching the body with '^(a+)+$' timed out after 2 s" in run.error
    # The event loop was not blocked.
    assert beats > 10


async def test_a_failed_request_is_tried_again_by_the_policy_with_the_same_key(server: WebServer) -> None:
    async def at_last(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200 if heard.headers["evertick-attempt"] == "3" else 500))

    server.paths["/"] = at_last
    run, _ = await carried_out(to(server), retry=Constant("10ms", attempts=5))
    assert (run.verdict, run.attempts) == ("succeeded", 3)
    assert {heard.headers["idempotency-key"] for heard in server.heard} == {run.id}
    assert len({heard.headers["evertick-fence"] for heard in server.heard}) == 3


# --- Retry-After


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"Retry-After": "120"}, "2m"),
        ({"Retry-After": "0"}, "1s"),
        ({"Retry-After": "999999999999"}, "1h"),
        (
            {
                "Date": format_datetime(datetime(2020, 1, 1, tzinfo=UTC), usegmt=True),
                "Retry-After": format_datetime(datetime(2020, 1, 1, 0, 5, tzinfo=UTC), usegmt=True),
            },
            "5m",
        ),
    ],
)
async def test_a_server_may_ask_to_be_left_alone_for_a_while(
    server: WebServer, headers: dict[str, str], waits: str
) -> None:
    server.paths["/"] = answer(503, headers)
    run, first = await asked_to_wait(to(server))
    assert first.error is not None
    assert f"503 Said, retry after {waits}" in first.error
    assert "Traceback" not in first.error
    wanted = {"2m": 120, "1s": 1, "1h": 3600, "5m": 300}[waits]
    assert timedelta(0) <= run.due_at - first.finished_at - timedelta(seconds=wanted) < timedelta(seconds=2)


async def test_a_moment_of_the_server_counts_from_now_where_it_shows_no_clock(server: WebServer) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10)
    server.paths["/"] = answer(429, {"Retry-After": format_datetime(at, usegmt=True)})
    run, _ = await asked_to_wait(to(server))
    assert timedelta(0) <= run.due_at - at < timedelta(seconds=2)


async def test_a_run_whose_server_asked_to_wait_succeeds_in_a_later_attempt(server: WebServer) -> None:
    async def busy_at_first(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(503, {"Retry-After": "1"}) if heard.headers["evertick-attempt"] == "1" else answer())

    server.paths["/"] = busy_at_first
    run, _ = await carried_out(to(server))
    assert (run.verdict, run.attempts) == ("succeeded", 2)


async def test_the_last_answer_of_a_server_that_only_asked_to_wait_is_the_result(server: WebServer) -> None:
    server.paths["/"] = answer(503, {"Retry-After": "0"}, b"busy")
    run, _ = await carried_out(to(server), retry=Constant("1ms", attempts=2))
    assert (run.verdict, run.attempts) == ("failed", 2)
    assert (run.result["status"], run.result["body"]) == (503, "busy")  # type: ignore[index]


async def test_an_unreadable_retry_after_fails_like_any_other_response(server: WebServer) -> None:
    server.paths["/"] = answer(503, {"Retry-After": "soon"})
    run, _ = await carried_out(to(server))
    assert (run.verdict, run.attempts) == ("failed", 1)


# --- virtual time


async def test_in_virtual_time_nothing_is_sent(server: WebServer) -> None:
    scheduler = made(HOOK=f"{server.url}/geheim")
    specs = {
        f"GET {server.url}/?…": to(server, "/?key=geheim"),
        f"POST {server.url}/": to(server, json={"a": 1}),
        "GET to the URL in secret 'HOOK'": Http(Secret("HOOK"), allow=LOOPBACK),
    }
    for name, spec in specs.items():
        scheduler.cron("0 3 * * *", key=name)(scheduler.job(name, spec))
    async with virtual_time(scheduler, start="2026-01-01T00:00:00Z", io_wait="0.2s") as kit:
        await kit.advance("1d")
        for name in specs:
            kit.assert_succeeded(name, times=1)
            (run,) = kit.runs(name)
            assert [line.text for line in await scheduler.log(run)] == [f"not sent in virtual time: {name}"]
    assert server.heard == []


# --- bounds


async def test_one_deadline_holds_for_the_whole_exchange_though_the_server_goes_on_and_on(server: WebServer) -> None:
    gone = asyncio.Event()

    async def drip(_: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:  # each byte long before any timeout of a single read
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.02)
        finally:
            gone.set()

    server.paths["/"] = drip
    run, _ = await carried_out(to(server, timeout="300ms"))
    assert run.error == (f"GET {server.url}/: timed out after 0.3 s while reading the response")
    await asyncio.wait_for(gone.wait(), SECONDS_MAX)


@pytest.mark.parametrize("begins", [b"", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n"])
async def test_a_server_that_sends_nothing_or_half_a_head_times_out(server: WebServer, begins: bytes) -> None:
    async def silent(_: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(begins)
        await asyncio.sleep(NEVER)

    server.paths["/"] = silent
    run, _ = await carried_out(to(server, timeout="200ms"))
    assert run.error == f"GET {server.url}/: timed out after 0.2 s while waiting for a response from 127.0.0.1"


async def test_a_name_server_that_does_not_answer_is_left(server: WebServer) -> None:
    async def look_up(_: str) -> list[str]:
        await asyncio.sleep(NEVER)
        return []

    run, _ = await carried_out(Http("http://slow.test/", timeout="200ms"), look_up=look_up)
    assert run.error == "GET http://slow.test/: timed out after 0.2 s while resolving 'slow.test'"


async def test_a_tls_handshake_that_never_ends_is_left() -> None:
    async with web_server() as plain:  # waits for a line that a TLS client never sends
        spec = Http(f"https://127.0.0.1:{plain.port}/", timeout="300ms", allow=LOOPBACK)
        run, _ = await carried_out(spec)
    assert run.error is not None
    assert "connecting to 127.0.0.1" in run.error or "cannot connect to 127.0.0.1" in run.error


async def test_a_run_that_is_cancelled_leaves_the_server_at_once(server: WebServer) -> None:
    heard, gone = asyncio.Event(), asyncio.Event()

    async def silent(_: Heard, writer: asyncio.StreamWriter) -> None:
        heard.set()
        try:
            while not writer.is_closing():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.02)
        finally:
            gone.set()

    server.paths["/"] = silent
    scheduler = made()
    job = scheduler.job("hook", to(server, timeout="1h"))
    async with scheduler:
        run = await job.enqueue()
        await asyncio.wait_for(heard.wait(), SECONDS_MAX)
        await scheduler.cancel(run)
        await asyncio.wait_for(gone.wait(), SECONDS_MAX)
        async with asyncio.timeout(SECONDS_MAX):
            while (ended := await scheduler.get_run(run.id)).verdict is None:
                await asyncio.sleep(0.01)
    assert ended.verdict == "cancelled"


async def test_only_so_much_of_an_answer_is_read_and_the_cut_is_marked(server: WebServer) -> None:
    sent = 0

    async def flood(_: Heard, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 100_000_000:
            writer.write(b"x" * 10_000)
            sent += 10_000
            await writer.drain()

    server.paths["/"] = flood
    run, log = await carried_out(to(server, read_limit=1_000))
    assert run.verdict == "succeeded", run.error
    assert run.result["body"] == "x" * 1_000  # type: ignore[index]
    assert run.result["is_cut"] is True  # type: ignore[index]
    assert "1000 bytes (cut at read_limit)" in log
    assert sent < 50_000_000
    sent = 0
    failed, _ = await carried_out(to(server, read_limit=1_000, expect=HttpExpect(contains="y")))
    assert failed.error is not None
    assert "does not contain 'y' (only the first 1000 bytes are read; see read_limit)" in failed.error


async def test_a_compressed_body_is_decompressed_only_up_to_the_limit(server: WebServer) -> None:
    packed = gzip.compress(b"z" * 50_000_000)
    server.paths["/"] = answer(200, {"Content-Encoding": "gzip"}, packed)
    server.paths["/small"] = answer(200, {"Content-Encoding": "gzip"}, gzip.compress(b"small"))
    server.paths["/broken"] = answer(200, {"Content-Encoding": "gzip"}, b"no gzip")
    run, _ = await carried_out(to(server, read_limit=500))
    assert run.result["body"] == "z" * 500  # type: ignore[index]
    assert (await carried_out(to(server, "/small")))[0].result["body"] == "small"  # type: ignore[index]
    broken, _ = await carried_out(to(server, "/broken"))
    assert broken.error is not None
    assert "the body cannot be decompressed" in broken.error


async def test_a_large_answer_is_kept_as_far_as_a_result_goes(server: WebServer) -> None:
    server.paths["/"] = answer(body=b"\x00" * 60_000)
    run, _ = await carried_out(to(server))
    assert run.verdict == "succeeded"
    assert run.result["body"] == "\x00" * 8_192  # type: ignore[index]
    assert run.result["is_cut"] is True  # type: ignore[index]


async def test_a_response_is_decoded_by_its_charset(server: WebServer) -> None:
    server.paths["/"] = answer(200, {"Content-Type": "text/plain; charset=ISO-8859-1"}, "für".encode("latin-1"))
    server.paths["/odd"] = answer(200, {"Content-Type": "text/plain; charset=nonsense"}, "für".encode())
    assert (await carried_out(to(server)))[0].result["body"] == "für"  # type: ignore[index]
    server.paths["/strict"] = answer(200, {"Content-Type": "text/plain; charset=idna"}, "für".encode())
    assert (await carried_out(to(server, "/odd")))[0].result["body"] == "für"  # type: ignore[index]
    assert (await carried_out(to(server, "/strict")))[0].result["body"] == "für"  # type: ignore[index]


async def test_a_response_that_is_not_http_is_reported(server: WebServer) -> None:
    server.paths["/"] = b"220 mail.test ESMTP\r\n"
    run, _ = await carried_out(to(server))
    assert run.error is not None
    assert f"GET {server.url}/: failed while waiting for a response from 127.0.0.1: " in run.error


async def test_a_refused_connection_is_reported_with_the_address(server: WebServer) -> None:
    async with web_server() as other:
        pass
    run, _ = await carried_out(to(other))
    assert run.error is not None
    port = other.url.rpartition(":")[2]
    assert run.error == f"GET {other.url}/: cannot connect to 127.0.0.1:{port}: connection refused"


# --- addresses


async def test_this_machine_is_not_talked_to_unless_it_is_allowed(server: WebServer) -> None:
    run, _ = await carried_out(to(server, allow=()))
    assert run.error is not None
    assert run.error.startswith("connections to 127.0.0.1 (a loopback address) are not allowed; to allow it")
    assert server.heard == []
    scheduler = made()
    scheduler.runtime.connections["http"] = HttpSettings(allow_private=True)
    assert (await carried_out(to(server, allow=()), scheduler))[0].verdict == "succeeded"
    scheduler = made()
    scheduler.runtime.connections["http"] = HttpSettings(allow=("127.0.0.1",))
    assert (await carried_out(to(server, allow=()), scheduler))[0].verdict == "succeeded"


async def test_a_name_is_looked_up_once_and_the_address_that_was_judged_is_the_one_that_is_asked(
    server: WebServer,
) -> None:
    """DNS rebinding: the first lookup of the name gives a harmless address, the next one another."""
    async with web_server("127.0.0.2", server.port) as harmless:
        harmless.paths["/"] = answer(body=b"harmless")
        look_up = answering(rebound=["127.0.0.2", "127.0.0.1"])
        spec = Http(f"http://rebound.test:{server.port}/", allow=("127.0.0.2",))
        run, _ = await carried_out(spec, look_up=look_up)
        assert run.verdict == "succeeded", run.error
        assert run.result["address"] == "127.0.0.2"  # type: ignore[index]
        assert look_up.asked == {"rebound": 1}  # type: ignore[attr-defined]
        assert harmless.heard[0].headers["host"] == f"rebound.test:{server.port}"
        assert server.heard == []


async def test_of_two_addresses_the_one_that_is_not_allowed_is_never_asked(server: WebServer) -> None:
    async with web_server("127.0.0.2", server.port) as allowed:
        allowed.paths["/"] = answer(body=b"allowed")
        spec = Http(f"http://two.test:{server.port}/", allow=("127.0.0.2",))
        run, _ = await carried_out(spec, look_up=answering(two=["127.0.0.1 127.0.0.2"]))
        assert run.result["body"] == "allowed"  # type: ignore[index]
    # Also not if the allowed address does not answer.
    run, _ = await carried_out(spec, look_up=answering(two=["127.0.0.1 127.0.0.2"]))
    assert run.error is not None
    assert "cannot connect to 127.0.0.2" in run.error
    assert server.heard == []


async def test_when_the_first_address_does_not_answer_the_next_one_is_asked(server: WebServer) -> None:
    spec = Http(f"http://two.test:{server.port}/", allow=LOOPBACK)
    run, _ = await carried_out(spec, look_up=answering(two=["127.0.0.3 127.0.0.1"]))
    assert run.verdict == "succeeded", run.error
    assert run.result["address"] == "127.0.0.1"  # type: ignore[index]


async def test_ipv6_addresses_are_asked_by_name_and_by_themselves() -> None:
    async with web_server("::1") as server:
        server.paths["/"] = answer()
        by_name = Http(f"http://six.test:{server.port}/", allow=("::1",))
        run, _ = await carried_out(by_name, look_up=answering(six=["::1"]))
        assert run.verdict == "succeeded", run.error
        run, _ = await carried_out(Http(f"http://[::1]:{server.port}/", allow=("::1",)))
        assert run.verdict == "succeeded", run.error
        assert [heard.headers["host"] for heard in server.heard] == [f"six.test:{server.port}", f"[::1]:{server.port}"]


async def test_a_name_that_cannot_be_resolved_is_reported() -> None:
    run, _ = await carried_out(Http("http://no-such-host.invalid/"))
    assert run.error is not None
    assert run.error.startswith("GET http://no-such-host.invalid/: 'no-such-host.invalid' cannot be resolved: ")


async def test_proxies_of_the_environment_are_not_asked(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_server() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        run, _ = await carried_out(to(server))
        assert run.verdict == "succeeded"
        assert proxy.heard == []


# --- redirects


def redirect(status: int, where: str) -> bytes:
    return answer(status, {"Location": where})


async def test_redirects_are_followed_and_counted(server: WebServer) -> None:
    server.paths["/old"] = redirect(302, "/older")
    server.paths["/older"] = redirect(308, f"{server.url}/")
    run, _ = await carried_out(to(server, "/old", bearer=Secret("T")), made(T="geheim"))
    assert run.verdict == "succeeded", run.error
    assert (run.result["url"], run.result["redirects"]) == (f"{server.url}/", 2)  # type: ignore[index]
    # It is the same server.
    assert [heard.headers["authorization"] for heard in server.heard] == ["Bearer geheim"] * 3


async def test_redirects_are_bounded(server: WebServer) -> None:
    server.paths["/round"] = redirect(302, "/round")
    run, _ = await carried_out(to(server, "/round", redirects=3))
    assert run.error == f"GET {server.url}/round: more than 3 redirects; correct the url, or raise redirects"
    assert len(server.heard) == 4


async def test_a_redirect_that_is_not_followed_or_expected_is_an_answer(server: WebServer) -> None:
    server.paths["/old"] = redirect(302, "/")
    unfollowed, _ = await carried_out(to(server, "/old", redirects=0))
    assert unfollowed.error is not None
    assert "unexpected status 302 Said" in unfollowed.error
    expected, _ = await carried_out(to(server, "/old", expect=HttpExpect(status=302)))
    assert expected.verdict == "succeeded"
    posted, _ = await carried_out(to(server, "/old", json={}, redirects=0, expect=HttpExpect(status="3xx")))
    assert posted.verdict == "succeeded"
    assert [heard.target for heard in server.heard] == ["/old"] * 3


async def test_the_address_of_every_redirect_is_checked(server: WebServer) -> None:
    server.paths["/in"] = redirect(302, "http://169.254.169.254/latest/meta-data/")
    run, _ = await carried_out(to(server, "/in"))
    assert run.error is not None
    assert "connections to 169.254.169.254 (a cloud metadata service) are not allowed" in run.error
    server.paths["/name"] = redirect(302, f"http://inside.test:{server.port}/")
    look_up = answering(**{"127.0.0.1": ["127.0.0.1"], "inside": ["10.0.0.1"]})
    run, _ = await carried_out(to(server, "/name"), look_up=look_up)
    assert run.error is not None
    assert "connections to 'inside.test' (10.0.0.1, a private address) are not allowed" in run.error


async def test_another_server_gets_neither_credentials_nor_signatures(server: WebServer) -> None:
    async with web_server() as other:
        other.paths["/"] = answer()
        server.paths["/away"] = redirect(307, f"{other.url}/")
        spec = to(
            server,
            "/away",
            json={"n": 1},
            headers={"X-Key": Secret("K"), "X-Open": "yes", "Cookie": "a=b"},
            bearer=Secret("K"),
            sign=Secret("K"),
        )
        run, _ = await carried_out(spec, made(K="geheim"))
        assert run.verdict == "succeeded", run.error
        (heard,) = other.heard
        assert (heard.method, heard.body, heard.headers["x-open"]) == ("POST", b'{"n":1}', "yes")
        for name in ("x-key", "authorization", "cookie", "webhook-signature"):
            assert name in server.heard[0].headers
            assert name not in heard.headers


async def test_a_post_is_repeated_only_after_a_redirect_that_allows_it(server: WebServer) -> None:
    server.paths["/moved"] = redirect(301, "/")
    run, _ = await carried_out(to(server, "/moved", json={}))
    assert run.error == (
        f"POST {server.url}/moved: redirect to {server.url}/ not followed: POST is not repeated after status 301; "
        "write the new address as url"
    )
    server.paths["/see"] = redirect(303, "/")
    run, _ = await carried_out(to(server, "/see", json={}, sign=Secret("K")), made(K="geheim"))
    assert run.verdict == "succeeded", run.error
    last = server.heard[-1]
    assert (last.method, last.body) == ("GET", b"")
    assert "content-type" not in last.headers
    assert "webhook-signature" not in last.headers


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            "ftp://127.0.0.1/",
            "redirect to ftp://127.0.0.1/ not followed: only http and https URLs without a user are allowed",
        ),
        ("http://me:pw@127.0.0.1/", "only http and https URLs without a user are allowed"),
        ("http://[::1", "redirect not followed: its URL is not valid"),
        ("file:///etc/passwd", "only http and https URLs without a user are allowed"),
    ],
)
async def test_a_redirect_to_an_unsafe_url_is_not_followed(server: WebServer, where: str, words: str) -> None:
    server.paths["/odd"] = redirect(302, where)
    run, _ = await carried_out(to(server, "/odd"))
    assert run.error is not None
    assert words in run.error
    assert "pw@" not in run.error


# --- TLS


async def test_a_certificate_is_checked_against_the_name_though_the_address_is_asked(tls: Certificates) -> None:
    files = (str(tls.folder / "server.crt"), str(tls.folder / "server.key"))
    async with web_server(tls=files) as server:
        server.paths["/"] = answer(body=b"safe")
        safe = Http(f"https://localhost:{server.port}/", ca=str(tls.ca), allow=("localhost",))
        run, _ = await carried_out(safe, look_up=answering(localhost=["127.0.0.1"]))
        assert run.verdict == "succeeded", run.error
        assert run.result["body"] == "safe"  # type: ignore[index]
        assert server.heard[0].server_name == "localhost"
        assert server.heard[0].headers["host"] == f"localhost:{server.port}"
        other = Http(f"https://other.test:{server.port}/", ca=str(tls.ca), allow=LOOPBACK)
        run, _ = await carried_out(other, look_up=answering(other=["127.0.0.1"]))
        assert run.error is not None
        assert ": the certificate is not trusted: Hostname mismatch" in run.error
        assert len(server.heard) == 1


@pytest.mark.parametrize("trusted", ["stranger", "system"])
async def test_a_certificate_of_an_authority_that_is_not_trusted_is_refused(tls: Certificates, trusted: str) -> None:
    files = (str(tls.folder / "server.crt"), str(tls.folder / "server.key"))
    async with web_server(tls=files) as server:
        ca = str(tls.stranger) if trusted == "stranger" else None
        spec = Http(f"https://localhost:{server.port}/", ca=ca, allow=("localhost",))
        run, _ = await carried_out(spec, look_up=answering(localhost=["127.0.0.1"]))
        assert run.error is not None
        assert "the certificate is not trusted: unable to get local issuer certificate" in run.error
        assert server.heard == []


async def test_the_certificates_of_the_node_are_trusted_and_read_again_after_a_change(
    tls: Certificates, tmp_path: Path
) -> None:
    files = (str(tls.folder / "server.crt"), str(tls.folder / "server.key"))
    ca = tmp_path / "ca.pem"
    ca.write_bytes(tls.stranger.read_bytes())
    async with web_server(tls=files) as server:
        server.paths["/"] = answer()
        for expected in ("failed", "succeeded"):
            scheduler = made()
            scheduler.runtime.connections["http"] = HttpSettings(ca=str(ca), allow_private=True)
            spec = Http(f"https://localhost:{server.port}/")
            run, _ = await carried_out(spec, scheduler, look_up=answering(localhost=["127.0.0.1"]))
            assert run.verdict == expected, run.error
            ca.write_bytes(tls.ca.read_bytes())


async def test_a_redirect_from_https_to_http_is_not_followed(tls: Certificates, server: WebServer) -> None:
    files = (str(tls.folder / "server.crt"), str(tls.folder / "server.key"))
    async with web_server(tls=files) as safe:
        safe.paths["/"] = redirect(307, f"{server.url}/")
        spec = Http(f"https://localhost:{safe.port}/", ca=str(tls.ca), allow=LOOPBACK)
        run, _ = await carried_out(spec, look_up=answering(localhost=["127.0.0.1"]))
    assert run.error is not None
    assert f"redirect to {server.url}/ not followed: it leads from https to unencrypted http" in run.error
    assert server.heard == []


def test_a_file_of_certificates_that_is_none_is_refused_where_the_job_is_made(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for path in (tmp_path / "ca.pem", tmp_path / "missing.pem"):
        with pytest.raises(InvalidSetting, match=r"http: ca: the certificates in '.*' cannot be read: .*in PEM format"):
            made().job("hook", Http("https://example.org/", ca=str(path)))
