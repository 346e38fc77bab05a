"""Certificates for the tests, made by the `openssl` command, and the settings of a server that shows or wants them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.postgres import other_user

__all__ = ["Certificates", "certificates"]

# What RFC 5280 demands, and Python from 3.13 on checks.
_OF_AUTHORITY = (
    "basicConstraints = critical, CA:TRUE",
    "keyUsage = critical, keyCertSign, cRLSign",
    "subjectKeyIdentifier = hash",
)
_OF_ISSUED = (
    "basicConstraints = CA:FALSE",
    "keyUsage = critical, digitalSignature",
    "subjectKeyIdentifier = hash",
    "authorityKeyIdentifier = keyid",
)


class Certificates:
    """An authority, a server that it vouches for (as `localhost`), a client (as `postgres`), and a stranger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = self._authority("authority")
        self.stranger = self._authority("stranger")
        self._issue("server", "localhost", "subjectAltName=DNS:localhost")
        self._issue("client", "postgres")
        self.client, self.client_key = folder / "client.crt", folder / "client.key"

    def server_settings(self, *, asks_for_certificate: bool) -> dict[str, str]:
        """Only encrypted connections are let in; with a password or, if it asks for that, with a certificate."""
        rules = self.folder / ("cert.conf" if asks_for_certificate else "trust.conf")
        method = "cert" if asks_for_certificate else "trust"
        # By a local socket for whoever looks whether the server is there.
        rules.write_text(f"hostssl all all 127.0.0.1/32 {method}\nlocal all all trust\n")
        return {
            "ssl": "on",
            "ssl_cert_file": str(self.folder / "server.crt"),
            "ssl_key_file": str(self.folder / "server.key"),
            "ssl_ca_file": str(self.ca),
            "hba_file": str(rules),
        }

    def _authority(self, name: str) -> Path:
        made, settings = self.folder / f"{name}.crt", self.folder / f"{name}.conf"
        # A file of its own: that of the system may bring extensions, too, and none may be there twice.
        settings.write_text(
            "\n".join(["[req]", "distinguished_name = name", "[name]", "[authority]", *_OF_AUTHORITY, ""])
        )
        how = ["-x509", "-days", "2", "-config", str(settings), "-extensions", "authority"]
        self._openssl("req", *how, *self._new_key(name), "-subj", f"/CN={name}", "-out", str(made))
        return made

    def _issue(self, name: str, subject: str, *more: str) -> None:
        request = self.folder / f"{name}.csr"
        self._openssl("req", *self._new_key(name), "-subj", f"/CN={subject}", "-out", str(request))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text("\n".join([*_OF_ISSUED, *more, ""]))
        authority = ["-CA", str(self.ca), "-CAkey", str(self.folder / "authority.key"), "-CAcreateserial"]
        made = ["-in", str(request), "-extfile", str(extensions), "-out", str(self.folder / f"{name}.crt")]
        self._openssl("x509", "-req", "-days", "2", *authority, *made)

    def _new_key(self, name: str) -> list[str]:
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return [*kind, "-keyout", str(self.folder / f"{name}.key")]

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@contextmanager
def certificates() -> Iterator[Certificates]:
    """In a folder that the server can read, though it runs as another user."""
    folder = Path(tempfile.mkdtemp(prefix="evtls"))
    try:
        made, user = Certificates(folder), other_user()
        # A server accepts a key only if nobody but itself can read it.
        for path in (folder, *folder.iterdir()):
            if user is not None:
                os.chown(path, user, -1)
        for path in folder.glob("*.key"):
            path.chmod(0o600)
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)
