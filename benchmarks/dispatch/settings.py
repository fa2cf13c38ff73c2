"""As those of other measuring processes, on PostgreSQL."""

import os

from benchmarks.settings import *  # noqa: F403

HOST, PORT = "BENCHMARK_DATABASE_HOST", "BENCHMARK_DATABASE_PORT"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": os.environ.get(HOST, "/nonexistent"),
        "PORT": os.environ.get(PORT, ""),
    }
}
