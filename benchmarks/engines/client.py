"""python -m benchmarks.engines.client: dispatches jobs in a peer's environment, as an application.

Each line on stdin is an order in JSON, each line on stdout its answer: {"dispatch": FILE, "how":
"single" | "bulk" | "transaction"} or {"occupy": [NAME, ...]}; the answer has when it began
and ended, in seconds of time.monotonic.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import django

from benchmarks import jobs
from benchmarks.jobs import Job

_IN_ONE_CALL = 1000


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints is no answer
    django.setup()
    engine = importlib.import_module(f"benchmarks.engines.{os.environ['BENCHMARK_ENGINE']}")
    if hasattr(engine, "begin"):
        engine.begin()
    _say(answers, {"can": [name for name in ("dispatch_bulk", "occupy") if hasattr(engine, name)]})
    for line in sys.stdin:
        act = _prepared(engine, json.loads(line))
        began_at = time.monotonic()
        act()
        _say(answers, {"began_at": began_at, "ended_at": time.monotonic()})


def _prepared(engine: Any, order: dict[str, Any]) -> Callable[[], None]:
    """What the order asks for, with all that it needs at hand."""
    if "occupy" in order:
        return partial(engine.occupy, order["occupy"])
    todo = jobs.load(Path(order["dispatch"]))
    how = {"single": _singly, "bulk": _in_bulk, "transaction": _in_transactions}[order["how"]]
    return partial(how, engine, todo)


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _singly(engine: Any, todo: Sequence[Job]) -> None:
    for job in todo:
        engine.dispatch(job)


def _in_bulk(engine: Any, todo: Sequence[Job]) -> None:
    for first in range(0, len(todo), _IN_ONE_CALL):
        engine.dispatch_bulk(todo[first : first + _IN_ONE_CALL])


def _in_transactions(engine: Any, todo: Sequence[Job]) -> None:
    """One after the other, but with a commit for many: to fill a queue."""
    from django.db import transaction

    for first in range(0, len(todo), _IN_ONE_CALL):
        with transaction.atomic():
            _singly(engine, todo[first : first + _IN_ONE_CALL])


if __name__ == "__main__":
    main()
