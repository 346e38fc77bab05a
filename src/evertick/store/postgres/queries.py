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


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def in_schema(text: str, schema: str) -> str:
    name = f"{quoted(schema)}."
    return _SCHEMA.sub(lambda _: name, text)


@lru_cache(maxsize=16)
def statements_for(schema: str) -> dict[str, str]:
    statements = load_statements(Path(__file__).with_name("queries.sql"))
    return {name: in_schema(text, schema) for name, text in statements.items()}
