"""A process that is nothing but a node: start, wait for a signal, drain, end.

Exit codes: 0 after TERM or INT. `EXIT_RESTART` after HUP, which asks for a restart: not 0, so that a supervisor that
restarts on failure does. `EXIT_STALLED` when the event loop stayed blocked for longer than `stall_limit`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evertick.errors import Refused, WouldBlock

if TYPE_CHECKING:
    from evertick.scheduler import Scheduler

__all__ = ["EXIT_RESTART", "EXIT_STALLED", "check_may_run", "importing", "serve"]

log = logging.getLogger("evertick.serve")

EXIT_RESTART = 75
EXIT_STALLED = 70


_is_importing = False


@contextmanager
def importing() -> Iterator[None]:
    """While a module is imported to find its scheduler, nothing in it may run one: the import would never end."""
    global _is_importing
    before, _is_importing = _is_importing, True
    try:
        yield
    finally:
        _is_importing = before


def check_may_run() -> None:
    """Refuse to run where it cannot work, with what to write instead."""
    if _is_importing:
        raise Refused(
            "run() is called while the module is imported; put it under `if __name__ == '__main__':`, "
            "or start the file with python instead of `evertick run`"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WouldBlock("scheduler.run() would block the event loop of this thread; use `async with scheduler` here")


async def serve(scheduler: Scheduler) -> int:
    """Run until a signal says stop; answers the exit code."""
    wanted = asyncio.Event()
    codes: list[int] = []

    def stop(number: signal.Signals) -> None:
        log.info("%s: draining", number.name)
        if codes:
            log.warning("a second signal: running work is not waited for any longer")
            scheduler._hurry()
        codes.append(EXIT_RESTART if number.name == "SIGHUP" else 0)
        wanted.set()

    with _signals(stop):
        await scheduler._start(on_stalled=_end_stalled)
        try:
            await wanted.wait()
        finally:
            await scheduler._stop()
    return codes[0]


@contextmanager
def _signals(stop: object) -> Iterator[None]:
    """Signals reach only the main thread; elsewhere the caller stops the scheduler by other means."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    for number in numbers:
        loop.add_signal_handler(number, stop, number)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _end_stalled() -> None:
    # The event loop is blocked and cannot end itself; its node is written down as dead already.
    os._exit(EXIT_STALLED)
