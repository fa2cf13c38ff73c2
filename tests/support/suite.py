"""The servers of one test session, and the environment that leads to them.

A pytest plugin, named in pyproject.toml: pytest-django reads the settings before any conftest.py is
there. Nothing starts here; the fixtures of conftest.py start what a test asks for. Every pytest
process (each one of xdist's, too) has servers of its own.

Processes that tests start inherit the environment, and so find the same servers and the same test
database with `tests.settings`.
"""

import atexit
import json
import os
import random
import shutil

from tests.support.server_base import make_directory
from tests.support.servers import PostgresServer, ValkeyServer

TTL = 4.0

directory = make_directory()


@atexit.register
def _remove_directory(creator: int = os.getpid()) -> None:
    if os.getpid() == creator:  # and not a child that it forked
        shutil.rmtree(directory, ignore_errors=True)


valkey = ValkeyServer(directory / "valkey")
postgres = PostgresServer(directory / "postgres")

# What is left to chance differs from run to run; the processes of xdist have the same.
os.environ.setdefault("TEST_SEED", str(random.randrange(2**32)))
os.environ.update(
    {
        "TEST_DATABASE_HOST": postgres.host,
        "TEST_DATABASE_PORT": str(postgres.socket_port),
        "TEST_SQLITE_FILE": str(directory / "test.sqlite3"),
        "TEST_REDIS_URL": valkey.url,
        # Short, so that recovery is a matter of seconds, but a busy machine does not look dead.
        "TEST_TASK_LOCKS": json.dumps(
            {
                "ttl": TTL,
                "cleanup_interval": 1.0,
                "shutdown_grace": 1.0,
                "run_dir": str(directory / "run"),
            }
        ),
    }
)
