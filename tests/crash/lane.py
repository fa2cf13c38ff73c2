"""A lane takes one point after the other, as lines of JSON on stdin, and answers on stdout.

python -m tests.crash.lane DIRECTORY, with the environment of tests.settings.
"""

import json
import os
import sys
import traceback
from dataclasses import asdict
from itertools import count
from pathlib import Path

import django


def main(directory: Path) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    from django.conf import settings

    from tests.crash.point import Point, Result, take
    from tests.crash.stage import Stage, adopt_orphans
    from tests.support.proxy import Proxy

    adopt_orphans()
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
        except Exception:
            result = Result(problems=[f"the harness failed:\n{traceback.format_exc()}"])
        print(json.dumps(asdict(result)), flush=True)  # noqa: T201
    proxy.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
