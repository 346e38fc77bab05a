"""The version of this package, and the commit that it was built from."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["COMMIT_FILE", "VERSION", "commit"]

VERSION = "0.1.0"

# Written into the sdist and the wheel by setup.py; a checkout has none.
COMMIT_FILE = "commit.txt"
_GIT_SECONDS = 5.0


def commit() -> str | None:
    """The short hash, with `-dirty` after it for a checkout with changes; None where it is unknown."""
    here = Path(__file__).parent
    try:
        if (here / COMMIT_FILE).exists():
            return (here / COMMIT_FILE).read_text(encoding="ascii").strip() or None
        root = here.parents[1]
        # A package installed into the environment of another project must not answer with that project's commit.
        if here.parent.name != "src" or not (root / ".git").exists():
            return None
        git = ["git", "--no-optional-locks", f"--git-dir={root / '.git'}", f"--work-tree={root}"]
        describe = ["describe", "--always", "--exclude=*", "--abbrev=7", "--dirty"]
        answer = subprocess.run(  # noqa: S603
            [*git, *describe], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
        return answer.stdout.strip() or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
