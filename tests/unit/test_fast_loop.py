"""The event loop of a process that only runs a node."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from evertick.scheduler import process
from evertick.scheduler.scheduler import Scheduler


class StubLoop(asyncio.SelectorEventLoop):
    """A stand-in for uvloop's loop."""


async def _loop_of(scheduler: Scheduler, *_: object) -> int:
    return 0 if isinstance(asyncio.get_running_loop(), StubLoop) else 1


@pytest.mark.parametrize(("is_there", "code"), [(True, 0), (False, 1)])
def test_uvloop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, is_there: bool, code: int) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop=StubLoop) if is_there else None)
    monkeypatch.setattr(process, "_serve", _loop_of)
    assert process.run_process(Scheduler("sqlite://")) == code
