"""Django settings of a measuring process; the addresses are in its environment, see `measured`."""

import os
from pathlib import Path
from typing import Any

REDIS_URL = "BENCHMARK_REDIS_URL"
SCRATCH = "BENCHMARK_SCRATCH"

_redis_url = os.environ.get(REDIS_URL, "unix:///nonexistent/valkey.sock")
_scratch = Path(os.environ.get(SCRATCH, "/nonexistent"))

SECRET_KEY = "only-for-benchmarks"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_task_locks",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _scratch / "benchmark.sqlite3",
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode=WAL",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    }
}
# A client as users have it: the default one, with default options.
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": _redis_url}}
TASK_LOCKS: dict[str, Any] = {"redis": _redis_url, "prefix": "own", "run_dir": _scratch / "run"}
