"""python -m benchmarks.locks.measure PART OPTIONS RESULT: the process that measures one part.

OPTIONS is a JSON object; what was measured goes to the file RESULT, as JSON.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import django
from django.core.management import call_command


def main() -> None:
    part, options, result = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    if (cpu := options.pop("cpu")) is not None:
        os.sched_setaffinity(0, [cpu])
    django.setup()
    call_command("migrate", verbosity=0)
    measured = importlib.import_module(f"benchmarks.locks.{part}").measure(**options)
    result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
