"""Reasons for which a server refuses every write, or every command, while it lives. It is one with
`save="3600 1", busy_reply_threshold=10`.
"""

from pathlib import Path
from threading import Thread

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from tests.support.servers import ValkeyServer


class Refusal:
    """From `begin` to `end`."""

    def __init__(self, server: ValkeyServer, control: Redis) -> None:
        self.server = server
        self.control = control

    is_for_lack_of_memory = False

    def begin(self) -> None: ...

    def end(self) -> None: ...


class ReadOnly(Refusal):
    def begin(self) -> None:
        self.control.replicaof("127.0.0.1", 1)

    def end(self) -> None:
        self.control.replicaof("NO", "ONE")


class OutOfMemory(Refusal):
    is_for_lack_of_memory = True

    def begin(self) -> None:
        self.control.config_set("maxmemory", 1)

    def end(self) -> None:
        self.control.config_set("maxmemory", 0)


class NoReplicas(Refusal):
    def begin(self) -> None:
        self.control.config_set("min-replicas-to-write", 1)

    def end(self) -> None:
        self.control.config_set("min-replicas-to-write", 0)


class CannotSave(Refusal):
    @property
    def in_the_way(self) -> Path:
        return self.server.directory / "dump.rdb"

    def begin(self) -> None:
        self.in_the_way.unlink(missing_ok=True)
        self.in_the_way.mkdir()
        with pytest.raises(ResponseError):
            self.control.save()
        self.control.bgsave()
        while self.control.info("persistence")["rdb_last_bgsave_status"] != "err":
            pass

    def end(self) -> None:
        self.in_the_way.rmdir()
        self.control.save()


class Busy(Refusal):
    """Somebody's script does not end."""

    def begin(self) -> None:
        self._thread = Thread(target=self._run)
        self._thread.start()
        while not self._is_refused():
            pass

    def end(self) -> None:
        self.control.script_kill()
        self._thread.join()

    def _run(self) -> None:
        with self.server.client() as client, pytest.raises(ResponseError, match="killed"):
            client.eval("while true do end", 0)

    def _is_refused(self) -> bool:
        try:
            self.control.get("x")
        except ResponseError as error:
            return str(error).startswith("BUSY")
        return False
