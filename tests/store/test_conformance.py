"""Every store keeps every promise of the protocol."""

from __future__ import annotations

import pytest

from evertick.testing.conformance import StoreConformance, Stores, TransactionConformance, Users


class TestInlineSqlite(StoreConformance):
    @pytest.fixture
    def stores(self, inline_stores: Stores) -> Stores:
        return inline_stores


class TestFileSqlite(StoreConformance):
    @pytest.fixture
    def stores(self, file_stores: Stores) -> Stores:
        return file_stores


class TestPostgres(StoreConformance):
    @pytest.fixture
    def stores(self, kept_postgres_stores: Stores) -> Stores:
        return kept_postgres_stores


class TestTransactionsOnFileSqlite(TransactionConformance):
    @pytest.fixture
    def stores(self, file_stores: Stores) -> Stores:
        return file_stores

    @pytest.fixture
    def users(self, file_users: Users) -> Users:
        return file_users


class TestTransactionsOnPostgres(TransactionConformance):
    @pytest.fixture
    def stores(self, kept_postgres_stores: Stores) -> Stores:
        return kept_postgres_stores

    @pytest.fixture
    def users(self, postgres_users: Users) -> Users:
        return postgres_users
