"""System checks: what is wrong with the settings is told before anything runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.cache import caches
from pytest_django import Settings

from tests.support.servers import ValkeyServer

LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


def redis_cache(client: str = "default.DefaultClient", url: str = "redis://h") -> dict[str, Any]:
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": url,
        "OPTIONS": {"CLIENT_CLASS": f"django_redis.client.{client}"},
    }


@pytest.fixture(autouse=True)
def _fresh_caches(settings: Settings) -> Iterator[None]:
    yield
    caches.close_all()


def found() -> list[tuple[str, str]]:
    """Id and message of each problem."""
    return [
        (str(message.id), str(message.msg))
        for message in checks.run_checks(tags=["django_task_locks"])
    ]


def test_settings_of_these_tests_are_well_but_share_a_database_with_a_cache() -> None:
    assert [id for id, _ in found()] == ["django_task_locks.W001"]


def test_E001_unknown_key_and_refused_value_are_an_error_each(settings: Settings) -> None:
    settings.TASK_LOCKS = {"prefx": "app", "ttl": 0}

    (first, unknown), (second, refused) = found()

    assert first == second == "django_task_locks.E001"
    assert "'prefx'] is unknown: did you mean 'prefix'?" in unknown
    assert refused == "TASK_LOCKS['ttl'] is 0: seconds from 0.5 to 86400 are accepted."


def test_E001_url_of_unknown_scheme_is_the_only_error(settings: Settings) -> None:
    settings.TASK_LOCKS = {"redis": "http://host"}

    ((id, message),) = found()

    assert id == "django_task_locks.E001"
    assert "'http://host'" in message
    assert "redis+cluster://, rediss+cluster://, embedded:// is accepted" in message


def test_E002_alias_that_caches_does_not_have(settings: Settings) -> None:
    settings.TASK_LOCKS = {"redis": "locks"}

    ((id, message),) = found()

    assert id == "django_task_locks.E002"
    assert message.startswith("TASK_LOCKS['redis'] is 'locks': CACHES has no such alias; ")
    assert "django_redis.cache.RedisCache" in message


def test_E002_alias_whose_backend_cannot_be_imported(settings: Settings) -> None:
    settings.CACHES = {"default": {"BACKEND": "nowhere.RedisCache"}}

    ((id, message),) = found()

    assert id == "django_task_locks.E002"
    assert "no such alias" not in message
    assert "nowhere.RedisCache" in message


def test_E002_alias_of_another_kind_of_cache(settings: Settings) -> None:
    settings.CACHES = {"default": LOCMEM}

    ((id, message),) = found()

    assert id == "django_task_locks.E002"
    assert "a cache of django.core.cache.backends.locmem.LocMemCache" in message
    assert "or a URL such as redis://host:6379/0" in message


def test_E002_cache_that_spreads_its_keys_over_servers(settings: Settings) -> None:
    settings.CACHES = {"default": redis_cache("sharded.ShardClient")}

    ((id, message),) = found()

    assert id == "django_task_locks.E002"
    assert "with client ShardClient" in message


@pytest.mark.parametrize("client", ["default.DefaultClient", "herd.HerdClient"])
def test_django_redis_cache_is_well_though_its_server_is_away(
    settings: Settings, client: str
) -> None:
    settings.CACHES = {"default": LOCMEM, "locks": redis_cache(client, "redis://127.0.0.1:1/0")}
    settings.TASK_LOCKS = {"redis": "locks"}

    assert [id for id, _ in found()] == ["django_task_locks.W001"]


class TestW001CacheInTheSameDatabase:
    @pytest.mark.parametrize(
        ("cache", "locks"),
        [
            ("redis://h:6379/0", "redis://h"),
            ("redis://:secret@h/2", "redis://user:other@h:6379/2"),
            ("redis://h?db=3", "redis://h/3"),
            ("unix:///a.sock?db=1", "unix:///a.sock?db=1"),
            (["redis://h/1", "redis://replica/1"], "redis://h/1"),
        ],
    )
    def test_its_clear_would_delete_the_locks(
        self, settings: Settings, cache: str | list[str], locks: str
    ) -> None:
        settings.CACHES = {"default": LOCMEM, "pages": redis_cache() | {"LOCATION": cache}}
        settings.TASK_LOCKS = {"redis": locks}

        ((id, message),) = found()

        assert id == "django_task_locks.W001"
        assert "cache 'pages'" in message
        assert "secret" not in message

    @pytest.mark.parametrize(
        "locks", ["redis://h/1", "redis://h:6380/0", "redis://other/0", "embedded:///data"]
    )
    def test_another_database_is_well(self, settings: Settings, locks: str) -> None:
        settings.CACHES = {"default": redis_cache() | {"LOCATION": "redis://h:6379/0"}}
        settings.TASK_LOCKS = {"redis": locks}

        assert found() == []


class TestW002ServerThatDropsLocks:
    def found(self) -> list[tuple[str, str]]:
        messages = checks.run_checks(tags=["django_task_locks"], include_deployment_checks=True)
        return [(str(message.id), str(message.msg)) for message in messages]

    @pytest.fixture
    def server(self, settings: Settings) -> Iterator[ValkeyServer]:
        with ValkeyServer(maxmemory_policy="allkeys-lru") as server:
            settings.CACHES = {"default": LOCMEM}
            settings.TASK_LOCKS = {"redis": server.url}
            yield server

    def test_its_policy_is_named(self, server: ValkeyServer) -> None:
        ((id, message),) = self.found()

        assert id == "django_task_locks.W002"
        assert "'allkeys-lru'" in message
        assert server.url in message

    def test_it_is_asked_for_a_deployment_only(self, server: ValkeyServer) -> None:
        assert found() == []

    def test_another_policy_is_well(self, server: ValkeyServer) -> None:
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")

        assert self.found() == []

    def test_nothing_is_said_of_one_that_is_away(self, server: ValkeyServer) -> None:
        server.stop()

        assert self.found() == []

    def test_one_of_our_own_is_not_started_for_it(self, settings: Settings, tmp_path: Path) -> None:
        settings.TASK_LOCKS = {"redis": f"embedded://{tmp_path}/valkey"}
        settings.CACHES = {"default": LOCMEM}

        assert self.found() == []
        assert not (tmp_path / "valkey").exists()


@pytest.mark.parametrize("url", ["redis://h:1/2", "rediss://h", "unix:///no.sock"])
def test_url_is_well_whatever_the_caches_are(settings: Settings, url: str) -> None:
    settings.CACHES = {"default": LOCMEM}
    settings.TASK_LOCKS = {"redis": url}

    assert found() == []


@pytest.mark.parametrize("has_redis", [True, False])
def test_project_without_task_locks_is_checked_by_the_defaults(has_redis: bool) -> None:
    cache = redis_cache() if has_redis else LOCMEM
    program = f"""
import json
import django
from django.conf import settings
from django.core import checks
settings.configure(INSTALLED_APPS=["django_task_locks"], CACHES={{"default": {cache!r}}})
django.setup()
print(json.dumps([message.id for message in checks.run_checks(tags=["django_task_locks"])]))
"""
    environment = {**os.environ}
    environment.pop("DJANGO_SETTINGS_MODULE", None)

    output = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)

    number = "W001" if has_redis else "E002"
    assert json.loads(output) == [f"django_task_locks.{number}"]


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("redis://user:secret@h:abc/0", "h:abc/0"),
        ("unix://nope.sock", "no path is named"),
        ("embedded://", "embedded://<directory>"),
    ],
)
def test_E002_url_that_leads_nowhere(url: str, part: str, settings: Settings) -> None:
    settings.TASK_LOCKS = {"redis": url}

    ((id, message),) = found()

    assert id == "django_task_locks.E002"
    assert part in message
    assert "secret" not in message
