"""The keys of one section that say where a server is, and who asks: a URL, or its parts, and a password.

A URL of a stronger layer replaces the parts of a weaker one: `EVERTICK_DATABASE` alone moves a node to another
database, whatever the file says of the first. Said twice in one layer, it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from evertick.config.layer import Value
from evertick.config.origin import Origin
from evertick.config.problem import Problems
from evertick.config.reading import fix_for
from evertick.text.redact import masked
from evertick.text.regular_file import read_regular

__all__ = ["PARTS", "SectionKeys", "Warn"]

PARTS = ("address", "name", "user")
_PASSWORD_MAX_BYTES = 4_096
_HOST = re.compile(r"(?P<host>[^\s:/@?#\[\]]+|\[[^\s/@?#\[\]]+\])(?::(?P<port>\d{1,5}))?")

Warn = Callable[[str], None]


class SectionKeys:
    """The keys of one section that are set, by their names in it."""

    def __init__(self, section: str, values: Mapping[str, Value], problems: Problems, warn: Warn) -> None:
        self.section = section
        before = f"{section}."
        own = {key.removeprefix(before): each for key, each in values.items() if key.startswith(before)}
        # Whether one of them was refused before: what the others say together is then not what was meant.
        self.is_half = any(each.is_refused for each in own.values())
        self._set = {name: each for name, each in own.items() if each.is_set}
        self._problems, self._warn = problems, warn

    def get(self, name: str) -> Value | None:
        return self._set.get(name)

    def text(self, name: str) -> str | None:
        found = self._set.get(name)
        return None if found is None else str(found.value)

    def path(self, name: str) -> Path | None:
        found = self._set.get(name)
        return None if found is None else Path(found.value)

    def first(self, *names: str) -> str | None:
        """The first of these that is set."""
        return next((name for name in names if name in self._set), None)

    def drop_weaker(self, than: Origin) -> None:
        self._set = {name: each for name, each in self._set.items() if each.origin.rank >= than.rank}

    def refuse(self, name: str, said: str) -> None:
        found = self._set.get(name)
        self._problems.add("" if found is None else found.origin.place, f"{self.section}.{name}", said)

    def refuse_password_of_nobody(self) -> None:
        """Where the password stands, for the user stands nowhere."""
        name = self.first("password", "password_file") or "password"
        self.refuse(name, f"no user is given that has it; write {self.section}.user, too")

    def url(self) -> Value | None:
        """The URL that counts, if one does; what the parts say then of another place is gone."""
        url = self._set.get("url")
        if url is None:
            return None
        parts = {name: self._set[name] for name in PARTS if name in self._set}
        strongest = max((each.origin.rank for each in parts.values()), default=-1)
        if strongest > url.origin.rank:
            del self._set["url"]
            return None
        self.drop_weaker(url.origin)
        for name in parts:
            if name in self._set:
                self.refuse(name, f"{self.section}.url ({url.origin}) says it already; keep one of the two")
        return url

    def hosts(self, example: str, *, most: int) -> list[str]:
        """Those of the address; an IPv6 address gets its brackets. What cannot be a host is refused."""
        parts = [part.strip() for part in (self.text("address") or "").split(",") if part.strip()]
        hosts = [f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host for host in parts]
        for host in hosts:
            found = _HOST.fullmatch(host)
            if found is None or not 0 < int(found["port"] or 1) < 2**16:
                # What stands in place of a port may be a password whose host was forgotten.
                shown = masked(f"x://{host}").removeprefix("x://")
                self.refuse("address", f"{shown!r:.100} is neither a host nor host:port; write it like {example!r}")
        if not hosts or len(hosts) > most:
            what = f"these are {len(hosts)} hosts" if hosts else "it names no host"
            self.refuse("address", f"{what}; write {'one' if most == 1 else 'it'} like {example!r}")
        return hosts

    def password(self) -> str | None:
        password, file = self._set.get("password"), self._set.get("password_file")
        if password is not None and file is not None:
            if password.origin.rank == file.origin.rank:
                self.refuse("password", f"{self.section}.password_file ({file.origin}) says it, too; keep one of them")
            elif password.origin.rank < file.origin.rank:
                password = None
        if password is not None or file is None:
            return None if password is None else str(password.value)
        return self._read_password(file)

    def _read_password(self, file: Value) -> str | None:
        try:
            content = read_regular(file.value, _PASSWORD_MAX_BYTES, may_be_stream=file.origin.layer == "flag")
            is_open = bool(Path(file.value).stat().st_mode & 0o004)
            password = content.decode().strip("\r\n")
        except OSError as error:
            self.refuse("password_file", f"{file.value} cannot be read: {error.strerror}; {fix_for(error)}")
            return None
        except UnicodeDecodeError:
            self.refuse("password_file", f"{file.value} is no UTF-8 text; write the password as text")
            return None
        if not password or len(content) > _PASSWORD_MAX_BYTES or "\n" in password or "\0" in password:
            self.refuse("password_file", f"{file.value} must hold one line, the password, and nothing else")
            return None
        if is_open:
            self._warn(f"{file.value}: everybody may read this password; run `chmod 600 {file.value}`")
        return password
