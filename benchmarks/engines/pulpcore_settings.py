"""What pulpcore reads beside its own settings (PULP_SETTINGS)."""

import os
from pathlib import Path
from urllib.parse import urlsplit

_database = urlsplit(os.environ["BENCHMARK_DATABASE_URL"])
_root = Path(os.environ["BENCHMARK_SCRATCH"]) / "pulp"

SECRET_KEY = "only-for-benchmarks"  # noqa: S105
DEPLOY_ROOT = _root
MEDIA_ROOT = str(_root / "media")
WORKING_DIRECTORY = str(_root / "tmp")
FILE_UPLOAD_TEMP_DIR = WORKING_DIRECTORY
DB_ENCRYPTION_KEY = str(_root / "key")
CONTENT_ORIGIN = "http://localhost"
ANALYTICS = False
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.path.lstrip("/"),
        "USER": _database.username,
        "HOST": _database.hostname,
        "PORT": _database.port,
        "CONN_MAX_AGE": 0,
    }
}
REDIS_URL = os.environ["BENCHMARK_REDIS_URL"]
WORKER_TYPE = "redis" if os.environ["BENCHMARK_PEER"] == "pulpcore" else "pulpcore"
WORKER_TTL = int(float(os.environ.get("BENCHMARK_TTL", "30")))

for _directory in (MEDIA_ROOT, WORKING_DIRECTORY):
    Path(_directory).mkdir(parents=True, exist_ok=True)
if not Path(DB_ENCRYPTION_KEY).exists():
    Path(DB_ENCRYPTION_KEY).write_text("bm90aGluZyBpcyBlbmNyeXB0ZWQgd2l0aCBpdCBoZXI=")
