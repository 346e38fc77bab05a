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

What the hook must do:
- `open` is called once for most tests and again where a test needs two nodes or processes on one database. The fixture
  closes every store that it opened; a test may have closed one before.
- `pass_time` lets at least that much of the *store's* time pass. A store that is told its time (a `Clock`) is given a
  `SettableClock`, and `pass_time` moves it. A store with a clock of its own, such as a database server, really waits:
  the tests place moments relative to the store's `now`, never set the time, and ask for a tenth of a second at most,
  except where `patience` is checked: set it to what `pass_time` may be asked to wait, and the few tests that need a day
  to pass are skipped. They prove promises, so run the suite once more with a store that can be told its time.

A store that takes part in the transactions of others (`within`, `transaction`) passes `TransactionConformance`, too:
one more class with the same fixture, and a fixture `users` that gives a `Users`. Any other raises `Refused` there.

The tests are arranged by promise, one file per group, and speak only to the protocol in `evertick.store.base`. After
each test the whole ledger is checked against what must always hold (`check_ledger`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

# Without it a failing assertion of these files would not say what it saw.
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
from evertick.testing.conformance.feed import Feed, FeedWithin  # noqa: E402
from evertick.testing.conformance.finishing import Finishing  # noqa: E402
from evertick.testing.conformance.fires import Fires  # noqa: E402
from evertick.testing.conformance.limits import Limits  # noqa: E402
from evertick.testing.conformance.managing import Managing  # noqa: E402
from evertick.testing.conformance.nodes import Nodes  # noqa: E402
from evertick.testing.conformance.outbox import Outbox, OutboxWithin  # noqa: E402
from evertick.testing.conformance.queries import Queries, Unreadable  # noqa: E402
from evertick.testing.conformance.schedules import Occurrences, Schedules  # noqa: E402
from evertick.testing.conformance.upkeep import Upkeep  # noqa: E402
from evertick.testing.conformance.within import Users, UserTransaction, Within  # noqa: E402

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


class _OnBench:
    """The fixtures of both suites."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def stores(self) -> Stores:
        raise NotImplementedError(f"{type(self).__name__} has no fixture `stores`: provide one that gives a Stores")

    @pytest_asyncio.fixture
    async def bench(self, stores: Stores) -> AsyncIterator[Bench]:
        """A store of this test; what must always hold is checked when the test is over."""
        bench = Bench(stores, await stores.open())
        yield bench
        await bench.check()


class StoreConformance(
    _OnBench,
    Schedules,
    Occurrences,
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
    Managing,
    Unreadable,
):
    """Derive from it, name it `Test...`, provide the fixture `stores`."""


class TransactionConformance(_OnBench, Within, OutboxWithin, FeedWithin):
    """The same for transactions that the ledger shares with other tables. Provide the fixture `users`, too."""

    @pytest.fixture
    def users(self, stores: Stores) -> Users:
        raise NotImplementedError(f"{type(self).__name__} has no fixture `users`: provide one that gives a Users")
