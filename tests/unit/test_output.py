"""Output of a command: its lines, head and tail, without secrets."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertick.driver.shell import output
from evertick.driver.shell.output import HEAD_BYTES, HEAD_LINES, TAIL_BYTES, TAIL_LINES, CapturedOutput, LogLines, Mask
from evertick.job.context import LINE_MAX_CHARS, LINES_MAX, LOG_MAX_CHARS


def lines_of(*chunks: bytes) -> list[str]:
    received: list[str] = []
    lines = LogLines(lambda _, text: received.append(text))
    for chunk in chunks:
        lines.take("stdout", chunk)
    lines.flush()
    return received


class Log:
    """The written lines, with their times."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self.lines: list[tuple[int, str, str]] = []
        self.now = 0
        self.captured = CapturedOutput(
            lambda at, level, text: self.lines.append((at, level, text)), self._tick, secrets
        )

    def _tick(self) -> int:
        self.now += 1
        return self.now

    def texts(self, level: str | None = None) -> list[str]:
        return [text for _, each, text in self.lines if level in (None, each)]


# --- lines


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b""], []),
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"ne\nt", b"wo"], ["one", "two"]),
        ([b"a\r\n\r\nb"], ["a", "", "b"]),
        ([b"\xff\xfe\n\x00\n"], ["\ufffd\ufffd", "\x00"]),
        ([b"gr", "ü".encode()[:1], "ü".encode()[1:], b"n\n"], ["grün"]),
    ],
)
def test_bytes_become_lines_for_every_split_of_the_stream(chunks: list[bytes], lines: list[str]) -> None:
    assert lines_of(*chunks) == lines


def test_an_endless_line_is_cut_between_characters() -> None:
    text = "ü" * 20_000  # two bytes each
    pieces = lines_of(text.encode()[:30_001], text.encode()[30_001:])
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= LINE_MAX_CHARS
    euros = "x" + "€" * 9_000  # three bytes each, in one chunk with its end
    assert "".join(lines_of(euros.encode() + b"\n")) == euros
    # Bytes that are no text are cut anywhere.
    assert sum(map(len, lines_of(b"\x80" * 20_000))) == 20_000


# --- secrets


def masked(secrets: Sequence[str], *chunks: bytes) -> bytes:
    mask = Mask(secrets)
    return b"".join([*(mask.take(chunk) for chunk in chunks), mask.flush()])


def test_a_secret_is_hidden_at_every_split_of_the_stream() -> None:
    whole = b"user=ada password=open sesame; open sesam, open sesame"
    for place in range(len(whole)):
        assert masked(["open sesame"], whole[:place], whole[place:]) == b"user=ada password=***; open sesam, ***"
    assert masked(["open sesame"], *(bytes([each]) for each in whole)) == b"user=ada password=***; open sesam, ***"


def test_only_a_possible_start_of_a_secret_is_held_back() -> None:
    mask = Mask(["open sesame"])
    assert mask.take(b"see") == b"see"
    assert mask.take(b" the ope") == b" the "
    assert mask.take(b"ra\n") == b"opera\n"
    assert mask.flush() == b""


def test_of_two_overlapping_secrets_the_longer_is_hidden() -> None:
    assert masked(["abc", "abcdef"], b"abc", b"def abcx abc") == b"*** ***x ***"
    assert masked(["aba"], b"ababa") == b"***ba"


