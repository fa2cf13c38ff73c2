"""Settings of the example: one directory holds everything, no server has to be installed.

A real deployment names its own servers instead:

    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", ...}}
    TASK_LOCKS = {"redis": "redis://redis.example.org:6379/0"}
"""

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"
VAR_DIR.mkdir(exist_ok=True)

SECRET_KEY = "only-for-the-example"  # noqa: S105
DEBUG = False
ALLOWED_HOSTS: list[str] = []
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django_task_locks", "mirror"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": VAR_DIR / "mirror.sqlite3",
        # Readers go on while one process writes (WAL), and a transaction takes its place among
        # the writers when it begins, where SQLite can wait for it (IMMEDIATE).
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}

TASK_LOCKS = {
    # A Valkey server of the project's own, started on first use.
    "redis": f"embedded://{VAR_DIR / 'valkey'}",
    # Seconds without a heartbeat after which a process counts as missing. Short, so that a
    # recovery can be watched; the default suits production.
    "ttl": 6,
}
