"""Blocking calls of async methods: `scheduler.sync.pause(...)`, `task.sync.enqueue(...)`.

The coroutine runs on the event loop of the engine. Without an engine it runs on a loop in a background thread, started
on first use. On a thread that runs an event loop the call would block that loop, so it raises `WouldBlock`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from evertick.aio.blocking import is_on_event_loop
from evertick.errors import Forked, WouldBlock

__all__ = ["Portal"]

T = TypeVar("T")


class Portal:
    """Runs coroutines on an event loop for code that has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        # The loop of the engine while one runs. Calls use it instead of the background loop.
        self.engine_loop: asyncio.AbstractEventLoop | None = None

    def call(
        self, make: Callable[[], Coroutine[Any, Any, T]], what: str, *, instead: str = "`await` without `.sync`"
    ) -> T:
        """Run the coroutine and return its result. Errors name the call (`what`) and the fix (`instead`)."""
        if is_on_event_loop():
            raise WouldBlock(f"{what} would block the event loop of this thread; use {instead} here")
        self._refuse_fork(what)
        loop = self.engine_loop or self._own_loop()
        return asyncio.run_coroutine_threadsafe(make(), loop).result()

    def stop(self, stop: Callable[[], Coroutine[Any, Any, None]], what: str, hurry: Callable[[], None]) -> None:
        """Stop the engine and wait. Ctrl-C calls `hurry` on its event loop, so that it stops sooner."""
        done: Future[None] = Future()
        begun: list[bool] = []

        async def stop_once() -> None:
            if begun:
                return
            begun.append(True)
            try:
                await stop()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        loop = self.engine_loop or self._own_loop()
        try:
            # The interrupt may arrive at any point in here, also before the coroutine is scheduled.
            self.call(stop_once, what)
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(hurry)
            asyncio.run_coroutine_threadsafe(stop_once(), loop)
        done.result()

    def close(self) -> None:
        """Stop the background loop. The next call starts another one."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _refuse_fork(self, what: str) -> None:
        # A fork has the loop but not its thread, so a call would never return.
        is_used = self._loop is not None or self.engine_loop is not None
        if is_used and self._process != os.getpid():
            raise Forked(
                f"{what}: this scheduler was used by process {self._process} before it was forked; connections and "
                "threads do not survive that. Use it only after the fork: under a web server that preloads the "
                "application, in the hook that starts a worker"
            )
        self._process = os.getpid()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="evertick background", daemon=True
                )
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_end_all(loop))
        loop.close()


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of the loop, and stop the threads of its executor."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
