"""A server with users: the rights that a lock manager needs are known, and suffice."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from django_task_locks.locks import LockManager
from django_task_locks.locks.rebuild import Epoch, Known, Rebuild
from django_task_locks.locks.requests import Lane
from tests.locks.scenario import make_manager, play
from tests.locks.support import WORKER, task
from tests.support.redis_servers import GuardedServer
from tests.support.rights import COMMANDS, IN_CLUSTER, minimal_rights, simple_rights
from tests.support.services import Services

# What the tests themselves send.
OF_TESTS = {"config|resetstat", "flushall", "lrange", "script|flush"}
# What a client sends when it connects; a server that refuses it is served all the same.
OF_CLIENTS = {"auth", "client|maint_notifications", "client|setinfo", "hello"}


@pytest.fixture
def server(services: Services) -> GuardedServer:
    return services.guarded


@pytest.fixture
def admin(server: GuardedServer) -> Iterator[Redis]:
    with Redis.from_url(server.password_url) as client:
        client.flushall()
        yield client


def rebuild(client: Redis, prefix: str) -> None:
    keeper, epoch = Rebuild(LockManager(client, prefix)), Epoch(1)
    assert keeper.look().server
    assert keeper.begin(epoch)
    held = Known(task("a", "r", shared=["s"])._replace(claimant=WORKER), Lane(), 1, 1)
    assert keeper.restore(epoch, [held, Known(task("b", "r"), Lane(), None, 2)]) == []
    assert keeper.sweep(epoch, [WORKER.owner]) == 0
    keeper.open(epoch)


def test_no_other_command_is_used_and_none_is_listed_in_vain(
    services: Services, server: GuardedServer, admin: Redis
) -> None:
    admin.script_flush()
    admin.config_resetstat()
    with Redis.from_url(server.user_url) as client:
        play(make_manager(client, services.prefix), admin)
        rebuild(client, services.prefix)

    statistics: dict[str, Any] = admin.info("commandstats")
    used = {
        name.removeprefix("cmdstat_")
        for name, numbers in statistics.items()
        if numbers["calls"] > numbers["rejected_calls"]
    }
    assert used - OF_TESTS - OF_CLIENTS == set(COMMANDS)


@pytest.mark.parametrize("rights", [minimal_rights, simple_rights])
class TestUser:
    @pytest.fixture
    def client(
        self,
        services: Services,
        server: GuardedServer,
        admin: Redis,
        rights: Callable[[str], list[str]],
    ) -> Iterator[Redis]:
        admin.execute_command(
            *("ACL", "SETUSER", "other", "reset", "on", ">pw"), *rights(services.prefix)
        )
        with server.client(username="other", password="pw") as client:
            yield client
        admin.acl_deluser("other")

    def test_all_that_a_lock_manager_does_it_may(
        self, services: Services, client: Redis, admin: Redis
    ) -> None:
        play(make_manager(client, services.prefix), admin)

    def test_another_prefix_is_out_of_its_reach(self, services: Services, client: Redis) -> None:
        with pytest.raises(NoPermissionError):
            make_manager(client, f"{services.prefix}2").request(task("a", "r"))
        with pytest.raises(NoPermissionError):
            client.get("other")

    @pytest.mark.parametrize(
        "command", ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "KEYS *", "CONFIG GET *"]
    )
    def test_what_harms_others_it_may_not(self, client: Redis, command: str) -> None:
        with pytest.raises(NoPermissionError):
            client.execute_command(*command.split())


@pytest.mark.parametrize("rights", [minimal_rights, simple_rights])
def test_in_a_cluster_a_client_asks_for_the_slots_besides(
    services: Services, rights: Callable[[str], list[str]]
) -> None:
    cluster, prefix = services.cluster, services.prefix
    cluster.flushall()
    cluster.add_user("other", "pw", *rights(prefix), *IN_CLUSTER)
    with cluster.client() as admin, cluster.client(username="other", password="pw") as client:
        play(make_manager(client, prefix), admin)
