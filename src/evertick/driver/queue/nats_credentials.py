"""A file of NATS credentials, as the operator of a server gives it out: who asks (a JWT), and the key that proves it.

It is read whenever a line is made, so a file that was exchanged counts from the next line on. It is read here and not
by the library, which goes on looking for ever in a file that has no JWT. Of the key nothing is shown.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from evertick.errors import BrokerUnavailable
from evertick.text.regular_file import read_regular

__all__ = ["CredentialsFile"]

_MOST_BYTES = 64 * 1024
_SHAPE = "it begins with -----BEGIN NATS USER JWT-----, and `nsc generate creds` writes it"
_JWT = re.compile(rb"-{3,}BEGIN NATS USER JWT-{3,}\s+([\w.=-]+)\s+-{3,}END NATS USER JWT-{3,}")
_SEED = re.compile(rb"-{3,}BEGIN USER NKEY SEED-{3,}\s+(SU[A-Z2-7]+)\s+-{3,}END USER NKEY SEED-{3,}")


class CredentialsFile:
    """One such file, for the server that is shown."""

    def __init__(self, file: str, shown: str) -> None:
        self._file, self._shown = file, shown

    def signing(self) -> dict[str, Any]:
        """How the library answers a server that asks who we are. Raises BrokerUnavailable: which file, what helps."""
        jwt, seed = self._read()
        self._sign(seed, b"")  # a key that cannot sign is told of before anybody is asked
        return {
            "user_jwt_cb": lambda: bytearray(jwt),
            "signature_cb": lambda nonce: base64.b64encode(self._sign(seed, nonce.encode())),
        }

    def refused(self, said: str) -> str:
        """In words: the server does not want them."""
        why = f"the server does not take the credentials in {self._file}"
        return f"{why}; ask its operator for a file of an account that it knows, and that has not run out ({said})"

    def _read(self) -> tuple[bytes, bytes]:
        try:
            text = read_regular(self._file, _MOST_BYTES)
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror}; make it, or correct the path") from None
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None:
            raise self._wrong(
                f"is no file of NATS credentials, for it has no JWT of a user; such a file is text: {_SHAPE}"
            )
        if seed is None:
            raise self._wrong(f"has the JWT of a user and not its key; take the whole file: {_SHAPE}")
        return jwt[1], seed[1]

    def _sign(self, seed: bytes, nonce: bytes) -> bytes:
        try:
            import nkeys
        except ModuleNotFoundError:
            raise self._wrong("cannot be used without the package nkeys; install evertick[nats]") from None
        try:
            pair = nkeys.from_seed(bytearray(seed))
            signed: bytes = pair.sign(nonce)
            pair.wipe()
        except (nkeys.NkeysError, ValueError):
            raise self._wrong("has a key that is damaged; copy the file once more, from whoever made it") from None
        return signed

    def _wrong(self, what: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self._shown}: credentials: {self._file} {what}")
