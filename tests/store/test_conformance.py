"""Every store keeps every promise of the protocol."""

from __future__ import annotations

import pytest
from postgres_stores import OnOneLoop

from evertick.testing.conformance import StoreConformance, Stores, TransactionConformance, Users


class TestInlineSqlite(StoreConformance):
    @pytest.fixture
    def stores(self, inline_stores: Stores) -> Stores:
        return inline_stores


class TestFileSqlite(StoreConformance):
    @pytest.fixture
    def stores(self, file_stores: Stores) -> Stores:
        return file_stores


class TestPostgres(OnOneLoop, StoreConformance):
    pass


class TestTransactionsOnFileSqlite(TransactionConformance):
    @pytest.fixture
    def stores(self, file_stores: Stores) -> Stores:
        return file_stores

    @pytest.fixture
    def users(self, file_users: Users) -> Users:
        return file_users


class TestTransactionsOnPostgres(OnOneLoop, TransactionConformance):
    pass
