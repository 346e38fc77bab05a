"""Python programs that start with Evertick loaded: `popen` and `run` do what those of `subprocess` do, but cheaper.

Each program is a process of its own and a child of this one, but a copy of an interpreter that waits with Evertick
loaded. It has the environment, folder, files and signals that `subprocess` would give it. A command with options of the
interpreter but `-W error` starts as usual, and so do all under coverage and on other kernels.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib.util
import inspect
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = ["popen", "run"]

_IS_POSSIBLE = (sys.platform, platform.machine()) == ("linux", "x86_64")
# Variables that only a new interpreter reads.
_FOR_INTERPRETERS = ("PYTHON", "LC_", "LANG")
_READ_HERE = ("PYTHONPATH", "PYTHONUNBUFFERED")
_STRICT = ["-W", "error"]
# That of the interpreter: a test may change its own.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in _READ_HERE}
_OPTIONS = {"cwd", "env", "stdin", "stdout", "stderr", "text", "start_new_session"}
_REQUEST_MOST = 200_000
_LOADED = (
    *("evertick.cli", "evertick.daemon.daemon", "evertick.engine.node", "evertick.worker.worker"),
    *("evertick.store.sqlite", "evertick.store.postgres", "evertick.driver.shell.driver", "rich.console", "rich.table"),
)


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` for a command that begins with `sys.executable`."""
    assert command[0] == sys.executable
    return (_Copy if _can_copy(command, options) else subprocess.Popen)(command, **options)


def run(
    command: Sequence[str], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` for such a command, with the output as text."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with popen(command, **(pipes | options)) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _can_copy(command: Sequence[str], options: dict[str, Any]) -> bool:
    words = command[3:] if list(command[1:3]) == _STRICT else command[1:]
    starts = bool(words) and (words[0] in ("-m", "-c") or not words[0].startswith("-"))
    environment = options.get("env") or os.environ
    return (
        _IS_POSSIBLE
        and starts
        and _OPTIONS.issuperset(options)
        and _for_interpreters(environment) == _for_interpreters(_ENVIRONMENT)
        and not any(name.startswith("COVERAGE_PROCESS") for name in environment)
        and sum(map(len, [*command, *environment, *environment.values()])) < _REQUEST_MOST // 2
    )


def _for_interpreters(environment: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if value and name.startswith(_FOR_INTERPRETERS) and name not in _READ_HERE
    }


class _Copy(subprocess.Popen[Any]):
    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]
        environment = os.environ if asked["env"] is None else asked["env"]
        folder = os.path.abspath(asked["cwd"] or ".")
        files = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        request = [folder, dict(environment), asked["args"][1:], asked["start_new_session"], [*os.sched_getaffinity(0)]]
        own = [number if number != -1 else standard for standard, number in enumerate(files)]
        self.pid = _interpreter(os.getpid()).start(request, own)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


class _Interpreter:
    """An interpreter that waits for programs. It ends with this process at the latest."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=_ENVIRONMENT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        atexit.register(self._end)

    def start(self, request: list[Any], files: list[int]) -> int:
        """The id of the process, whose standard input, output and errors are these files."""
        with self._lock:
            socket.send_fds(self._line, [json.dumps(request).encode()], files)
            answer = self._line.recv(100)
        assert answer, f"the interpreter has ended with {self._process.wait()}"
        return int(answer)

    def _end(self) -> None:
        self._line.close()
        self._process.wait()


@cache
def _interpreter(process: int) -> _Interpreter:
    """That of this process, which a fork does not share."""
    return _Interpreter()


# --- in the interpreter ---------------------------------------------------------------------------------------------


def _wait_for_requests(line: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    clone = _Cloning()
    while True:
        request, files, _, _ = socket.recv_fds(line, _REQUEST_MOST, 3)
        if not request:
            return
        process = clone.fork()
        if process == 0:
            line.close()
            _become(*json.loads(request), files)
            return
        line.send(str(process).encode())
        for file in files:
            os.close(file)


class _Cloning:
    """`os.fork`, but for a child of the parent process, which can wait for it as for any other."""

    # From <linux/sched.h> and <linux/prctl.h>.
    _FLAGS = 0x8000 | 0x200000 | 0x1000000 | signal.SIGCHLD  # CLONE_PARENT, CLEARTID and SETTID of the child
    _SYS_CLONE, _PR_GET_TID_ADDRESS = 56, 40

    def __init__(self) -> None:
        self._c = ctypes.PyDLL(None, use_errno=True)
        # Where the C library keeps the id of this thread: as in its own fork, the kernel writes the new one there.
        self._thread_id = ctypes.c_void_p()
        if self._c.prctl(self._PR_GET_TID_ADDRESS, ctypes.byref(self._thread_id)) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_GET_TID_ADDRESS)")

    def fork(self) -> int:
        ctypes.pythonapi.PyOS_BeforeFork()
        process: int = self._c.syscall(self._SYS_CLONE, ctypes.c_ulong(self._FLAGS), 0, 0, self._thread_id, 0)
        if process == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            return 0
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        if process < 0:
            raise OSError(ctypes.get_errno(), "clone")
        return process


def _become(
    folder: str,
    environment: dict[str, str],
    words: list[str],
    has_session: bool,
    processors: list[int],
    files: list[int],
) -> None:
    """Run the program as `python WORDS` would; the process ends as that would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if has_session:
        os.setsid()
    os.sched_setaffinity(0, processors)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _stream(1, "strict")
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace")
    module = sys.modules["__main__"] = ModuleType("__main__")
    path = [os.path.abspath(each) for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    first, code = _program(words, module)
    sys.path[:1] = [first, *path]
    exec(code, vars(module))


def _stream(number: int, errors: str) -> io.TextIOWrapper:
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    file = open(number, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    is_by_line = number == 2 or file.isatty()
    return io.TextIOWrapper(file, errors=errors, line_buffering=is_by_line, write_through=is_unbuffered)


def _program(words: list[str], module: ModuleType) -> tuple[str, CodeType]:
    """The first place to import from, and the code; `sys.argv` and the main module as that expects them."""
    match words:
        case ["-W", "error", *rest]:
            sys.warnoptions.append("error")
            warnings.simplefilter("error")
            return _program(rest, module)
        case ["-c", text, *arguments]:
            sys.argv[:] = ["-c", *arguments]
            return "", compile(text, "<string>", "exec", dont_inherit=True)
        case ["-m", name, *arguments]:
            sys.path[0] = os.getcwd()
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
            assert spec is not None, f"No module named {name}"
            assert spec.origin is not None
            sys.argv[:] = [spec.origin, *arguments]
            module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
            module.__file__ = spec.origin
            return os.getcwd(), spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        case [script, *arguments]:
            sys.argv[:] = [script, *arguments]
            file = Path(script)
            module.__file__ = str(file.absolute())
            return str(file.absolute().parent), compile(file.read_bytes(), script, "exec", dont_inherit=True)
    raise AssertionError("no program")


if __name__ == "__main__":
    _wait_for_requests(socket.socket(fileno=int(sys.argv[1])))
