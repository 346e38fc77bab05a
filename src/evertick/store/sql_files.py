"""SQL files of a store: named statements, and numbered migrations, each applied once.

An applied migration must never change; its checksum detects that. `compatible_from` in its first line is the oldest
code that may still use the store, so that nodes can be updated one by one. Each store applies migrations in its own
way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from evertick.errors import StoreRefused
from evertick.store.base import MigrateMode

__all__ = [
    "Migration",
    "load_statements",
    "pending",
    "read_migrations",
    "refuse_newer",
    "without_meta",
    "without_migrations",
]

# --- statements -------------------------------------------------------------------------------------------------------


# A statement, or a part: text that replaces `@name` in statements.
_HEAD = re.compile(r"^-- (name|part): (\S+)\n", re.MULTILINE)
_PART = re.compile(r"@(\w+)")


def load_statements(path: Path) -> dict[str, str]:
    statements: dict[str, str] = {}
    parts: dict[str, str] = {}
    _, *blocks = _HEAD.split(path.read_text(encoding="utf-8"))
    for kind, name, text in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        known = parts if kind == "part" else statements
        assert name not in known, f"two statements are called {name}"
        # Without comments, because databases store the text of every prepared statement.
        lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
        whole = "\n".join(lines).rstrip(";\n ")
        known[name] = _PART.sub(lambda part: parts[part[1]], whole)
    return statements


# --- migrations -------------------------------------------------------------------------------------------------------


_COMPATIBLE = "-- compatible_from:"


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    name: str
    checksum: str
    compatible_from: int
    text: str


def read_migrations(folder: Path, version: int) -> tuple[Migration, ...]:
    """All migrations up to the version of this code, without gaps."""
    found = tuple(_read(path) for path in sorted(folder.glob("[0-9]*.sql")))
    assert [migration.version for migration in found] == list(range(1, version + 1))
    return found


def pending(
    known: Sequence[Migration], applied: Mapping[int, str], description: str, mode: MigrateMode = "auto"
) -> list[Migration]:
    """Missing migrations. Refuses a migration whose content has changed, and in mode check any missing one."""
    for migration in known:
        if applied.get(migration.version, migration.checksum) != migration.checksum:
            raise StoreRefused(
                f"the migration {migration.name} was applied to the {description} with other content than it has here",
                fix="install the release that created the store, or a newer one",
            )
    missing = [migration for migration in known if migration.version not in applied]
    if missing and mode == "check":
        names = ", ".join(migration.name for migration in missing)
        raise StoreRefused(
            f"the {description} lacks the migrations {names}",
            fix='apply them with `evertick db migrate --database URL`, or start one node with migrate="auto"',
        )
    return missing


def refuse_newer(version: int, compatible_from: int, known: int, description: str) -> None:
    """Refuse a store that requires newer code than this."""
    if compatible_from > known:
        raise StoreRefused(
            f"the {description} is newer than this code: its schema version {version} requires code of version "
            f"{compatible_from} or newer, and this code has version {known}",
            fix="update Evertick",
        )


def without_meta(description: str, how: Literal["empty", "missing"]) -> StoreRefused:
    """The first migration creates `meta` together with the list of migrations, and nothing removes it."""
    return StoreRefused(f"the {description} is damaged: its table meta is {how}", fix="restore it from a backup")


def without_migrations(description: str, how: Literal["empty", "missing"], place: str) -> StoreRefused:
    return StoreRefused(
        f"the {description} has tables of Evertick, but its list of migrations is {how}, so their version is unknown",
        fix=f"restore it from a backup, or start with another {place}",
    )


def _read(path: Path) -> Migration:
    content = path.read_bytes()
    text = content.decode()
    first, _, rest = text.partition("\n")
    assert first.startswith(_COMPATIBLE), f"{path.name} must begin with '{_COMPATIBLE} <version>'"
    return Migration(
        version=int(path.name[:4]),
        name=path.stem,
        checksum=hashlib.sha256(content).hexdigest(),
        compatible_from=int(first.removeprefix(_COMPATIBLE)),
        text=rest,
    )
