"""A process that runs a node: start, wait for a signal, drain, exit.

Exit codes: 0 after TERM or INT. `EXIT_RESTART` after HUP, which asks for a restart; it is not 0, so that a supervisor
restarts the process on failure. `EXIT_STALLED` when the event loop was blocked for longer than `stall_limit`.
`EXIT_REPLACED` when files of the store were deleted or replaced.

The daemon attaches its own work as a `SideService`.

The process exits when its node has stopped, also if a coroutine ignores its cancellation or a thread does not return,
which would block the closing of the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from evertick.aio.blocking import is_on_event_loop
from evertick.errors import EvertickError, Refused, StoreError, StoreReplaced, StoreUnavailable, WouldBlock
from evertick.scheduler.interpreter_tuning import calm_collector, shorten_turns

if TYPE_CHECKING:
    from evertick.scheduler.runtime import Runtime

__all__ = [
    "EXIT_REPLACED",
    "EXIT_RESTART",
    "EXIT_STALLED",
    "TRACEBACK_VARIABLE",
    "RunReached",
    "SideService",
    "alone",
    "check_may_run",
    "ending_in_one_line",
    "hurried_by_interrupt",
    "hurry",
    "importing",
    "run_process",
    "start_patiently",
    "tell_interrupted",
]

log = logging.getLogger("evertick.serve")

EXIT_RESTART = 75
EXIT_STALLED = 70
EXIT_REPLACED = 74
TRACEBACK_VARIABLE = "EVERTICK_TRACEBACK"
# Seconds between two tries to start while the store is unreachable.
_AGAIN_FIRST, _AGAIN_MOST = 0.25, 5.0
# How long the event loop may take to close after its node has stopped.
_CLOSE_SECONDS = 2.0
_SHOWN_MOST = 20


class SideService:
    """Work beside a node that follows its state. This one does nothing."""

    def signals(self) -> Mapping[signal.Signals, Callable[[], None]]:
        """Additional signals with their handlers, which run on the event loop."""
        return {}

    def waiting(self, why: str, seconds: float) -> None:
        """The store is unreachable; the start is retried for `seconds`."""

    def started(self) -> None:
        """The node has started."""

    async def attend(self) -> None:
        """Runs beside the node until it stops."""

    def stopping(self, why: str) -> None:
        """The node drains."""

    def ended(self) -> None:
        """Called last, before the process exits; on any thread if the event loop is blocked."""


# The module that is being imported to find its scheduler.
_imported = ""


class RunReached(BaseException):
    """Raised by `run()` in a module that is imported to find its scheduler. The module is complete by then."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__()
        self.module = module


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Around the import of a module to find its scheduler: `run()` in it raises, since the import would never end."""
    global _imported
    before, _imported = _imported, name
    try:
        yield
    finally:
        _imported = before


def check_may_run() -> None:
    """Reject `run()` where it cannot work, with the fix."""
    if _imported:
        # Only the top level of the imported module may be left early; another module would be incomplete.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        if frame is not None and frame.f_globals.get("__name__") == _imported:
            raise RunReached(sys.modules[_imported])
        raise Refused(
            f"run() is called while the module {_imported!r} is imported, and by another module; put it under "
            "`if __name__ == '__main__':`"
        )
    if is_on_event_loop():
        raise WouldBlock("scheduler.run() would block the event loop of this thread; use `async with scheduler` here")


@contextmanager
def ending_in_one_line() -> Iterator[None]:
    """Exit with one line for errors of Evertick, which need no traceback."""
    try:
        yield
    except EvertickError as error:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            raise
        raise SystemExit(f"error: {error}") from error


def run_process(runtime: Runtime, service: SideService | None = None) -> int:
    """Run until a signal stops the node, and return the exit code. Exits if the event loop does not close."""
    service = service or SideService()
    try:
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            code = runner.run(_serve(runtime, service))
            end = threading.Timer(_CLOSE_SECONDS, _end_unclosed, [runner.get_loop(), code, service])
            end.daemon = True
            end.start()
        end.cancel()
    finally:
        service.ended()
    return code


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop if it is installed. None: the event loop of Python."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(runtime: Runtime, service: SideService) -> int:
    wanted = asyncio.Event()
    codes: list[int] = []

    def stop(number: signal.Signals) -> None:
        if codes:
            hurry(runtime)
        else:
            log.info("%s: draining", number.name)
            service.stopping(number.name)
            if number is signal.SIGINT:
                tell_interrupted(runtime)
        codes.append(EXIT_RESTART if number.name == "SIGHUP" else 0)
        wanted.set()

    def replaced(error: StoreReplaced) -> None:
        log.error("node: stopping with exit code %d after running work; start it again", EXIT_REPLACED)
        if not codes:
            service.stopping(str(error))
        codes.append(EXIT_REPLACED)
        wanted.set()

    with _signals(stop, service.signals()):
        start = functools.partial(runtime.start, lambda: _end_stalled(service), replaced)
        if await start_patiently(runtime, start, wanted=wanted, waiting=service.waiting):
            try:
                service.started()
                calm_collector()
                shorten_turns()
                await _attended(service, wanted)
            finally:
                await runtime.stop()
    return codes[0]


async def _attended(service: SideService, wanted: asyncio.Event) -> None:
    """Wait for the stop. The side service ends too, since it must not change a draining node."""
    attending = asyncio.create_task(service.attend(), name="evertick attendant")
    attending.add_done_callback(_log_failure)
    try:
        await wanted.wait()
    finally:
        attending.cancel()
        await asyncio.wait({attending}, timeout=_CLOSE_SECONDS)


def _log_failure(attending: asyncio.Task[None]) -> None:
    if not attending.cancelled() and (error := attending.exception()) is not None:
        log.error("side service: failed; the node continues", exc_info=error)


async def start_patiently(
    runtime: Runtime,
    start: Callable[[], Awaitable[None]] | None = None,
    *,
    wanted: asyncio.Event | None = None,
    waiting: Callable[[str, float], None] = lambda why, seconds: None,
) -> bool:
    """Start, and wait for an unreachable store, since services start in any order. False: stopped meanwhile."""
    start, elapsed, again = start or runtime.start, runtime.clock.elapsed, _AGAIN_FIRST
    until = elapsed() + runtime.settings.start_timeout / 1e6
    wanted = wanted or asyncio.Event()
    while not wanted.is_set():
        try:
            await start()
        except StoreUnavailable as error:
            left = until - elapsed()
            if left <= 0:
                raise
            level = logging.WARNING if again == _AGAIN_FIRST else logging.DEBUG
            log.log(level, "not started yet: %s; retrying for up to %.0f s", error, left)
            waiting(str(error), left)
        else:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(min(again, left)):
                await wanted.wait()
        again = min(again * 2, _AGAIN_MOST)
    return False


def tell_interrupted(runtime: Runtime) -> None:
    """After Ctrl-C, print the work that the stop waits for. On stderr, since logging may not be set up."""
    seconds, waits_for = runtime.settings.stop_timeout / 1e6, runtime.under_way
    if waits_for and seconds and sys.stderr is not None:
        what = f"stopping: waiting up to {seconds:g} s for {waits_for}; press Ctrl-C again to stop now"
        print(what, file=sys.stderr, flush=True)


@contextmanager
def hurried_by_interrupt(runtime: Runtime) -> Iterator[None]:
    """Around a stop: if Ctrl-C interrupted `asyncio.run`, print the remaining work; a second Ctrl-C stops immediately.

    Without this, asyncio would raise inside the stop, and only the end of the lease would release the runs.
    """
    before = signal.getsignal(signal.SIGINT)
    # A coroutine cannot tell an interrupt from another cancellation; only the runner knows.
    is_interrupted = bool(getattr(getattr(getattr(before, "func", None), "__self__", None), "_interrupt_count", 0))
    if not is_interrupted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, hurry, runtime)
    except NotImplementedError:  # on Windows
        yield
        return
    tell_interrupted(runtime)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def hurry(runtime: Runtime) -> None:
    """Stop without waiting, after a second signal."""
    log.warning("second signal: stopping now, without waiting for running work")
    runtime.hurry()


def alone(error: StoreError) -> StoreError:
    """The error without its cause and traceback. Its message has the text of the server."""
    if os.environ.get(TRACEBACK_VARIABLE) != "1":
        error.__cause__, error.__suppress_context__, error.__traceback__ = None, True, None
    return error


@contextmanager
def _signals(
    stop: Callable[[signal.Signals], None], others: Mapping[signal.Signals, Callable[[], None]]
) -> Iterator[None]:
    """Signals reach only the main thread; elsewhere the caller stops the scheduler by other means."""
    loop = asyncio.get_running_loop()
    ending = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    numbers = [*ending, *others]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    for number in numbers:
        loop.add_signal_handler(number, *((stop, number) if number in ending else (others[number],)))
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            # A late signal must not cut off the last output of a side service.
            if others:
                signal.signal(number, signal.SIG_IGN)


def _end_unclosed(loop: asyncio.AbstractEventLoop, code: int, service: SideService) -> None:
    tasks = [f"task {task.get_name()!r}" for task in asyncio.all_tasks(loop)]
    lasting = [thread for thread in threading.enumerate() if not thread.daemon]
    threads = [f"thread {thread.name!r}" for thread in lasting if thread is not threading.main_thread()]
    left = ", ".join(sorted(tasks + threads)[:_SHOWN_MOST])
    log.error("process: exiting; still running: %s", left)
    # `os._exit` skips the usual cleanup.
    with suppress(Exception):
        service.ended()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_stalled(service: SideService) -> None:
    # The event loop is blocked and cannot stop itself. Its node is recorded as dead.
    with suppress(Exception):
        service.ended()
    os._exit(EXIT_STALLED)
