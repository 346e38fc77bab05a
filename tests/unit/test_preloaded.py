"""A program that starts as a copy of a loaded interpreter sees and does what `python -W error` makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded

STRICT = [sys.executable, "-W", "error"]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("print('done')", 0, "done"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end"),
        ("raise SystemExit(3)", 3, ""),
        ("\n1 / 0", 1, 'example.py", line 2'),
        ("import warnings; warnings.warn('old')", 1, "UserWarning: old"),
        ("import os; os.abort()", -6, ""),
        ("print(Scheduler)", 1, "NameError"),
        ("import threading; threading.Timer(0.01, print, ['of a thread']).start()", 0, "of a thread"),
    ],
)
def test_it_ends_as_it_would_by_itself(text: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(text)
    done = preloaded.run([*STRICT, "example.py"], cwd=tmp_path, timeout=30)
    output = done.stdout + done.stderr
    assert (done.returncode, said in output) == (code, True), output


def test_it_is_the_program_in_its_folder_and_leaves_the_next_one_nothing(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/beside.py").write_text("")
    (tmp_path / "shop/example.py").write_text(
        "import os, sys, beside\n"
        "import __main__\n"
        "assert 'left' not in vars(os), 'the one before is still there'\n"
        "os.left = True\n"
        "print(os.getcwd(), __file__, __main__.__file__, sys.argv, __name__, os.getppid(), sep='\\n')\n"
    )
    file = tmp_path / "shop/example.py"
    for _ in range(2):
        done = preloaded.run([*STRICT, "shop/example.py"], cwd=tmp_path, timeout=30)
        assert done.stdout.splitlines() == [
            *(str(tmp_path), str(file), str(file), "['shop/example.py']", "__main__", str(os.getpid()))
        ], done.stderr


@pytest.mark.parametrize("words", [["-c", "PROGRAM"], ["-m", "program"], ["program.py"]])
def test_it_has_the_arguments_the_variables_and_the_path_of_a_new_interpreter(words: list[str], tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv, sys.path[:2], os.environ, __package__, sys.stdout.isatty(), flush=True)"
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, *(program if word == "PROGRAM" else word for word in words), "--flag", "ä"]
    mine = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LC_", "LANG"))}
    place = {"cwd": tmp_path, "env": mine | {"PYTHONPATH": "/nowhere", "NAME": "ä"}}
    usual = subprocess.run(command, capture_output=True, text=True, timeout=30, **place)  # type: ignore[call-overload]
    done = preloaded.run(command, timeout=30, **place)
    assert (done.returncode, done.stdout, done.stderr) == (0, usual.stdout, "")


def test_it_gets_signals_and_can_be_waited_for_as_any_child(tmp_path: Path) -> None:
    text = "import time; print('begun', flush=True); time.sleep(100)"
    for number in (signal.SIGTERM, signal.SIGKILL):
        with preloaded.popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            assert process.poll() is None
            process.send_signal(number)
        assert process.returncode == -number


@pytest.mark.parametrize(("unbuffered", "said"), [("", ""), ("1", "at once\n")])
def test_its_output_is_buffered_as_the_environment_says(unbuffered: str, said: str) -> None:
    program = "import os; print('at once'); os._exit(0)"
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    assert preloaded.run([sys.executable, "-c", program], env=environment, timeout=30).stdout == said
