"""A primary, a replica and a sentinel that makes the one the other when the first is gone."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.server_base import ServerError, Startable
from tests.support.servers import ValkeyServer

SERVICE = "locks-primary"


class SentinelServer(ValkeyServer):
    """The watcher, which rewrites its own configuration."""

    def __init__(self, primary: ValkeyServer) -> None:
        super().__init__(tcp=True)
        self.options = {
            "sentinel monitor": f"{SERVICE} 127.0.0.1 {primary.port} 1",
            # Soon, but not because a machine is busy for a moment.
            "sentinel down-after-milliseconds": f"{SERVICE} 1000",
            "sentinel failover-timeout": f"{SERVICE} 10000",
        }

    def command(self) -> list[str | Path]:
        return [*super().command(), "--sentinel"]

    def primary_port(self) -> int:
        with self.client() as client:
            return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def replicas(self) -> list[dict[str, Any]]:
        with self.client(decode_responses=True) as client:
            return list(client.sentinel_slaves(SERVICE))

    def fail_over(self) -> None:
        with self.client() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE, "COORDINATED")


class SentinelGroup(Startable):
    """Options are those of both servers' valkey.conf."""

    def __init__(self, **options: str | int) -> None:
        options = {"repl_diskless_sync_delay": 0, **options}
        self.servers = [ValkeyServer(None, tcp=True, **options) for _ in range(2)]
        self.sentinel = SentinelServer(self.servers[0])

    def start(self) -> Self:
        first, second = self.servers
        first.start()
        second.options["replicaof"] = f"127.0.0.1 {first.port}"
        second.start()
        self.sentinel.start()
        self._wait_until(self._has_replica, "the sentinel does not know of the replica")
        return self

    def close(self) -> None:
        for server in (self.sentinel, *self.servers):
            server.close()

    @property
    def sentinels(self) -> list[tuple[str, int]]:
        """As redis-py and django-redis name them."""
        return [("127.0.0.1", self.sentinel.port or 0)]

    @property
    def primary(self) -> ValkeyServer:
        """Whoever is it, as the sentinel says."""
        port = self.sentinel.primary_port()
        return next(server for server in self.servers if server.port == port)

    def replicate(self) -> None:
        """Returns when the replica has what the primary has."""
        with self.primary.client() as client:
            client.set("replicated", 1)
            if client.wait(1, 4_000) != 1:
                raise ServerError("the replica does not follow")

    def kill_primary(self) -> ValkeyServer:
        """Returns at once with the dead one; what it had, the replica has."""
        self.replicate()
        dead = self.primary
        dead.kill()
        return dead

    def wait_for_failover(self, dead: ValkeyServer) -> None:
        def is_over() -> bool:
            return self.primary is not dead and self._role(self.primary) == "master"

        self._wait_until(is_over, "nobody became the primary")

    def fail_over(self) -> None:
        """The two change places: the old primary serves nobody from the moment when the new one
        does."""
        self.replicate()
        before = self.primary
        self.sentinel.fail_over()
        self.wait_for_failover(before)

    def replace_primary(self) -> None:
        """The primary dies, and the replica becomes it."""
        self.wait_for_failover(self.kill_primary())

    # ------------------------------------------------------------------------------------------

    def _role(self, server: ValkeyServer) -> str:
        with server.client() as client:
            return str(client.info("replication")["role"])

    def _has_replica(self) -> bool:
        return [replica["master-link-status"] for replica in self.sentinel.replicas()] == ["ok"]

    def _wait_until(self, predicate: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + 30
        while not predicate():
            if time.monotonic() > deadline:
                raise ServerError(f"{problem}:\n{self.sentinel.log()}")
            time.sleep(0.02)
