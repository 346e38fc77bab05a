"""The operator of a NATS server: keys, and the JWTs that say who may use it. As `nsc` makes them, without `nsc`."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nkeys

__all__ = ["Operator"]

_UNLIMITED = -1
_ACCOUNT_LIMITS = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), _UNLIMITED),
    "wildcards": True,
}
_JETSTREAM_LIMITS = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), _UNLIMITED)
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------

*************************************************************
"""


class _Key:
    def __init__(self, kind: int) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed, "ascii"))
        self.public: str = self._pair.public_key.decode()

    def says(self, whom: str, name: str, claims: dict[str, Any], *, until: float | None = None) -> str:
        """A JWT about somebody, signed by this key."""
        body = {"jti": name, "iat": int(time.time()), "iss": self.public, "sub": whom, "name": name}
        expiry = {} if until is None else {"exp": int(until)}
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        signed = f"{_part(head)}.{_part({**body, **expiry, 'nats': {**claims, 'version': 2}})}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


class Operator:
    """One account, with JetStream or without, and any number of its users."""

    def __init__(self, *, has_jetstream: bool = True) -> None:
        self._limits = _ACCOUNT_LIMITS | (_JETSTREAM_LIMITS if has_jetstream else {})
        self._own, self._account = _Key(nkeys.PREFIX_BYTE_OPERATOR), _Key(nkeys.PREFIX_BYTE_ACCOUNT)

    def conf(self) -> str:
        """For the configuration of a server, which then knows nobody but the users of this operator."""
        system = _Key(nkeys.PREFIX_BYTE_ACCOUNT)
        operator = self._own.says(self._own.public, "operator", {"type": "operator"})
        accounts = {
            key.public: self._own.says(key.public, name, {"type": "account", "limits": limits})
            for key, name, limits in ((self._account, "shop", self._limits), (system, "SYS", {}))
        }
        known = "\n".join(f"  {public}: {jwt}" for public, jwt in accounts.items())
        return (
            f"operator: {operator}\nsystem_account: {system.public}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{known}\n}}\n"
        )

    def give(self, file: Path, *, until: float | None = None, subjects: Sequence[str] = (">",)) -> Path:
        """Credentials of a new user, good until then, who may speak and listen there."""
        user, may = _Key(nkeys.PREFIX_BYTE_USER), {"allow": list(subjects)}
        claims = {"type": "user", "pub": may, "sub": may, **dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)}
        jwt = self._account.says(user.public, file.stem, claims, until=until)
        file.write_text(_CREDENTIALS.format(jwt=jwt, seed=user.seed))
        return file


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
