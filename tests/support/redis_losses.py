"""Ways in which Redis loses locks, each by a deployment of its own."""

import os
from abc import abstractmethod
from pathlib import Path
from typing import Self

from tests.support.server_base import Startable, make_directory
from tests.support.servers import ValkeyServer


class Deployment(Startable):
    """What clients reach at `url`, and one of them at `left_url`: the same server, before."""

    def __init__(self, server: ValkeyServer | None = None) -> None:
        self.server = server or ValkeyServer()

    def start(self) -> Self:
        self.server.start()
        return self

    def close(self) -> None:
        self.server.close()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def left_url(self) -> str:
        return self.url

    def stop_following(self) -> None:
        """What is written from now on is not written twice."""

    @abstractmethod
    def lose(self) -> None: ...


class Flush(Deployment):
    """FLUSHALL."""

    def lose(self) -> None:
        with self.server.client() as client:
            client.flushall()


class EmptyRestart(Deployment):
    """SIGKILL of a server without persistence."""

    def lose(self) -> None:
        self.server.kill()
        self.server.start()


class FullRestart(EmptyRestart):
    """SIGKILL of a server that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(ValkeyServer(appendonly="yes", appendfsync="always"))


class Failover(Deployment):
    """The replica takes the place of a primary that dies, and lacks what came last."""

    def __init__(self) -> None:
        super().__init__(ValkeyServer(tcp=True))
        self.replica = ValkeyServer(replicaof=f"127.0.0.1 {self.server.port}")
        self._directory = make_directory()
        self._address = self._directory / "present.sock"

    def start(self) -> Self:
        super().start()
        self.server.client().config_set("repl-diskless-sync-delay", 0)
        self._point_at(self.server)
        self.replica.start()
        return self

    def close(self) -> None:
        self.replica.close()
        super().close()
        self._address.unlink()
        self._directory.rmdir()

    @property
    def url(self) -> str:
        return f"unix://{self._address}"

    def stop_following(self) -> None:
        with self.server.client() as primary, self.replica.client() as replica:
            primary.set("replicated", 1)
            assert primary.wait(1, 10_000) == 1
            replica.replicaof("NO", "ONE")
            self.replica.options.pop("replicaof")

    def lose(self) -> None:
        self._point_at(self.replica)
        self.server.kill()

    def _point_at(self, server: ValkeyServer) -> None:
        new = Path(f"{self._address}.new")
        new.symlink_to(server.socket_path)
        os.replace(new, self._address)


class SplitBrain(Failover):
    """The same, and the primary lives on for one of its clients."""

    @property
    def left_url(self) -> str:
        return self.server.url

    def lose(self) -> None:
        self._point_at(self.replica)
        with self.server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
