"""Django settings of a peer's processes; what differs from run to run is in their environment."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PEER = os.environ.get("BENCHMARK_PEER", "")
ENGINE = os.environ.get("BENCHMARK_ENGINE", "")
REDIS_URL = os.environ.get("BENCHMARK_REDIS_URL", "redis://nowhere.invalid/0")
TTL = float(os.environ.get("BENCHMARK_TTL", "30"))
_database = urlsplit(os.environ.get("BENCHMARK_DATABASE_URL", "postgresql://nowhere.invalid/none"))
_scratch = Path(os.environ.get("BENCHMARK_SCRATCH", "/nonexistent"))

SECRET_KEY = "only-for-benchmarks"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.path.lstrip("/"),
        "USER": _database.username,
        "HOST": _database.hostname,
        "PORT": _database.port,
        # A connection for the life of the process, as one has it in production.
        "CONN_MAX_AGE": None,
    }
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    *{
        "task_locks": ["django_task_locks"],
        "procrastinate_app": ["procrastinate.contrib.django"],
        "tasks_db": ["django_tasks", "django_tasks_db"],
        "ox": ["django_ox"],
        "vtasks": ["django_vtasks"],
    }.get(ENGINE, []),
    *(["django_celery_results"] if PEER == "celery-results" else []),
]

TASK_LOCKS: dict[str, Any] = {"redis": REDIS_URL, "ttl": TTL, "run_dir": _scratch / "run"}
PROCRASTINATE_IMPORT_PATHS = ["benchmarks.engines.procrastinate_app"]
TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": {
            "ox": "django_ox.backend.OxBackend",
            "vtasks": "django_vtasks.backends.valkey.ValkeyTaskBackend",
        }.get(ENGINE, "django_tasks_db.DatabaseBackend"),
    }
}
if ENGINE == "vtasks":
    TASKS["default"]["OPTIONS"] = {"cache_alias": "default"}
    CACHES = {"default": {"BACKEND": "django_vcache.backend.ValkeyCache", "LOCATION": REDIS_URL}}
