"""Functions that the tests of process tasks run in children. At the top of a module, where a child can find them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from evertick import Context, Retry, Scheduler, Skip, current

scheduler = Scheduler("sqlite:///elsewhere.db")
calls = 0


class OutOfPaper(RuntimeError):
    """An error that only this module knows."""


def tell_everything(ctx: Context, rows: int) -> dict[str, object]:
    ctx.log(f"reading {rows} rows")
    logging.getLogger("jobs").warning("only %d rows", rows)
    print("to stdout")
    print("to stderr", file=sys.stderr)
    sys.stdout.write("without an end of line")
    with ctx.phase("read"):
        for number in range(1000):
            ctx.progress(number / 1000, f"row {number}")
    assert current() is ctx
    return {
        "run_id": ctx.run_id,
        "fire_at": ctx.fire_at,
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "deadline": ctx.deadline,
        "labels": ctx.labels,
        "schedule_key": ctx.schedule_key,
        "cancelled": ctx.cancelled,
        "pid": os.getpid(),
        "rows": rows,
    }


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0.01)
    logging.getLogger("jobs").error("added in %s", current().task)
    return a + b


def print_invoices() -> None:
    raise OutOfPaper("tray 2")


async def print_invoices_later() -> None:
    await asyncio.sleep(0)
    raise OutOfPaper("tray 2")


def extend_start(ctx: Context) -> str:
    if ctx.attempt == 1:
        raise Retry("the file is not complete", after="10ms")
    return "complete"


def nothing_to_do() -> None:
    raise Skip("no file today")


def crash(ctx: Context, how: str) -> None:
    print("last words")
    with ctx.phase("read"):
        pass
    with ctx.phase("crash", {"how": how}):
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSEGV if how == "segfault" else signal.SIGKILL)


def be_parent(ctx: Context, began: str) -> None:
    """Start processes that nobody could find by group or session, then hang without looking at anything."""
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000; sleep 1000' & sleep 1000"])
    Path(began).write_text(str(os.getpid()))
    time.sleep(1000)


def leave_something_behind(began: str) -> str:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(began).write_text(str(os.getpid()))
    return "done"


def look_now_and_then(ctx: Context, began: str) -> str:
    Path(began).write_text(str(os.getpid()))
    while not ctx.cancelled:
        time.sleep(0.01)
    return "stopped in the middle"


def check_now_and_then(ctx: Context, began: str, told: str) -> None:
    Path(began).write_text(str(os.getpid()))
    try:
        while True:
            ctx.check()
            time.sleep(0.01)
    except BaseException as error:
        Path(told).write_text(str(error))
        raise


async def wait_for_ever(began: str, tidied: str) -> None:
    Path(began).write_text(str(os.getpid()))
    try:
        await asyncio.sleep(1000)
    finally:
        Path(tidied).write_text("tidied up")


def lean_on_a_program() -> str:
    """Does not look at how the program ended, as many do not."""
    return f"written, rc={subprocess.run(['sleep', '30']).returncode}"


def finish_all_the_same(began: str) -> str:
    """Never looks whether it is to stop, and is done soon after."""
    stopping = False

    def heard(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, heard)
    Path(began).write_text(str(os.getpid()))
    while not stopping:
        time.sleep(0.01)
    return "all the same"


def wait_for_word(ctx: Context, began: str, word: str) -> str:
    Path(began).write_text(str(os.getpid()))
    while not Path(word).exists():
        ctx.check()
        time.sleep(0.01)
    return Path(word).read_text()


def look_at_the_end(ctx: Context, began: str, word: str) -> bool:
    Path(began).write_text(str(os.getpid()))
    while not Path(word).exists():
        time.sleep(0.01)
    return ctx.cancelled


def say_and_wait(ctx: Context, word: str) -> None:
    ctx.log("before a long wait")
    ctx.progress(0.1, "the beginning")
    ctx.progress(0.9, "the last word for long")
    while not Path(word).exists():
        time.sleep(0.01)


def measure(data: str) -> int:
    return len(data)


def make(size: int) -> str:
    return "x" * size


def return_a_socket() -> object:
    return object()


def garble() -> None:
    """Write on the channel what is no frame."""
    for name in os.listdir("/proc/self/fd"):
        try:
            is_socket = os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
        if is_socket:
            with socket.socket(fileno=os.dup(int(name))) as channel:
                channel.sendall(b"\xff\xff\xff\xffnonsense")
    time.sleep(1000)


def count_calls() -> tuple[int, int]:
    global calls
    calls += 1
    return os.getpid(), calls


@scheduler.task(process=True)
def enqueue_another(rest: int) -> str:
    return enqueue_another.sync.enqueue(rest=rest - 1).id if rest else "the last"


def speak_in_tongues(ctx: Context) -> str:
    """Text that no JSON can hold, a closed stdout, and a thread that is left behind."""
    ctx.log("half of a \udcff character")
    ctx.progress(0.5, "\ud800")
    with ctx.phase("\udcfe"):
        sys.stdout.close()
    threading.Thread(target=time.sleep, args=(1000,)).start()
    raise OutOfPaper("\udcfd")


def finish_in_a_transaction(ctx: Context) -> None:
    ctx.finish(connection=object())


def send_and_return(ctx: Context, count: int) -> None:
    for number in range(count):
        ctx.send("mail", {"n": number})
