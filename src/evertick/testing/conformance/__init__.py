"""The conformance suite: a store is right when it passes.

The author of a store derives one class and provides one fixture; pytest and pytest-asyncio must be installed.

    class OurStores(Stores):
        def __init__(self, url: str) -> None: ...
        async def open(self) -> Store:            # another store object on the same database, opened
        async def pass_time(self, us: int) -> None:

    class TestOurStore(StoreConformance):
        @pytest_asyncio.fixture
        async def stores(self) -> AsyncIterator[Stores]:
            yield OurStores(...)                  # a fresh database for each test; close what was opened

The hook:
- `open` is called once in most tests, and again in tests of two nodes or processes on one database. The fixture
  closes every store that it opened; a test may already have closed one.
- `pass_time` lets at least that much of the *store's* time pass. A store with a settable clock gets a `SettableClock`,
  which `pass_time` moves. A store with a clock of its own, such as a database server, really waits. The tests place
  moments relative to the store's `now`, never set the time, and wait for a tenth of a second at most.
- `patience` is the longest wait that `pass_time` accepts. The few tests that need a day are skipped then, so run the
  suite once more with a settable clock, if the store can have one.

A store that can write in transactions of users (`within`, `transaction`) also passes `TransactionConformance`: one
more class with the same fixture, and a fixture `users` that gives a `Users`. Other stores raise `Refused` there.

The tests use only the protocol in `evertick.store.base`; each file is one group of promises. After each test
`check_ledger` checks the whole ledger.
"""

from __future__ import annotations

import pkgutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

# Without it, failing assertions in these files show no values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from evertick.testing.conformance.bench import (  # noqa: E402
    Bench,
    Stores,
    a_definition,
    a_fire,
    a_gap,
    a_run,
    an_advance,
    an_outcome,
    check_ledger,
)
from evertick.testing.conformance.claims import Claims  # noqa: E402
from evertick.testing.conformance.dispatched import Dispatched  # noqa: E402
from evertick.testing.conformance.duties import Duties  # noqa: E402
from evertick.testing.conformance.every_node import EveryNode  # noqa: E402
from evertick.testing.conformance.feed import Feed, TransactionalFeed  # noqa: E402
from evertick.testing.conformance.finishing import Finishing  # noqa: E402
from evertick.testing.conformance.fires import Fires  # noqa: E402
from evertick.testing.conformance.limits import Limits  # noqa: E402
from evertick.testing.conformance.nodes import Nodes  # noqa: E402
from evertick.testing.conformance.outbox import Outbox, TransactionalOutbox  # noqa: E402
from evertick.testing.conformance.queries import Queries, UnreadableRows  # noqa: E402
from evertick.testing.conformance.schedule_management import ScheduleManagement  # noqa: E402
from evertick.testing.conformance.schedules import Overrides, Schedules  # noqa: E402
from evertick.testing.conformance.transactions import TransactionalRuns, Users, UserTransaction  # noqa: E402
from evertick.testing.conformance.upkeep import Upkeep  # noqa: E402

__all__ = [
    "Bench",
    "StoreConformance",
    "Stores",
    "TransactionConformance",
    "UserTransaction",
    "Users",
    "a_definition",
    "a_fire",
    "a_gap",
    "a_run",
    "an_advance",
    "an_outcome",
    "check_ledger",
]


class _BenchFixtures:
    """The fixtures of both suites."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def stores(self) -> Stores:
        raise NotImplementedError(f"{type(self).__name__} has no fixture `stores`: provide one that gives a Stores")

    @pytest_asyncio.fixture
    async def bench(self, stores: Stores) -> AsyncIterator[Bench]:
        """The store of this test; its ledger is checked after the test."""
        bench = Bench(stores, await stores.open())
        yield bench
        await bench.check()


class StoreConformance(
    _BenchFixtures,
    Schedules,
    Overrides,
    Fires,
    Claims,
    Limits,
    Finishing,
    Nodes,
    EveryNode,
    Duties,
    Outbox,
    Dispatched,
    Feed,
    Upkeep,
    Queries,
    ScheduleManagement,
    UnreadableRows,
):
    """Derive a class `Test...` from it and provide the fixture `stores`."""


class TransactionConformance(_BenchFixtures, TransactionalRuns, TransactionalOutbox, TransactionalFeed):
    """The same for transactions shared with other tables. Provide the fixture `users`, too."""

    @pytest.fixture
    def users(self, stores: Stores) -> Users:
        raise NotImplementedError(f"{type(self).__name__} has no fixture `users`: provide one that gives a Users")
