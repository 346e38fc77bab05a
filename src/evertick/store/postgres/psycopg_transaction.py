"""A transaction for a plain job: a connection of psycopg, in the job's own thread, bounded in time.

asyncpg lives on event loops only, so this needs psycopg beside it. When the time is over the server is asked to end the
session: no other thread may touch a connection that is in use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from evertick.clock import Clock
from evertick.errors import Refused, StoreUnavailable
from evertick.model import Outcome
from evertick.store.postgres.connection import translated
from evertick.store.postgres.ids import is_run_id
from evertick.store.postgres.location import Location
from evertick.store.postgres.session import Statements
from evertick.store.postgres.users import PlainPsycopg
from evertick.store.postgres.wakeup import Notifier
from evertick.store.postgres.within import finish_and_commit, out_of_time, server_limit

__all__ = ["PsycopgTransaction", "load_psycopg"]


def load_psycopg(description: str) -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise Refused(
            f"the ledger is in the {description}, and a plain job needs psycopg for a transaction there; install it "
            "with `pip install 'psycopg[binary]'`, or make the job a coroutine"
        ) from error
    return psycopg


class PsycopgTransaction:
    """A connection for one job, in a transaction that is bounded in time."""

    def __init__(
        self,
        where: Location,
        sql: Mapping[str, str],
        clock: Clock,
        bell: Notifier,
        *,
        seconds: float,
        psycopg: ModuleType,
    ) -> None:
        self._where = where
        self._sql = sql
        self._clock = clock
        self._bell = bell
        self._seconds = seconds
        self._psycopg = psycopg
        self._connection: Any = None
        self._transaction = ""
        self._watch: threading.Timer | None = None
        # Between the watch and the end of the block: whoever comes first decides.
        self._ending = threading.Lock()
        self._is_out_of_time = False

    async def begin(self, app: str, node: str, run: str, fence: int) -> Any:
        with self._translated():
            connection = self._connect()
            try:
                session = Statements(PlainPsycopg(connection, self._psycopg), self._sql, self._clock)
                # It gets a name by that, by which its end is recognised.
                begun = await session.only_row("within.begin", server_limit(self._seconds))
                self._transaction = begun["name"]
                held = await session.row("within.held", app, node, run, fence) if is_run_id(run) else None
            except BaseException:
                connection.close()
                raise
        if held is None:
            connection.close()
            return None
        self._connection = connection
        self._watch = threading.Timer(self._seconds, self._time_is_over, [begun["backend"]])
        self._watch.daemon = True
        self._watch.start()
        return connection

    async def commit(self, app: str, node: str, outcome: Outcome) -> bool:
        connection = self._take_back()
        try:
            if self._is_out_of_time:
                raise out_of_time(self._seconds)
            with self._translated():
                plain = PlainPsycopg(connection, self._psycopg)
                session = Statements(plain, self._sql, self._clock)
                return await finish_and_commit(plain, session, self._bell, self._transaction, app, node, outcome)
        finally:
            connection.close()

    async def rollback(self) -> None:
        if self._connection is not None:
            self._take_back().close()
        if self._is_out_of_time:
            raise out_of_time(self._seconds)

    def _connect(self) -> Any:
        # A prepared statement stays on its server session, where the pooler may give us another one.
        never = {"prepare_threshold": None} if self._where.is_pooled else {}
        connection = self._psycopg.connect(**self._address(), **never)
        connection.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _address(self) -> dict[str, Any]:
        where = self._where
        milliseconds = round(where.timeout * 1000)
        given = {
            "host": ",".join(host for host, _ in where.hosts),
            "port": ",".join(str(port) for _, port in where.hosts),
            "user": where.user,
            "password": where.password,
            "dbname": where.database,
            "sslmode": where.sslmode or ("verify-full" if where.ca is not None else None),
            "sslrootcert": where.ca,
            "sslcert": where.cert,
            "sslkey": where.key,
            "target_session_attrs": "read-write" if len(where.hosts) > 1 else None,
            "connect_timeout": max(1, round(where.connect_timeout)),
            "application_name": "evertick",
            "options": None if where.is_pooled else f"-c statement_timeout={milliseconds}",
        }
        return {name: value for name, value in given.items() if value}

    def _take_back(self) -> Any:
        """The connection from the job's hands into ours. Closing it rolls back what is not committed."""
        assert self._watch is not None
        self._watch.cancel()
        with self._ending:
            connection, self._connection = self._connection, None
        return connection

    def _time_is_over(self, backend: int) -> None:
        with self._ending:
            if self._connection is None:
                return
            self._is_out_of_time = True
            with suppress(self._psycopg.Error), self._connect() as connection:
                statement = self._sql["within.terminate"]
                self._psycopg.RawCursor(connection).execute(statement, [backend, self._transaction])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated(self._where):
            try:
                yield
            except self._psycopg.OperationalError as error:
                if error.sqlstate is not None:
                    raise
                said = str(error).partition("\n")[0]
                raise StoreUnavailable(f"the {self._where.description} cannot be reached ({said})") from error
