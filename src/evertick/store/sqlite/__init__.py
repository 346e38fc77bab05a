"""The SQLite store: one file on a local disk, any number of processes of one machine, no server."""

from evertick.store.sqlite.schema import SCHEMA_VERSION
from evertick.store.sqlite.store import SqliteStore

__all__ = ["SCHEMA_VERSION", "SqliteStore"]
