"""Runs programs, one after the other, each in a process of its own that is a copy of this one: with Evertick loaded.

`python preloaded.py` reads a line of JSON per program and answers with its exit code. Loading is three quarters of what
most examples take; nothing else is shared: a program has its modules and its end to itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

SECONDS_MAX = 30.0


class Preloaded:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, program: str, folder: Path) -> tuple[int, str]:
        """The program to its end: the exit code, and what it has written."""
        output = folder / f"{Path(program).name}.output"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(folder), program, str(output)]), file=self._process.stdin, flush=True)
        code = self._process.stdout.readline()
        assert code, "the preloaded process is gone"
        return int(code), output.read_text(encoding="utf-8", errors="replace")


@contextmanager
def preloaded(environment: dict[str, str]) -> Iterator[Preloaded]:
    """Whatever warns is an error, while loading too."""
    arguments = [sys.executable, "-W", "error", __file__]
    with subprocess.Popen(
        arguments, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Preloaded(process)


def main() -> None:
    # The parts that a scheduler loads when it is first used.
    import evertick.engine.node
    import evertick.store.sqlite  # noqa: F401

    for line in sys.stdin:
        folder, program, output = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(folder, program, output)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(folder: str, program: str, output: str) -> None:
    """What `python PROGRAM` would have made of this process, which then ends as that would."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(written, 1)
    os.dup2(written, 2)
    # One that hangs says where.
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    file = Path(folder, program)
    sys.argv[:] = [program]
    sys.path[0] = str(file.parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(file)
    exec(compile(file.read_text(encoding="utf-8"), file, "exec", dont_inherit=True), vars(module))


if __name__ == "__main__":
    main()
