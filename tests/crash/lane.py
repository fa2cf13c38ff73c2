"""A lane takes one point after the other, as lines of JSON on stdin, and answers on stdout.

python -m tests.crash.lane DIRECTORY, with the environment of tests.settings.
"""

import json
import logging
import os
import sys
import traceback
from dataclasses import asdict
from itertools import count
from pathlib import Path

import django
from redis import Redis

from django_task_locks.locks.keys import Keys
from django_task_locks.locks.scripts import OPERATIONS, source


def main(directory: Path) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    from django.conf import settings

    from tests.crash.point import Point, Result, take
    from tests.crash.stage import PREFIX, Stage, adopt_orphans
    from tests.support.proxy import Proxy

    logging.getLogger("django_task_locks").setLevel(logging.CRITICAL)  # its own; points have a log
    adopt_orphans()
    names = load_scripts(settings.CACHES["default"]["LOCATION"], Keys(PREFIX))
    database = settings.DATABASES["default"]
    proxy = Proxy(
        Path(settings.CACHES["default"]["LOCATION"].removeprefix("unix://")),
        Path(database["HOST"]) / f".s.PGSQL.{database['PORT']}",
        directory,
    )
    numbers = count(1)
    for line in sys.stdin:
        try:
            with Stage(proxy, directory, next(numbers)) as stage:
                result = take(Point(**json.loads(line)), stage)
                result.commands = [readable(command, names) for command in result.commands]
        except Exception:
            result = Result(problems=[f"the harness failed:\n{traceback.format_exc()}"])
        print(json.dumps(asdict(result)), flush=True)
    proxy.close()


def load_scripts(url: str, keys: Keys) -> dict[str, str]:
    """Makes the server know all scripts; the name of each by its digest."""
    with Redis.from_url(url) as client:
        return {client.script_load(source(name, keys)): name for name in OPERATIONS}


def readable(command: str, scripts: dict[str, str]) -> str:
    """A command with a script's name for its digest."""
    head, _, digest = command.rpartition(" ")
    return f"{head} {scripts.get(digest, digest)}".strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
