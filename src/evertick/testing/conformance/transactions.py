"""Promises about transactions that the ledger shares with other tables: both are written, or neither.

Besides `Stores` the author of a store provides `Users`: transactions of a user on the same database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest

from evertick.errors import Refused
from evertick.model import Claimed, State, Verdict
from evertick.store.base import JobTransaction
from evertick.testing.conformance.bench import APP, MINUTE, OTHER_APP, Bench, a_run, an_outcome

__all__ = ["TransactionalRuns", "UserTransaction", "Users"]


class UserTransaction(ABC):
    """An open transaction of a user that can write."""

    # The connection that the user passes to Evertick.
    connection: Any

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...


class Users(ABC):
    """The hook for transactions that are not the store's own. The fixture closes them."""

    @abstractmethod
    async def begin(self) -> UserTransaction:
        """A transaction on another connection to the database of this test."""

    @abstractmethod
    async def begin_elsewhere(self) -> UserTransaction:
        """A transaction on another database, without tables of Evertick."""


class TransactionalRuns:
    # --- enqueue

    async def test_a_run_exists_after_the_users_commit_and_not_before(self, bench: Bench, users: Users) -> None:
        user, new = await users.begin(), a_run(args=b'{"n":1}')
        [run] = await bench.store.within(user.connection).enqueue(APP, [new])
        assert (run.id, run.is_new, run.state, run.args) == (new.id, True, State.WAITING, {"n": 1})
        assert await bench.runs() == []
        await user.commit()
        assert [(run.id, run.state) for run in await bench.runs()] == [(new.id, State.WAITING)]

    async def test_a_rollback_of_the_user_removes_the_run(self, bench: Bench, users: Users) -> None:
        user = await users.begin()
        await bench.store.within(user.connection).enqueue(APP, [a_run(), a_run()])
        await user.rollback()
        assert await bench.runs() == []

    async def test_enqueued_within_a_transaction_the_same_id_twice_is_one_run(self, bench: Bench, users: Users) -> None:
        user, new = await users.begin(), a_run()
        within = bench.store.within(user.connection)
        [first], [again] = await within.enqueue(APP, [new]), await within.enqueue(APP, [new])
        assert (first.id, first.is_new, again.id, again.is_new) == (new.id, True, new.id, False)
        await user.commit()
        [known] = await bench.store.enqueue(APP, [new])
        assert (known.id, known.is_new) == (new.id, False)

    async def test_within_a_transaction_a_taken_unique_key_returns_the_live_run(
        self, bench: Bench, users: Users
    ) -> None:
        live = await bench.enqueue(unique_key="one")
        user = await users.begin()
        within = bench.store.within(user.connection)
        [known, other] = await within.enqueue(APP, [a_run(unique_key="one"), a_run(unique_key="two")])
        [again] = await within.enqueue(APP, [a_run(unique_key="two")])
        assert (known.id, known.is_new, other.is_new) == (live.id, False, True)
        assert (again.id, again.is_new) == (other.id, False)
        await user.commit()
        assert {run.id for run in await bench.runs()} == {live.id, other.id}

    async def test_within_a_transaction_a_run_belongs_to_its_app_alone(self, bench: Bench, users: Users) -> None:
        user = await users.begin()
        await bench.store.within(user.connection).enqueue(OTHER_APP, [a_run()])
        await user.commit()
        assert (await bench.runs(), len(await bench.runs(app=OTHER_APP))) == ([], 1)

    async def test_a_connection_to_another_database_is_refused(self, bench: Bench, users: Users) -> None:
        user = await users.begin_elsewhere()
        with pytest.raises(Refused, match="this connection leads to"):
            await bench.store.within(user.connection).enqueue(APP, [a_run()])
        await user.rollback()

    # --- finish

    async def test_a_run_is_finished_by_the_users_commit_and_not_before(self, bench: Bench, users: Users) -> None:
        node = await bench.node()
        held, user = await bench.hold(node), await users.begin()
        outcome = an_outcome(held, result=b'{"rows":2}')
        assert await bench.store.within(user.connection).finish(APP, node, outcome) == "done"
        assert await bench.state(held.id) is State.RUNNING
        await user.commit()
        run = await bench.run(held.id)
        assert (run.state, run.verdict, run.result) == (State.DONE, Verdict.SUCCEEDED, {"rows": 2})
        assert await bench.store.owned(APP, node) == []

    async def test_a_finish_that_is_rolled_back_leaves_the_run_running(self, bench: Bench, users: Users) -> None:
        node = await bench.node()
        held, user = await bench.hold(node), await users.begin()
        await bench.store.within(user.connection).finish(APP, node, an_outcome(held))
        await user.rollback()
        assert await bench.state(held.id) is State.RUNNING
        assert await bench.finish(node, an_outcome(held, "retry")) == ["done"]

    async def test_outcomes_after_a_finish_within_a_transaction_change_nothing(
        self, bench: Bench, users: Users
    ) -> None:
        node = await bench.node()
        held, user = await bench.hold(node), await users.begin()
        await bench.store.within(user.connection).finish(APP, node, an_outcome(held))
        await user.commit()
        for kind in ("done", "retry", "release", "park"):
            assert await bench.finish(node, an_outcome(held, kind)) == ["already"]
        assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED

    async def test_a_lost_claim_finishes_nothing_within_a_transaction(self, bench: Bench, users: Users) -> None:
        node, successor = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        assert [run.id for run in (await bench.rehome(successor)).claimed] == [held.id]
        user = await users.begin()
        assert await bench.store.within(user.connection).finish(APP, node, an_outcome(held)) == "lost"
        await user.commit()
        run = await bench.run(held.id)
        assert (run.state, run.node) == (State.RUNNING, successor)

    async def test_a_finish_within_a_transaction_frees_the_blocked_run(self, bench: Bench, users: Users) -> None:
        node = await bench.node()
        held = await bench.hold(node, await bench.fire(await bench.add()))
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        user = await users.begin()
        await bench.store.within(user.connection).finish(APP, node, an_outcome(held))
        assert await bench.state(blocked) is State.BLOCKED
        await user.commit()
        assert await bench.state(blocked) is State.WAITING

    async def test_a_finish_within_a_transaction_restarts_a_schedule_that_counts_from_the_end(
        self, bench: Bench, users: Users
    ) -> None:
        node = await bench.node()
        held = await bench.hold(node, await bench.fire(await bench.add(), {"after_end": MINUTE, "next_fire_at": None}))
        user, before = await users.begin(), await bench.now()
        await bench.store.within(user.connection).finish(APP, node, an_outcome(held))
        assert (await bench.stored()).fire_at is None
        await user.commit()
        cursor = (await bench.stored()).fire_at
        assert cursor is not None
        assert before + MINUTE <= cursor <= await bench.now() + MINUTE

    async def test_a_finish_within_a_transaction_clears_the_unique_key(self, bench: Bench, users: Users) -> None:
        node = await bench.node()
        held = await bench.hold(node, (await bench.enqueue(unique_key="one")).id)
        user = await users.begin()
        await bench.store.within(user.connection).finish(APP, node, an_outcome(held))
        await user.commit()
        assert (await bench.enqueue(unique_key="one")).is_new

    async def test_log_lines_written_after_the_job_has_finished_its_run_are_kept(
        self, bench: Bench, users: Users
    ) -> None:
        node = await bench.node()
        held, user = await bench.hold(node), await users.begin()
        await bench.store.within(user.connection).finish(APP, node, an_outcome(held))
        await user.commit()
        assert await bench.note(node, held, lines=((5, "info", "a last word"),)) == []
        assert [line.text for line in await bench.store.log(APP, held.id)] == ["a last word"]

    # --- transactions for jobs

    async def begun(self, bench: Bench, node: str, held: Claimed) -> JobTransaction:
        transaction = bench.store.transaction(seconds=60, is_plain=False)
        assert await transaction.begin(APP, node, held.id, held.fence) is not None
        return transaction

    async def test_the_commit_of_a_job_transaction_finishes_its_run(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        transaction = await self.begun(bench, node, held)
        assert await bench.state(held.id) is State.RUNNING
        assert await transaction.commit(APP, node, an_outcome(held))
        assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED

    async def test_a_job_transaction_that_is_rolled_back_finishes_nothing(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await (await self.begun(bench, node, held)).rollback()
        assert await bench.state(held.id) is State.RUNNING
        assert await bench.finish(node, an_outcome(held)) == ["done"]

    async def test_a_lost_claim_gets_no_job_transaction(self, bench: Bench) -> None:
        node, successor = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        await bench.rehome(successor)
        transaction = bench.store.transaction(seconds=60, is_plain=False)
        assert await transaction.begin(APP, node, held.id, held.fence) is None
        assert await bench.enqueue()  # no lock is left

    async def test_a_job_transaction_keeps_a_result_that_was_written_in_it(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        transaction = bench.store.transaction(seconds=60, is_plain=False)
        connection = await transaction.begin(APP, node, held.id, held.fence)
        outcome = an_outcome(held, result=b"7")
        assert await bench.store.within(connection).finish(APP, node, outcome) == "done"
        assert await transaction.commit(APP, node, an_outcome(held))
        assert (await bench.run(held.id)).result == 7
