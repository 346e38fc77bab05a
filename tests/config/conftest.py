"""Fixtures with configuration files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certifi
import pytest
from echo_driver import Echo, EchoDriver

from evertick.config.load import Configuration, load_configuration
from evertick.driver import registry
from evertick.errors import InvalidConfiguration


@pytest.fixture(autouse=True)
def echo(monkeypatch: pytest.MonkeyPatch) -> type[EchoDriver]:
    """The driver "echo", registered as a third party's is."""
    entry = SimpleNamespace(name="echo", value="echo_driver:Echo", load=lambda: Echo)
    monkeypatch.setattr(registry, "_registered", lambda: {"echo": entry})
    monkeypatch.setattr(EchoDriver, "texts", [])
    monkeypatch.setattr(EchoDriver, "open", [])
    monkeypatch.setattr(EchoDriver, "has_begun", asyncio.Event(), raising=False)
    monkeypatch.setattr(EchoDriver, "may_end", asyncio.Event(), raising=False)
    return EchoDriver


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[..., Path]:
    def put(text: str, name: str = "evertick.toml", mode: int = 0o600) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return put


@pytest.fixture
def authority(folder: Path) -> Path:
    """A file of certificates, as `ca.pem`."""
    path = folder / "ca.pem"
    path.write_bytes(Path(certifi.where()).read_bytes())
    return path


@pytest.fixture
def load(folder: Path, write: Callable[..., Path]) -> Callable[..., Configuration]:
    """Load a text as ./evertick.toml, with only this environment."""

    def read(text: str, environ: Mapping[str, str] | None = None, **flags: tuple[str, Any]) -> Configuration:
        write(text)
        given = {key.replace("__", "."): each for key, each in flags.items()}
        return load_configuration(None, {"HOME": str(folder), **(environ or {})}, given)

    return read


@pytest.fixture
def problems(load: Callable[..., Configuration]) -> Callable[..., list[str]]:
    """The errors of a text."""

    def refused(text: str, environ: Mapping[str, str] | None = None, **flags: tuple[str, Any]) -> list[str]:
        with pytest.raises(InvalidConfiguration) as wrong:
            load(text, environ, **flags)
        return list(wrong.value.problems)

    return refused
