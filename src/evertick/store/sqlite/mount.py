"""Which file system a file is on: SQLite's locks do not hold on a network share."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MOUNTS", "NETWORK_FILE_SYSTEMS", "file_system_of"]

NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "smb3", "smbfs", "vboxsf"}
)
MOUNTS = Path("/proc/self/mountinfo")
# As the kernel writes what would break its columns.
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def file_system_of(path: Path, mounts: Path | None = None) -> str | None:
    """The type of the file system, like "ext4"; None where the system does not tell."""
    try:
        lines = (mounts or MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    there, found, depth = path.resolve(), None, -1
    for line in lines:
        before, _, after = line.partition(" - ")
        columns = before.split()
        if len(columns) < 5 or not after:
            continue
        point = Path(_unescaped(columns[4]))
        # The last of equally deep mounts hides the others.
        if (point == there or point in there.parents) and len(point.parts) >= depth:
            found, depth = after.split()[0], len(point.parts)
    return found


def _unescaped(text: str) -> str:
    for escape, letter in _ESCAPES.items():
        text = text.replace(escape, letter)
    return text