def test_the_lines_of_a_pem_key_are_hidden_but_not_its_markers() -> None:
    key = "-----BEGIN KEY-----\nMIIBVAIBADAN\nshort\nBgkqhkiG9w0B\n-----END KEY-----\n"
    assert masked([key], key.encode()) == b"***"
    assert masked([key], b"1 MIIBVAIBADAN\n2 short\n") == b"1 ***\n2 short\n"
    assert masked([key], b"-----BEGIN KEY-----\nother\n") == b"-----BEGIN KEY-----\nother\n"


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.text("abc", max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_output_is_masked_the_same_for_every_split_of_the_stream(
    secrets: list[str], text: str, places: list[int]
) -> None:
    data = text.encode()
    cuts = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(cuts)]
    shown = masked(secrets, *chunks)
    assert shown == masked(secrets, data)
    # The text between the stars has no secret.
    assert not any(secret.encode() in part for part in shown.split(b"***") for secret in secrets)
    parts = Mask(secrets).masked_parts(b"", chunks, is_cut=False)
    assert b"".join(parts) == shown
    assert len(parts) == len(chunks)
    # No part of a secret that begins earlier is shown.
    first, *others = chunks
    behind = b"".join(Mask(secrets).masked_parts(first, others, is_cut=False))
    assert not any(secret.encode() in part for part in behind.split(b"***") for secret in secrets)
    assert shown.endswith(behind.removeprefix(b"***"))


def test_many_and_long_secrets_are_hidden_too() -> None:
    lines = [f"{number:02d}abcdefgh{number * 7919:08d}" for number in range(200)]
    key = "\n".join(lines)
    text = " ".join(reversed(lines)).encode()
    assert masked([key], text) == b" ".join([b"***"] * len(lines))
    assert masked([key], key.encode()[:-1]) == b"\n".join([b"***"] * (len(lines) - 1) + [lines[-1][:-1].encode()])
    long = "x" * 5_000
    assert masked([long, "xy"], b"y" + long.encode() + b"y", b"xxy") == b"y***yx***"
    assert masked([long], *(long.encode()[at : at + 100] for at in range(0, 4_900, 100))) == long.encode()[:4_900]


# --- head and tail


def test_short_output_is_kept_unchanged() -> None:
    log = Log()
    log.captured.take("stdout", b"one\ntw")
    assert log.texts() == ["one"]
    log.captured.take("stderr", b"oops\n")
    log.captured.take("stdout", b"o\n")
    log.captured.close()
    assert [(level, text) for _, level, text in log.lines] == [("stdout", "one"), ("stderr", "oops"), ("stdout", "two")]
    assert log.captured.last_line == "oops"


def test_long_output_keeps_head_and_tail_with_a_count_of_the_cut() -> None:
    log = Log()
    written = [b"line %07d\n" % number for number in range(100_000)]
    for number in range(0, len(written), 1_000):
        log.captured.take("stdout", b"".join(written[number : number + 1_000]))
    assert log.texts("info") == ["… output limit reached; the last lines follow when the command ends …"]
    log.captured.close()
    kept, whole = log.texts("stdout"), b"".join(written)
    assert kept[:HEAD_LINES] == [f"line {number:07d}" for number in range(HEAD_LINES)]
    assert kept[-1] == "line 0099999"
    assert len(kept) == HEAD_LINES + TAIL_LINES
    gone = len(written) - len(kept)
    assert log.texts("info")[1] == f"… {gone * 13} bytes, {gone} lines of output omitted …"
    assert sum(len(text) + 1 for text in kept) + gone * 13 == len(whole)
    # Between head and tail, with their own times.
    assert [level for _, level, _ in log.lines].index("info") == HEAD_LINES
    assert len(log.lines) < LINES_MAX
    assert sum(len(text) for text in log.texts()) < LOG_MAX_CHARS


def test_output_that_fits_in_head_and_tail_has_no_cut() -> None:
    log = Log()
    line = b"x" * 99 + b"\n"
    count = (HEAD_BYTES + TAIL_BYTES) // 100 - 10
    for _ in range(count):
        log.captured.take("stdout", line)
    log.captured.close()
    assert log.texts() == ["x" * 99] * count


def test_endless_output_without_lines_is_bounded_too() -> None:
    log = Log()
    for _ in range(100):
        log.captured.take("stdout", b"\xff" * 65_536)
    log.captured.close()
    assert sum(map(len, log.texts("stdout"))) == HEAD_BYTES + TAIL_BYTES
    assert log.texts("info")[-1] == f"… {100 * 65_536 - HEAD_BYTES - TAIL_BYTES} bytes, 0 lines of output omitted …"
    assert sum(len(text) for text in log.texts()) < LOG_MAX_CHARS


