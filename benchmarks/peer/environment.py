"""The virtual environment of the peers, made when it is asked for, and one measurement of one peer in it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ledger import SqliteLedger
from benchmarks.size import Size

__all__ = ["PEERS", "Peer", "Unavailable", "install", "measure", "versions"]

_INSTALL_SECONDS = 180
_MEASURE_SECONDS = 600


@dataclass(frozen=True)
class Peer:
    """Another scheduler: its name in figures and in the registry, what it needs, its program beside this file."""

    name: str
    requirements: tuple[str, ...]
    program: str


PEERS = (
    Peer("huey", ("huey>=2.5",), "huey_program.py"),
    Peer("apscheduler", ("apscheduler>=3.11,<4", "sqlalchemy>=2"), "apscheduler_program.py"),
)


class Unavailable(Exception):
    """The peers cannot be installed here; the text says why."""


def install(folder: Path) -> Path:
    """The interpreter of an environment that has all peers."""
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    wanted = [requirement for peer in PEERS for requirement in peer.requirements]
    try:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or str(error)).strip().splitlines()
        raise Unavailable(said[-1] if said else str(error)) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from None
    return python.absolute()


def versions(python: Path) -> dict[str, str]:
    """Which version of each peer is installed."""
    program = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    names = [peer.name for peer in PEERS]
    done = subprocess.run([str(python), "-c", program, *names], check=True, capture_output=True, text=True)
    return dict(zip(names, done.stdout.split(), strict=True))


def measure(ledger: SqliteLedger, size: Size, peer: Peer, python: Path) -> dict[str, float]:
    program = Path(__file__).with_name(peer.program)
    command = [str(python), str(program), str(ledger.path.with_name("peer.db").resolve()), str(size.peer_runs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MEASURE_SECONDS)
    if done.returncode != 0:
        # What a peer does wrong must not cost the figures of the round.
        print(f"{peer.name} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}", flush=True)
        return {}
    answer = json.loads(done.stdout.splitlines()[-1])
    return {f"{peer.name}_execute": answer["execute"], f"{peer.name}_enqueue": answer["enqueue"]}


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
