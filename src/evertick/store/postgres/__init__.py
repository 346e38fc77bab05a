"""The PostgreSQL store: one schema of a database, any number of processes on any number of machines."""

from evertick.store.postgres.schema import SCHEMA_VERSION
from evertick.store.postgres.store import PostgresStore

__all__ = ["SCHEMA_VERSION", "PostgresStore"]
