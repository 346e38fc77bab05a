"""The pytest plugin: a kit per test, closed when the test has ended.

pytest loads this file in every run wherever Evertick is installed, so it imports nothing but pytest; the kit
is loaded by the first test that asks for one. It needs no asyncio plugin and gets along with any: the fixtures are
plain, and an async test is closed on its own event loop, right after the test and before that loop is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from evertick.testing.kit import Kit, Stage, SyncKit

_kits = pytest.StashKey[list["Stage"]]()


@pytest.fixture
def evertick_kit(request: pytest.FixtureRequest) -> Iterator[Callable[..., Awaitable[Kit]]]:
    """Virtual time for an async test: `kit = await evertick_kit(scheduler, start=...)`, as `virtual_time` takes it."""
    from evertick.testing.kit import open_kit

    kits = request.node.stash.setdefault(_kits, [])

    async def make(*args: object, **options: object) -> Kit:
        kit = await open_kit(*args, **options)  # type: ignore[arg-type]
        kits.append(kit.stage)
        return kit

    yield make
    _close_all(kits)


@pytest.fixture
def evertick_kit_sync() -> Iterator[Callable[..., SyncKit]]:
    """Virtual time for a plain test: `kit = evertick_kit_sync(scheduler, start=...)`."""
    from contextlib import ExitStack

    from evertick.testing.kit import virtual_time_sync

    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(virtual_time_sync(*args, **options))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    # Before the fixtures are torn down: the test's event loop may be one of them, and a kit is closed on that loop.
    try:
        return (yield)
    finally:
        _close_all(pyfuncitem.stash.get(_kits, []))


def _close_all(kits: list[Stage]) -> None:
    while kits:
        kits.pop().close_from_outside()
