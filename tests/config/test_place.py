"""The scanner finds every key that tomllib finds, with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.config.files import KeyPath, key_lines


def paths_of(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key path that tomllib has read."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield (*path, name)
        yield from paths_of(inner, (*path, name))


def check(text: str) -> dict[KeyPath, int]:
    lines = key_lines(text)
    assert set(lines) == set(paths_of(tomllib.loads(text)))
    return lines


EXAMPLE = '''\
# a comment = with an equals sign
include = ["one.toml", # the first
  "two.toml",
]
[node]
"queues" = [ "a]", 'b}' , """c
"" # no comment """ ]
'odd key' . "esc\\u0061ped"."" = { x = 1, y.z = [ { w = 1979-05-27 07:32:00 } ] }
[[products]]
name = "Hammer" # with "quotes"
[products.size]
x = 1
[[products]]
[[products.parts]]
[ products . size ]
x = 2
[jobs.backup]
text = """
[jobs.not-one]
key = "value" \\
"""
shell = \'\'\'it''s\'\'\'
'''


def test_every_key_of_an_example_has_its_line() -> None:
    assert check(EXAMPLE) == {
        ("include",): 2,
        ("include", 0): 2,
        ("include", 1): 3,
        ("node",): 5,
        ("node", "queues"): 6,
        ("node", "queues", 0): 6,
        ("node", "queues", 1): 6,
        ("node", "queues", 2): 6,
        ("node", "odd key"): 8,
        ("node", "odd key", "escaped"): 8,
        ("node", "odd key", "escaped", ""): 8,
        ("node", "odd key", "escaped", "", "x"): 8,
        ("node", "odd key", "escaped", "", "y"): 8,
        ("node", "odd key", "escaped", "", "y", "z"): 8,
        ("node", "odd key", "escaped", "", "y", "z", 0): 8,
        ("node", "odd key", "escaped", "", "y", "z", 0, "w"): 8,
        ("products",): 9,
        ("products", 0): 9,
        ("products", 0, "name"): 10,
        ("products", 0, "size"): 11,
        ("products", 0, "size", "x"): 12,
        ("products", 1): 13,
        ("products", 1, "parts"): 14,
        ("products", 1, "parts", 0): 14,
        ("products", 1, "size"): 15,
        ("products", 1, "size", "x"): 16,
        ("jobs",): 17,
        ("jobs", "backup"): 17,
        ("jobs", "backup", "text"): 18,
        ("jobs", "backup", "shell"): 22,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing but a comment",
        "a = 1",
        "a = 1\r\nb = 2\r\n",
        'a = """"quoted"""""\nb = 1',
        "a = ''''quoted'''''\nb = 1",
        'a = """\\""""\nb = 1',
        'a = """"""\nb = ""\nc = \'\'',
        "a = []\nb = {}\nc = [[], [[]], {}]",
        "a = [1, 2, # three\n 3,\n]\nb = 2",
        "a.b.c = 1\na.b.d = 2\na.e = 3",
        "[a.b]\nx = 1\n[a]\ny = 2",
        "1.2 = 3\n[1.4]\n",
        '"#" = "#" # "\n\'[\' = "]"',
        "a = 2020-01-01T00:00:00Z\nb = 07:32:00\nc = -inf\nd = 0x_f".replace("0x_f", "0xF_F"),
        "\ta\t=\t[\t{\tb\t=\t1\t}\t]\t# end",
        "[ \"a.b\" . 'c' ]\n",
        "[[a]]\n[a.b.c]\n[[a.b.d]]\n[[a.b.d]]\n[[a]]\n[a.b]\n",
    ],
)
def test_unusual_texts_are_scanned_to_their_end(text: str) -> None:
    check(text)


# --- generated texts with known lines


_BARE = st.from_regex(r"[A-Za-z0-9_-]{1,5}", fullmatch=True)
_NAMES = _BARE | st.text(max_size=4)
_BLANKS = st.sampled_from(["", " ", "\t", "  "])
_COMMENTS = st.sampled_from(["", " # a = 1", "#[x]", ' # "'])


def quoted(text: str) -> str:
    escaped = re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\u{ord(found[0]):04x}", text)
    return f'"{escaped}"'


@st.composite
def keys(draw: st.DrawFn, name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) and draw(st.booleans()):
        return name
    if draw(st.booleans()) and name.isprintable() and "'" not in name:
        return f"'{name}'"
    return quoted(name)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def long_string(text: str) -> str:
    return f'"""{quoted(text)[1:-1]}\n x = 1 # \\\n [a]"""'


_SCALARS = st.one_of(
    st.integers(-99, 99).map(str),
    st.booleans().map(lambda value: str(value).lower()),
    _TEXT.map(quoted),
    _TEXT.map(long_string),
    st.sampled_from(["'a # b'", "'''\n[a]\nb = 1 ''''", "1979-05-27 07:32:00", "1e6", "[]", "{ }", '""""a"""']),
)


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar", "scalar", "array", "table"])) if depth else "scalar"
    if kind == "scalar":
        return draw(_SCALARS)
    if kind == "array":
        gap = st.sampled_from(["", " ", "\n", " # ]\n"])
        inside = [f"{draw(gap)}{draw(values(depth - 1))}{draw(gap)}" for _ in range(draw(st.integers(0, 3)))]
        return f"[{','.join(inside)}{draw(gap)}]"
    names = draw(st.lists(_TEXT, max_size=3, unique=True))
    pairs = [f"{draw(_BLANKS)}{draw(keys(name))} = {draw(values(depth - 1))}" for name in names]
    return f"{{{','.join(pairs)} }}"


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[KeyPath, int]]:
    """A text, and the line of each key."""
    text, expected = "", dict[KeyPath, int]()

    def pairs(table: KeyPath) -> None:
        nonlocal text
        for name in draw(st.lists(_TEXT, max_size=3, unique=True)):
            if (*table, name) not in expected:
                expected[*table, name] = text.count("\n") + 1
                blank = draw(_BLANKS)
                text += f"{blank}{draw(keys(name))}{blank}={blank}{draw(values())}{draw(_COMMENTS)}\n"

    pairs(())
    for name in draw(st.lists(_TEXT, max_size=3, unique=True)):
        if (name,) in expected:
            continue
        head = draw(keys(name))
        if draw(st.booleans()):
            for number in range(draw(st.integers(1, 3))):
                text += draw(st.sampled_from(["", "\n", "# [x]\n"]))
                expected[name, number] = text.count("\n") + 1
                text += f"[[{head}]]{draw(_COMMENTS)}\n"
                pairs((name, number))
        else:
            inner = draw(_TEXT)
            expected[name, inner] = text.count("\n") + 1
            text += f"[ {head} .{draw(keys(inner))}]\n"
            pairs((name, inner))
    return text, expected


@settings(max_examples=150, deadline=None)
@given(documents())
def test_the_scanner_finds_the_line_of_each_key_that_tomllib_reads(made: tuple[str, dict[KeyPath, int]]) -> None:
    text, expected = made
    lines = check(text)
    assert {path: lines[path] for path in expected} == expected


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from(list("ab.=[]{}\"'\\#, \n1")), max_size=30))
def test_the_scanner_accepts_the_same_texts_as_tomllib(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    check(text)
