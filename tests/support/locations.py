"""Ways to say in the settings where the locks are, each with the way by which a test gets there."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pytest_django import Settings

from tests.support.sentinel import SERVICE, SentinelGroup
from tests.support.services import WAYS, BySentinel, ByUrl, Services, Way

ALIAS = "locks"
BY_SENTINEL = "django_redis.pool.SentinelConnectionFactory"


@dataclass(frozen=True, kw_only=True)
class Location:
    """way      how a test gets to the server
    redis    TASK_LOCKS["redis"]: a URL, or ALIAS
    cache    CACHES[ALIAS], where that is named
    factory  DJANGO_REDIS_CONNECTION_FACTORY, if any
    """

    way: Way
    redis: str = ALIAS
    cache: dict[str, Any] = field(default_factory=dict)
    factory: str = ""

    def put_into(self, settings: Settings) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": self.redis}
        if self.factory:
            settings.DJANGO_REDIS_CONNECTION_FACTORY = self.factory
        if self.cache:
            settings.CACHES = {**settings.CACHES, ALIAS: self.cache}

    def put_into_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For the processes that a test starts from then on."""
        locks = json.loads(os.environ["TEST_TASK_LOCKS"]) | {"redis": self.redis}
        monkeypatch.setenv("TEST_TASK_LOCKS", json.dumps(locks))
        if self.factory:
            monkeypatch.setenv("TEST_CONNECTION_FACTORY", self.factory)
        if self.cache:
            monkeypatch.setenv("TEST_CACHES", json.dumps({ALIAS: self.cache}))


def by_url(url: str, way: Way | None = None) -> Location:
    return Location(redis=url, way=way or ByUrl(url))


def by_alias(
    location: str, way: Way | None = None, *, factory: str = "", **options: Any
) -> Location:
    cache = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": location,
        "OPTIONS": options,
    }
    return Location(cache=cache, factory=factory, way=way or ByUrl(location))


def by_sentinel(
    group: SentinelGroup, db: int = 0, *, factory: str = "", **options: Any
) -> Location:
    """As the documentation of django-redis says it."""
    return by_alias(
        f"redis://{SERVICE}/{db}",
        BySentinel(group, db),
        factory=factory,
        CLIENT_CLASS="django_redis.client.SentinelClient",
        SENTINELS=group.sentinels,
        **options,
    )


def by_cluster(services: Services, hosts: str, query: str = "") -> Location:
    return by_url(f"redis+cluster://{hosts}{query}", WAYS["Cluster"](services))


def _user(services: Services) -> Way:
    return WAYS["ACL user"](services)


def _password(services: Services) -> Way:
    return WAYS["password"](services)


# Every form of the setting that is promised to work.
LOCATIONS: dict[str, Callable[[Services], Location]] = {
    "URL": lambda its: by_url(its.valkey.tcp_url),
    "URL of another database": lambda its: by_url(f"{its.valkey.tcp_url}/5"),
    "URL for RESP3": lambda its: by_url(f"{its.valkey.tcp_url}?protocol=3"),
    "URL of Redis 6.2": lambda its: by_url(its.redis_6_2.tcp_url),
    "URL of Redis 7": lambda its: by_url(its.redis_7.tcp_url),
    "URL with a password": lambda its: by_url(its.guarded.password_url),
    "URL with a user": lambda its: by_url(its.guarded.user_url, _user(its)),
    "TLS URL": lambda its: by_url(its.tls.trusted_url),
    "socket URL": lambda its: by_url(its.valkey.url),
    "socket URL of another database": lambda its: by_url(f"{its.valkey.url}?db=5"),
    "alias": lambda its: by_alias(its.valkey.tcp_url),
    "alias of another database": lambda its: by_alias(
        f"{its.valkey.tcp_url}/5", SOCKET_CONNECT_TIMEOUT=3
    ),
    "alias for RESP3": lambda its: by_alias(
        its.valkey.tcp_url, CONNECTION_POOL_KWARGS={"protocol": 3}
    ),
    "alias that decodes replies": lambda its: by_alias(
        its.valkey.tcp_url, CONNECTION_POOL_KWARGS={"decode_responses": True}
    ),
    "alias with short timeouts": lambda its: by_alias(
        its.valkey.tcp_url, SOCKET_TIMEOUT=0.2, SOCKET_CONNECT_TIMEOUT=1
    ),
    "alias with a password in its URL": lambda its: by_alias(its.guarded.password_url),
    "alias with a password in OPTIONS": lambda its: by_alias(
        its.guarded.tcp_url, _password(its), PASSWORD=its.guarded.password
    ),
    "alias with a user in its URL": lambda its: by_alias(its.guarded.user_url, _user(its)),
    "alias with a user in OPTIONS": lambda its: by_alias(
        its.guarded.tcp_url,
        _user(its),
        USERNAME=its.guarded.user_name,
        PASSWORD=its.guarded.user_password,
    ),
    "TLS alias": lambda its: by_alias(
        its.tls.tcp_url,
        WAYS["TLS"](its),
        CONNECTION_POOL_KWARGS={"ssl_ca_certs": str(its.tls.certificates.authority)},
    ),
    "alias of a socket": lambda its: by_alias(its.valkey.url),
    "Sentinel by the setting": lambda its: by_sentinel(its.sentinel, factory=BY_SENTINEL),
    "Sentinel by OPTIONS": lambda its: by_sentinel(its.sentinel, CONNECTION_FACTORY=BY_SENTINEL),
    "Sentinel, another database": lambda its: by_sentinel(its.sentinel, 5, factory=BY_SENTINEL),
    "Sentinel for RESP3, decoded": lambda its: by_sentinel(
        its.sentinel,
        factory=BY_SENTINEL,
        CONNECTION_POOL_KWARGS={"protocol": 3, "decode_responses": True},
    ),
    "cluster URL": lambda its: by_cluster(its, its.cluster.hosts.partition(",")[0]),
    "cluster URL of all hosts": lambda its: by_cluster(its, its.cluster.hosts),
    "cluster URL whose first host is away": lambda its: by_cluster(
        its, f"127.0.0.1:1,{its.cluster.hosts}"
    ),
    "cluster URL with a user": lambda its: by_cluster(
        its, f"{its.guarded.user_credentials}@{its.cluster.hosts}"
    ),
    "cluster URL for RESP3": lambda its: by_cluster(its, its.cluster.hosts, "?protocol=3"),
}
