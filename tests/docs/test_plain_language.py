"""Pages, comments, messages and names are written in words that engineers search for.

The list has words and phrases of an older, private way of writing. Add a phrase when you find one more.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT

# Each with what to write instead.
PHRASES = {
    r"whoever|whomever|whichever|whatever": "the noun",
    r"nobody|somebody|anybody|everybody": "no node, a user, any process, all users",
    r"(?:is|are|was|were|be|been|being) told": "receives, is reported, the log names",
    r"told back": "the command prints",
    r"what (?:comes|came|becomes|became|is to come|was to come) of": "the outcome of",
    r"falls? over|fell over|fallen over": "fails, crashes",
    r"(?:our|its|their|no) business": "unrelated",
    r"has it that": "says",
    r"so many of": "up to N",
    r"in vain": "failed",
    r"hardly meant": "likely a mistake",
    r"(?:makes?|made) away with": "removes",
    r"given back|taken up": "released, returned, loaded",
    r"holds? up|held up": "blocks, delays",
    r"knock(?:s|ing|ed)?": "retry",
    r"hears? of|heard of|hearing of": "receives",
    r"anew": "again",
    r"as it were": "",
    r"look(?:s|ed)? after": "maintain",
    r"(?:is|are) asked whether": "the command asks",
    r"to be had": "available",
}
BANNED = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
# The account of Unix.
ACCOUNT = re.compile(r"[\"'`:=]nobody\b|\bnobody[\"'`:]|(?:user|account|uid|as) nobody\b", re.IGNORECASE)
# A sentence that begins with a pronoun in place of a noun. Questions may.
BEGINNING = re.compile(r"(?:^|[.!:;]\s+|^\s*[-*|#]+\s+|\"\"\"|# )(?:What|Who|Whoever|Whose|Whom)\b(?![^\n]{0,160}\?)")
FOLDERS = ("src", "docs", "benchmarks")
KINDS = {".py", ".md", ".sql", ".toml", ".service", ".init"}


def files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in KINDS]
    return [*ROOT.glob("*.md"), *inside]


def odd_phrases(text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = ACCOUNT.sub("", line)
        found += [f"{number}: {each[0].strip()}" for pattern in (BANNED, BEGINNING) for each in pattern.finditer(plain)]
    return found


def test_pages_and_sources_are_in_plain_language() -> None:
    found = {str(path.relative_to(ROOT)): odd_phrases(path.read_text(encoding="utf-8")) for path in files()}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_there_are_files_to_check() -> None:
    assert len(files()) > 400


@pytest.mark.parametrize(
    "line",
    ["# Whoever asks later gets it.", "nobody is at work", "the node is told of it", "# What it has said stays."],
)
def test_the_old_words_are_found(line: str) -> None:
    assert odd_phrases(line) != []


@pytest.mark.parametrize(
    "line", ["user = 'nobody'", "setuid to user nobody", "What does a fence do?", "no node is alive"]
)
def test_plain_sentences_are_not(line: str) -> None:
    assert odd_phrases(line) == []
