"""Settings of the test session and of every process that a test starts.

All addresses come from the environment, where tests.support.suite has put those of the session's
own servers. Without it they lead nowhere: no test, command or type checker ever reaches a server
that happens to run on this machine.
"""

import json
import os
from typing import Any

SECRET_KEY = "only-for-tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_task_locks",
    "tests.testapp",
    *os.environ.get("TEST_MORE_APPS", "").split(),
]

# NAME is that of the test database: a worker that a test starts reads it here.
POSTGRES: dict[str, Any] = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ.get("TEST_DATABASE_NAME", "test_task_locks"),
    "USER": "postgres",
    "HOST": os.environ.get("TEST_DATABASE_HOST", "/nonexistent"),
    "PORT": os.environ.get("TEST_DATABASE_PORT", "5432"),
    "TEST": {"NAME": "test_task_locks"},
}
# A file, which other processes can open, too.
SQLITE: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": os.environ.get("TEST_SQLITE_FILE", ":memory:"),
    "OPTIONS": {
        "init_command": "PRAGMA journal_mode=WAL",
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
    },
    "TEST": {"NAME": os.environ.get("TEST_SQLITE_FILE", ":memory:")},
}
DATABASES = {
    "default": {"postgres": POSTGRES, "sqlite": SQLITE}[os.environ.get("TEST_DATABASE", "postgres")]
}

CACHES: dict[str, Any] = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("TEST_REDIS_URL", "unix:///nonexistent/valkey.sock"),
    },
    **json.loads(os.environ.get("TEST_CACHES", "{}")),
}
if "TEST_CONNECTION_FACTORY" in os.environ:
    DJANGO_REDIS_CONNECTION_FACTORY = os.environ["TEST_CONNECTION_FACTORY"]

# The suite has one database of Redis, which its cache shares.
SILENCED_SYSTEM_CHECKS = ["django_task_locks.W001"]

TASK_LOCKS: dict[str, Any] = {
    "prefix": os.environ.get("TEST_PREFIX", "test"),
    **json.loads(os.environ.get("TEST_TASK_LOCKS", "{}")),
}
