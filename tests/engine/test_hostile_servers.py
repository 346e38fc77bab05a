"""HTTP jobs against servers that mean ill: none of them keeps the event loop, fills the memory or outlives its time.

How long the event loop was kept is measured by the processor time of its thread, so a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from evertick import Http, HttpExpect, Run, Scheduler
from servers.http import Heard, WebServer, answer, web_server

SECONDS_MAX = 30.0
# The longest that the loop may be kept by one answer.
TURN_MAX = 0.1
BIG = "16MiB"
Writing = Callable[[Heard, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as serving:
        yield serving


class Turns:
    """How long the event loop was kept at most, in seconds of its thread."""

    longest = 0.0

    async def watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.thread_time() - before)


async def ended(server: WebServer, **fields: object) -> tuple[Run, Turns]:
    """The run of a job that asks the server, once it has a verdict or waits for another try."""
    scheduler = Scheduler("sqlite://", drivers=["http"], stop_timeout="1s")
    spec = Http(f"{server.url}/", **{"allow": ("127.0.0.0/8",), **fields})  # type: ignore[arg-type]
    job, turns = scheduler.job("hook", spec), Turns()
    async with scheduler:
        watching = asyncio.create_task(turns.watch())
        run = await job.enqueue()
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await scheduler.get_run(run.id)).verdict is None and not found.attempts:
                await asyncio.sleep(0.01)
        watching.cancel()
    return found, turns


def endless(head: bytes, piece: bytes, *, pause: float = 0.0) -> Writing:
    async def write(_: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)

    return write


# --- text


@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "unicode_escape", "utf-7", "rot13", "hex", "undefined", "x" * 900]
)
async def test_a_charset_that_no_web_page_has_is_not_used(server: WebServer, charset: str) -> None:
    body = ("grün " * 100_000).encode() + b"a" * 200_000
    server.paths["/"] = answer(200, {"Content-Type": f"text/plain; charset={charset}"}, body)
    run, turns = await ended(server, read_limit=BIG, timeout="5s")
    assert run.verdict == "succeeded", run.error
    assert run.result["body"].startswith("grün grün ")
    assert turns.longest < TURN_MAX


async def test_a_codec_whose_time_grows_with_the_square_of_the_text_is_not_used(server: WebServer) -> None:
    server.paths["/"] = answer(200, {"Content-Type": "text/plain; charset=punycode"}, b"b" * 700_000)
    run, turns = await ended(server, read_limit=BIG)
    assert run.verdict == "succeeded", run.error
    assert run.result["body"].startswith("bbbb")
    assert turns.longest < TURN_MAX


@pytest.mark.parametrize(
    ("charset", "body"),
    [
        ("UTF-8", "grün".encode()),
        ('"iso-8859-1"', "grün".encode("latin-1")),
        ("latin1", "grün".encode("latin-1")),
        ("windows-1252; x=y", "grün".encode("cp1252")),
        ("utf-16", "grün".encode("utf-16")),
        ("utf-16", "\ufeffgrün".encode("utf-16-be")),
        ("utf-16", "grün".encode("utf-16-le")),
        ("Shift_JIS", "日本".encode("shift_jis")),
        ("gb18030", "日本".encode("gb18030")),
        ("koi8-r", "привет".encode("koi8-r")),
        ("x-unknown", "grün".encode()),
    ],
)
async def test_the_charsets_of_web_pages_are_read(server: WebServer, charset: str, body: bytes) -> None:
    server.paths["/"] = answer(200, {"Content-Type": f"text/plain; charset={charset}"}, body)
    run, _ = await ended(server)
    assert run.result["body"] in ("grün", "日本", "привет")


@pytest.mark.parametrize("charset", ["utf-8", "iso-8859-7", "utf-16", "big5"])
async def test_a_large_body_that_is_no_text_does_not_keep_the_loop(server: WebServer, charset: str) -> None:
    body = b"\xff\xd8\x00\xff" * 2_000_000
    server.paths["/"] = answer(200, {"Content-Type": f"text/plain; charset={charset}"}, body)
    run, turns = await ended(server, read_limit=BIG)
    assert run.verdict == "succeeded", run.error
    assert turns.longest < TURN_MAX


# --- headers


async def test_a_flood_of_headers_is_refused(server: WebServer) -> None:
    server.paths["/"] = b"HTTP/1.1 200 Said\r\n" + b"a: b\r\n" * 12_000 + b"Content-Length: 0\r\n\r\n"
    run, turns = await ended(server)
    assert run.verdict == "failed"
    assert "more than 500 lines of headers" in (run.error or "")
    assert turns.longest < TURN_MAX


async def test_a_header_without_end_is_refused(server: WebServer) -> None:
    server.paths["/"] = endless(b"HTTP/1.1 200 Said\r\na: ", b"b" * 65_536)
    run, turns = await ended(server)
    assert run.verdict == "failed"
    assert "more than 64 KiB of headers" in (run.error or "")
    assert turns.longest < TURN_MAX


async def test_a_flood_of_interim_answers_is_refused(server: WebServer) -> None:
    server.paths["/"] = endless(b"", b"HTTP/1.1 103 Early\r\n\r\n" * 3_000)
    run, turns = await ended(server)
    assert run.verdict == "failed"
    assert " of headers" in (run.error or "")
    assert turns.longest < TURN_MAX


async def test_some_interim_answers_and_many_lines_of_a_body_are_no_flood(server: WebServer) -> None:
    server.paths["/"] = b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n" * 5 + answer(body=b"\n" * 60_000)
    run, _ = await ended(server)
    assert run.verdict == "succeeded", run.error
    assert run.result["is_cut"]


@pytest.mark.parametrize("length", ["9" * 19, "9" * 5_000, "-1", "1, 2", "٣"])
async def test_a_length_that_is_a_lie_fails_the_run(server: WebServer, length: str) -> None:
    server.paths["/"] = f"HTTP/1.1 200 Said\r\nContent-Length: {length}\r\n\r\nshort".encode()
    run, _ = await ended(server)
    assert run.verdict == "failed"
    assert "Traceback" not in (run.error or "")


async def test_cookies_are_neither_kept_nor_sent(server: WebServer) -> None:
    server.paths["/"] = answer(302, {"Location": "/next", "Set-Cookie": "a=" + "b" * 4_000})
    server.paths["/next"] = answer(200, {"Set-Cookie": "c=d; Domain=."})
    run, _ = await ended(server)
    assert run.verdict == "succeeded", run.error
    assert all("cookie" not in heard.headers for heard in server.heard)
    assert "cookie" not in repr(run.result).lower()


@pytest.mark.parametrize(
    "location",
    ["http://" + "ü" * 7_900 + "/", "/" + "ü" * 100_000, "http://" + "a." * 30_000 + "/", "/" + "../" * 30_000],
)
async def test_a_redirect_to_an_endless_address_is_not_followed(server: WebServer, location: str) -> None:
    server.paths["/"] = f"HTTP/1.1 302 Said\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    run, turns = await ended(server)
    assert run.verdict == "failed"
    assert "Traceback" not in (run.error or "")
    assert turns.longest < TURN_MAX


@pytest.mark.parametrize(
    "value",
    [
        *("9" * 60_000, "1" + "0" * 400, "(" * 60_000, "Wed, " * 10_000, "-5", "٣"),
        "Wed, 21 Oct 99999999999 07:28:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "Wed, 21 Oct 2015 07:28:00 +99999999",
    ],
)
async def test_a_wait_that_makes_no_sense_neither_lasts_nor_breaks(server: WebServer, value: str) -> None:
    server.paths["/"] = f"HTTP/1.1 503 Busy\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode()
    run, turns = await ended(server)
    assert "Traceback" not in (run.error or "")
    assert (run.verdict, run.attempts) in (("failed", 1), (None, 1))
    assert (run.due_at - run.created_at).total_seconds() <= 3_601
    assert turns.longest < TURN_MAX


# --- bodies


async def test_a_body_in_pieces_of_a_byte_does_not_keep_the_loop(server: WebServer) -> None:
    server.paths["/"] = endless(b"HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 10_000)
    run, turns = await ended(server)
    assert run.verdict == "succeeded", run.error
    assert run.result["is_cut"]
    assert turns.longest < TURN_MAX


async def test_more_around_a_body_than_in_it_is_refused(server: WebServer) -> None:
    piece = b"1;" + b"x" * 4_000 + b"\r\na\r\n"
    server.paths["/"] = endless(b"HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\n\r\n", piece * 10)
    run, turns = await ended(server)
    assert run.verdict == "failed"
    assert "more chunk headers or padding than body" in (run.error or "")
    assert turns.longest < TURN_MAX


@pytest.mark.parametrize("limit", ["64KiB", BIG])
async def test_a_small_body_that_unpacks_to_gigabytes_is_cut(server: WebServer, limit: str) -> None:
    zeros = bytes(1_000_000)
    first, next_ones = zlib.compressobj(9, wbits=31), zlib.compressobj(9, wbits=-15)
    # After a full flush the same zeros give the same bytes.
    head = first.compress(zeros) + first.flush(zlib.Z_FULL_FLUSH)
    piece = next_ones.compress(zeros) + next_ones.flush(zlib.Z_FULL_FLUSH)
    server.paths["/"] = answer(200, {"Content-Encoding": "gzip"}, head + piece * 1_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run, turns = await ended(server, read_limit=limit)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown
    assert run.verdict == "succeeded", run.error
    assert run.result["is_cut"]
    assert grown < 200_000
    assert turns.longest < TURN_MAX


@pytest.mark.parametrize(
    ("first", "piece"),
    [(gzip.compress(b"hello"), b"\x00" * 65_536), (b"\x78\x9c", b"\x00\x00\x00\xff\xff" * 10_000)],
    ids=["behind its end", "blocks of nothing"],
)
async def test_a_packed_body_that_goes_on_without_end_ends(server: WebServer, first: bytes, piece: bytes) -> None:
    kind = "gzip" if first.startswith(b"\x1f") else "deflate"
    head = f"HTTP/1.1 200 Said\r\nContent-Encoding: {kind}\r\n\r\n".encode()
    server.paths["/"] = endless(head + first, piece)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run, turns = await ended(server, timeout="10s")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown
    if kind == "gzip":
        assert run.verdict == "succeeded", run.error
        assert run.result["body"] == "hello"
    else:
        assert "more chunk headers or padding than body" in (run.error or "")
    assert grown < 50_000
    assert turns.longest < TURN_MAX


@pytest.mark.parametrize("pause", [0.02, 0.0])
async def test_an_answer_that_drips_ends_with_the_time_of_its_job(server: WebServer, pause: float) -> None:
    server.paths["/"] = endless(b"HTTP/1.1 200 Said\r\nContent-Length: 100000000\r\n\r\n", b"a", pause=pause or 0.02)
    began = time.monotonic()
    run, turns = await ended(server, timeout="1s")
    assert "timed out after 1 s" in (run.error or "")
    assert time.monotonic() - began < 10
    assert turns.longest < TURN_MAX


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 8_000_000,
        b"[" + b"[]," * 2_500_000 + b"0]",
        b'{"a":[' + b'{"b":0},' * 1_000_000 + b"0]}",
        b"1" * 8_000_000,
    ],
    ids=["deep", "wide", "objects", "a number"],
)
async def test_json_that_is_deep_or_wide_does_not_keep_the_loop(server: WebServer, body: bytes) -> None:
    server.paths["/"] = answer(body=body)
    run, turns = await ended(server, read_limit=BIG, expect=HttpExpect(json={"/state": "ok"}))
    assert run.verdict == "failed"
    assert "Traceback" not in (run.error or "")
    assert turns.longest < TURN_MAX


async def test_a_value_in_large_json_is_found(server: WebServer) -> None:
    body = b'{"list":[' + b'{"b":0},' * 200_000 + b'{"state":"ok","n":1.0}]}'
    server.paths["/"] = answer(body=body)
    run, turns = await ended(
        server, read_limit=BIG, expect=HttpExpect(json={"/list/200000/state": "ok", "/list/200000/n": 1})
    )
    assert run.verdict == "succeeded", run.error
    run, _ = await ended(server, read_limit=BIG, expect=HttpExpect(json={"/list/200000/state": "off"}))
    assert 'the body has "ok" at \'/list/200000/state\', not "off"' in (run.error or "")
    run, _ = await ended(server, read_limit=BIG, expect=HttpExpect(json={"/list/200001": 1}))
    assert "the body has no value at '/list/200001'" in (run.error or "")
    assert turns.longest < TURN_MAX


async def test_an_expression_over_a_large_body_does_not_keep_the_loop(server: WebServer) -> None:
    server.paths["/"] = answer(body=b"ab" * 4_000_000 + b"!")
    run, turns = await ended(server, read_limit=BIG, expect=HttpExpect(matches="(ab)+!$", contains="b!"))
    assert run.verdict == "succeeded", run.error
    assert turns.longest < TURN_MAX