def test_endless_empty_lines_on_both_streams_are_bounded_too() -> None:
    log = Log()
    for _ in range(50_000):
        log.captured.take("stdout", b"\n")
        log.captured.take("stderr", b"\n")
    log.captured.close()
    assert len(log.lines) <= HEAD_LINES + TAIL_LINES + 2
    assert log.captured.last_line == ""
    kept = len(log.texts("stdout")) + len(log.texts("stderr"))
    assert log.texts("info")[-1] == f"… {100_000 - kept} bytes, {100_000 - kept} lines of output omitted …"


def test_the_memory_does_not_grow_with_the_output() -> None:
    log = Log(["open sesame"])
    chunk = b"some words of no interest\n" * 2_500
    tracemalloc.start()
    try:
        for _ in range(20):
            log.captured.take("stdout", chunk)
        after_some = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            log.captured.take("stdout", chunk)
        assert tracemalloc.get_traced_memory()[0] < after_some + 100_000
    finally:
        tracemalloc.stop()


def test_a_secret_at_the_cut_is_hidden_too() -> None:
    secret = "0123456789abcdef"
    for extra in range(20):
        log = Log([secret])
        log.captured.take("stdout", b"x" * (HEAD_BYTES - extra) + secret.encode() + b"y" * 300_000)
        log.captured.take("stdout", secret.encode() + b"z" * (TAIL_BYTES - extra))
        log.captured.close()
        shown = "".join(log.texts("stdout"))
        assert not any(part in shown for part in (secret[:4], secret[-4:]))


@given(
    st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text("abc", max_size=30)), max_size=12),
    st.booleans(),
)
def test_no_secret_is_shown_in_head_or_tail_for_any_split(
    secrets: list[str], chunks: list[tuple[str, str]], is_cut: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HEAD_BYTES": 20, "TAIL_BYTES": 20, "_SLICE_BYTES": 7, "_SEARCHED_MAX_BYTES": 50}.items():
            patch.setattr(output, name, value)
        log = Log(secrets)
        for stream, text in chunks:
            log.captured.take(stream, text.encode())
        log.captured.close(is_cut=is_cut)
    for stream in ("stdout", "stderr"):
        for shown in log.texts(stream):
            assert not any(secret in part for part in shown.split("*") for secret in secrets)
        if not is_cut and not log.texts("info"):
            whole = "".join(text for each, text in chunks if each == stream)
            assert "".join(log.texts(stream)).replace("*", "") == masked(secrets, whole.encode()).decode().replace(
                "*", ""
            )


def test_secrets_are_searched_only_in_kept_output(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_through = 0
    take = Mask.take

    def counted(self: Mask, chunk: bytes) -> bytes:
        nonlocal looked_through
        looked_through += len(chunk)
        return take(self, chunk)

    monkeypatch.setattr(Mask, "take", counted)
    for secret in ("open sesame", "y" * 60_000):
        looked_through = 0
        log = Log([secret])
        for _ in range(1_000):
            log.captured.take("stdout", (secret + "\n").encode())
        log.captured.close()
        assert looked_through < 4 * HEAD_BYTES + 2 * TAIL_BYTES + 3 * 60_000
        assert not any(secret[:9] in text for text in log.texts())


def test_the_error_text_is_the_last_output_of_stderr() -> None:
    log = Log()
    log.captured.take("stderr", b"disk full\n")
    log.captured.take("stdout", b"going on\n" * 100_000 + b"done\n")
    log.captured.close()
    assert log.captured.last_line == "disk full"
    log = Log()
    log.captured.take("stdout", b"going on\n" * 100_000 + b"x" * 1_000 + b"\n\n")
    log.captured.close()
    assert log.captured.last_line == "x" * 300
