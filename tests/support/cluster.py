"""A Valkey cluster of three masters."""

import time
from collections.abc import Callable
from typing import Any, Self

import redis
from redis.cluster import ClusterNode, RedisCluster

from tests.support.server_base import ServerError, Startable, free_port
from tests.support.servers import ValkeyServer

SLOTS = 16384


class ClusterServer(ValkeyServer):
    """One node, with its own port and a free one for the bus."""

    def __init__(self, epoch: int, **options: str | int) -> None:
        self.epoch = epoch
        self.bus_port = free_port()
        super().__init__(
            None,
            tcp=True,
            cluster_enabled="yes",
            cluster_config_file="nodes.conf",
            cluster_port=self.bus_port,
            cluster_announce_ip="127.0.0.1",
            # Long enough for a machine that is busy elsewhere.
            cluster_node_timeout=15_000,
            **options,
        )

    def ask(self, *command: str | int) -> Any:
        with self.client(decode_responses=True) as client:
            return client.execute_command(*command)

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    def is_well(self, nodes: int) -> bool:
        with self.client() as client:
            info: dict[str, Any] = client.cluster("INFO")
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == nodes


class ValkeyCluster(Startable):
    """Three masters, each with a third of the slots. Options are those of valkey.conf."""

    def __init__(self, **options: str | int) -> None:
        self.nodes = [ClusterServer(epoch, **options) for epoch in (1, 2, 3)]

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", node.epoch)
        bounds = [SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        for node, first, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port or 0, node.bus_port)
        self._wait_until(self._is_well, "the cluster is not complete")
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    @property
    def hosts(self) -> str:
        """All nodes, as a URL names them."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def client(self, **options: Any) -> RedisCluster:
        """A client of the caller's own, who closes it."""
        return RedisCluster(
            startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in self.nodes],
            **options,
        )

    def async_client(self, **options: Any) -> redis.asyncio.RedisCluster:
        return redis.asyncio.RedisCluster(
            startup_nodes=[
                redis.asyncio.cluster.ClusterNode("127.0.0.1", node.port or 0)
                for node in self.nodes
            ],
            **options,
        )

    def flushall(self) -> None:
        for node in self.nodes:
            node.ask("FLUSHALL")

    def add_user(self, name: str, password: str, *rules: str) -> None:
        for node in self.nodes:
            node.ask("ACL", "SETUSER", name, "reset", "on", f">{password}", *rules)

    # -- slots ---------------------------------------------------------------------------------

    def slot_of(self, key: str) -> int:
        return int(self.nodes[0].ask("CLUSTER", "KEYSLOT", key))

    def master_of(self, key: str) -> ClusterServer:
        """The node that has the key's slot, as that node says itself."""
        slot = self.slot_of(key)
        for node in self.nodes:
            for first, last, master, *_ in node.ask("CLUSTER", "SLOTS"):
                if first <= slot <= last and master[1] == node.port:
                    return node
        raise ServerError(f"no node has slot {slot}")

    def begin_to_move(self, key: str, target: ClusterServer) -> None:
        """The slot of the key is on its way, key by key: `move_key`, then `end_move`."""
        source, slot = self.master_of(key), self.slot_of(key)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, source: ClusterServer, target: ClusterServer, *keys: str) -> None:
        if not keys:
            return
        source.ask("MIGRATE", "127.0.0.1", target.port or 0, "", 0, 5000, "REPLACE", "KEYS", *keys)

    def keys_of_slot(self, source: ClusterServer, slot: int) -> list[str]:
        return list(source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10_000))

    def end_move(self, key: str, target: ClusterServer) -> None:
        slot = self.slot_of(key)
        for node in [target, *(node for node in self.nodes if node is not target)]:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, key: str, target: ClusterServer) -> None:
        """Moves the key's slot with all that is in it, as `--cluster reshard` does."""
        source, slot = self.master_of(key), self.slot_of(key)
        self.begin_to_move(key, target)
        self.move_keys(source, target, *self.keys_of_slot(source, slot))
        self.end_move(key, target)

    # ------------------------------------------------------------------------------------------

    def _is_well(self) -> bool:
        return all(node.is_well(len(self.nodes)) for node in self.nodes)

    def _wait_until(self, predicate: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + ValkeyServer.starts_within
        while not predicate():
            if time.monotonic() > deadline:
                raise ServerError(f"{problem}:\n{self.nodes[0].log()}")
            time.sleep(0.02)
