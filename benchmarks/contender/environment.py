"""The environment of each peer: a virtual environment, or a folder of Node modules, kept for later runs.

`folder/NAME` is complete if it has the file `installed`. A peer that cannot be installed is reported and left out.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contender.contenders import Contender

__all__ = ["Environment", "Unavailable", "environment_of"]

_INSTALL_SECONDS = 600
_DONE = "installed"


class Unavailable(Exception):
    """A peer cannot be installed here; the text gives the reason."""


@dataclass(frozen=True)
class Environment:
    """How the program of a contender is started, and the versions of its libraries."""

    command: tuple[str, ...]
    variables: dict[str, str]
    versions: dict[str, str]
    folder: Path | None = None


def environment_of(contender: Contender, folder: Path) -> Environment:
    if not contender.is_peer:
        return Environment((sys.executable,), {}, {})
    own = folder.resolve() / (contender.environment or contender.name)
    try:
        if not (own / _DONE).exists():
            shutil.rmtree(own, ignore_errors=True)
            print(f"installing  {contender.title}: {' '.join(contender.pip or contender.npm)}", flush=True)
            (_install_npm if contender.npm else _install_pip)(contender, own)
            (own / _DONE).touch()
        versions = _versions_of_npm(contender, own) if contender.npm else _versions_of_pip(contender, own)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or str(error)).strip().splitlines()
        raise Unavailable(lines[-1] if lines else str(error)) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from None
    if contender.npm:
        return Environment(("node",), {"NODE_PATH": str(own / "node_modules")}, versions, own)
    return Environment((str(_python(own)),), {}, versions, own)


def _python(own: Path) -> Path:
    return own / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def _install_pip(contender: Contender, own: Path) -> None:
    _run([sys.executable, "-m", "venv", str(own)])
    _run([str(_python(own)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *contender.pip])


def _versions_of_pip(contender: Contender, own: Path) -> dict[str, str]:
    """Installed versions of its requirements and drivers."""
    wanted = {_bare(requirement) for requirement in (*contender.pip, *contender.drivers)}
    folders = [str(each) for each in own.glob("lib/python*/site-packages")]
    found = {each.name: each.version for each in importlib.metadata.distributions(path=folders)}
    return {name: found[name] for name in sorted(found, key=str.lower) if _bare(name) in wanted}


def _bare(requirement: str) -> str:
    name = requirement
    for sign in "[<>=!~":
        name = name.partition(sign)[0]
    return name.lower()


def _install_npm(contender: Contender, own: Path) -> None:
    _node_version()  # raises if there is no Node
    own.mkdir(parents=True)
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(own), *contender.npm])


def _versions_of_npm(contender: Contender, own: Path) -> dict[str, str]:
    versions = {"node": _node_version()}
    for wanted in contender.npm:
        name = wanted.rpartition("@")[0]
        versions[name] = json.loads((own / "node_modules" / name / "package.json").read_text())["version"]
    return versions


def _node_version() -> str:
    return _run(["node", "--version"]).strip().removeprefix("v")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    return done.stdout
