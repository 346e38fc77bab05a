"""The statements of the PostgreSQL store, by name. They live in `queries.sql`, where each says what it is for.

There the schema is called `evertick`; what it is really called is put in here, quoted. Nothing relies on the search
path of a connection, which behind a pooler is anybody's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from evertick.store.statements import load_statements

__all__ = ["in_schema", "quoted", "statements_for"]

_SCHEMA = re.compile(r"\bevertick\.")
# Parts that several statements share: {live} is put in when they are read.
_PART = re.compile(r"\{(\w+)\}")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def in_schema(text: str, schema: str) -> str:
    name = f"{quoted(schema)}."
    return _SCHEMA.sub(lambda _: name, text)


@lru_cache(maxsize=16)
def statements_for(schema: str) -> dict[str, str]:
    blocks = load_statements(Path(__file__).with_name("queries.sql"))
    parts = {name.removeprefix("part."): text for name, text in blocks.items() if name.startswith("part.")}

    def with_parts(text: str) -> str:
        return _PART.sub(lambda part: with_parts(parts[part[1]]), text)

    whole = {name: with_parts(text) for name, text in blocks.items() if not name.startswith("part.")}
    return {name: in_schema(text, schema) for name, text in whole.items()}
