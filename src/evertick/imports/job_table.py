"""The table in which APScheduler 3 keeps its jobs, read and left as it is.

SQLite is read directly; for other databases SQLAlchemy is asked, which whoever has such a table has installed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evertick.errors import InvalidInput, NotFound, Refused
from evertick.imports.apscheduler import StoredJob
from evertick.imports.pickled import BYTES_MAX
from evertick.text.redact import masked

__all__ = ["read_table"]

_JOBS_MAX = 10_000
_STATES_MAX_BYTES = 64 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)
_SQLITE = re.compile(r"sqlite(\+pysqlite)?:///")


def read_table(url: str, table: str) -> list[StoredJob]:
    if not _NAME.fullmatch(table):
        raise InvalidInput(f"table: {table!r:.100} is no name of a table; write it like 'apscheduler_jobs'")
    if "://" not in url and Path(url).is_file():
        raise InvalidInput(f"{url!r:.200} is a file; as a URL it is sqlite:///{url:.200}")
    return _from_sqlite(url, table) if _SQLITE.match(url) else _from_others(url, table)


def _kept(rows: Iterable[Sequence[Any]], table: str) -> list[StoredJob]:
    """As much of each as is read. SQLite keeps in a column what it is given, so a state may be no bytes at all."""
    kept: list[StoredJob] = []
    size = 0
    for id_, state in rows:
        found = bytes(state[: BYTES_MAX + 1]) if isinstance(state, bytes | bytearray | memoryview) else b""
        size += len(found)
        if len(kept) == _JOBS_MAX or size > _STATES_MAX_BYTES:
            much = f"{_STATES_MAX_BYTES} bytes" if size > _STATES_MAX_BYTES else f"{_JOBS_MAX} jobs"
            raise InvalidInput(f"{table!r} holds more than {much}; import them in parts")
        kept.append(StoredJob(id=str(id_), state=found))
    return kept


def _query(name: str) -> str:
    return f"SELECT id, job_state FROM {name} ORDER BY id LIMIT {_JOBS_MAX + 1}"  # noqa: S608 - a checked name


def _from_sqlite(url: str, table: str) -> list[StoredJob]:
    path = Path(_SQLITE.sub("", url).partition("?")[0])
    if not path.is_file():
        raise NotFound(f"there is no file {str(path)!r}")
    name = ".".join(f'"{part}"' for part in table.split("."))
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
    # An id that is no text is reported; the other rows are read.
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        return _kept(connection.execute(_query(name)), table)
    except sqlite3.Error as error:
        raise Refused(
            f"the jobs cannot be read from {table!r} of {str(path)!r}: {error}; name the table with --table"
        ) from None
    finally:
        connection.close()


def _from_others(url: str, table: str) -> list[StoredJob]:
    try:
        import sqlalchemy
    except ModuleNotFoundError:
        raise Refused(
            f"to read {masked(url)!r} SQLAlchemy is needed, as APScheduler does; pip install sqlalchemy, and what it "
            "needs for this database"
        ) from None
    try:
        # Without a pool nothing stays open.
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        quote_name = engine.dialect.identifier_preparer.quote
        with engine.connect() as connection:
            query = sqlalchemy.text(_query(".".join(map(quote_name, table.split(".")))))
            return _kept(connection.execution_options(stream_results=True).execute(query), table)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        said = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        raise Refused(f"the jobs cannot be read from {table!r} of {masked(url)!r}: {said}") from None
