"""A certificate for localhost, and the authority that vouches for it, made by openssl."""

import shutil
import subprocess
from pathlib import Path

from tests.support.server_base import ServerError

# Python 3.13 is strict about what an authority must say of itself.
_CONFIGURATION = """
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
subjectAltName = DNS:localhost, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class OpensslMissing(ServerError):
    """This machine has no openssl."""


class Certificates:
    """Files of a directory, for a day."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = directory / "authority.crt"
        self.certificate = directory / "server.crt"
        self.key = directory / "server.key"

    def make(self) -> None:
        if not shutil.which("openssl"):
            raise OpensslMissing("no openssl on the PATH, which makes the certificate")
        (self._directory / "openssl.cnf").write_text(_CONFIGURATION)
        self._make("authority", [])
        self._make("server", ["-CA", self.authority, "-CAkey", self._directory / "authority.key"])

    def _make(self, name: str, signed_by: list[str | Path]) -> None:
        key, request = self._directory / f"{name}.key", self._directory / f"{name}.csr"
        self._openssl(
            *("req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN=task locks {name}"),
            *("-keyout", key, "-out", request),
        )
        self._openssl(
            *(
                "x509",
                "-req",
                "-days",
                "1",
                "-in",
                request,
                "-out",
                self._directory / f"{name}.crt",
            ),
            *("-extfile", "openssl.cnf", "-extensions", name),
            *([*signed_by, "-CAcreateserial"] if signed_by else ["-signkey", key]),
        )

    def _openssl(self, *arguments: str | Path) -> None:
        done = subprocess.run(
            ["openssl", *arguments],
            cwd=self._directory,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "OPENSSL_CONF": "openssl.cnf"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise ServerError(f"openssl {arguments[0]} failed:\n{done.stdout}")
