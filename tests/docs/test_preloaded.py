"""A program run by the preloaded interpreter sees and does what it would under `python -W error`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from preloaded import Preloaded, preloaded
from programs import clean_environment


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Preloaded]:
    with preloaded(clean_environment()) as interpreter:
        yield interpreter


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
    ],
)
def test_it_ends_as_it_would_by_itself(text: str, code: int, said: str, interpreter: Preloaded, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(text)
    ended, output = interpreter.run("example.py", tmp_path)
    assert (ended, said in output) == (code, True), output


def test_it_is_the_program_in_its_folder_and_leaves_the_next_one_nothing(
    interpreter: Preloaded, tmp_path: Path
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/beside.py").write_text("")
    (tmp_path / "shop/example.py").write_text(
        "import os, sys, beside\n"
        "import __main__\n"
        "assert 'left' not in vars(os), 'the one before is still there'\n"
        "os.left = True\n"
        "print(os.getcwd(), __file__, __main__.__file__, sys.argv, __name__, sep='\\n')\n"
    )
    file = tmp_path / "shop/example.py"
    for _ in range(2):
        code, output = interpreter.run("shop/example.py", tmp_path)
        assert code == 0, output
        assert output.splitlines() == [str(tmp_path), str(file), str(file), "['shop/example.py']", "__main__"]
