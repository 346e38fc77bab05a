"""The plain form of what is async: `scheduler.sync.pause(...)`, `task.sync.enqueue(...)`.

A call is carried to the event loop that answers it: the engine's, wherever that runs, or one in a background thread
that is started for it. On a thread that runs an event loop of its own such a call would block that loop, or wait for
itself; it is refused there, and `await` is the way.
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
    """A way from plain code into an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        # The engine's loop while an engine runs; it answers instead of our own.
        self.engine_loop: asyncio.AbstractEventLoop | None = None

    def call(
        self, make: Callable[[], Coroutine[Any, Any, T]], what: str, *, instead: str = "`await` without `.sync`"
    ) -> T:
        """Run the coroutine to its end and answer its result. `what` was called, `instead` is right on a loop."""
        if is_on_event_loop():
            raise WouldBlock(f"{what} would block the event loop of this thread; use {instead} here")
        self._refuse_fork(what)
        loop = self.engine_loop or self._own_loop()
        return asyncio.run_coroutine_threadsafe(make(), loop).result()

    def stop(self, stop: Callable[[], Coroutine[Any, Any, None]], what: str, hurry: Callable[[], None]) -> None:
        """Stop the engine, sooner at a Ctrl-C: `hurry` is called on its event loop then, and the end waited for."""
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
            # The interrupt may come at any point in here, also before the coroutine is on its way.
            self.call(stop_once, what)
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(hurry)
            asyncio.run_coroutine_threadsafe(stop_once(), loop)
        done.result()

    def close(self) -> None:
        """End the background loop. The next call starts another."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _refuse_fork(self, what: str) -> None:
        # A fork has the loop, but not the thread that ran it: a call would wait for ever.
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
    """Leave nothing behind: neither tasks that never hear of the end, nor threads of the loop's own."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
