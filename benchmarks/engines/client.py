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
from pathlib import Path
from typing import Any

import django

from benchmarks import jobs

_IN_ONE_CALL = 1000


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints is no answer
    django.setup()
    engine = importlib.import_module(f"benchmarks.engines.{os.environ['BENCHMARK_ENGINE']}")
    _say(answers, {"can": [name for name in ("dispatch_bulk", "occupy") if hasattr(engine, name)]})
    for line in sys.stdin:
        order = json.loads(line)
        if "occupy" in order:
            act: Any = lambda: engine.occupy(order["occupy"])  # noqa: B023, E731
        else:
            todo = jobs.load(Path(order["dispatch"]))
            act = {"single": _singly, "bulk": _in_bulk, "transaction": _in_transactions}[
                order["how"]
            ](engine, todo)
        began_at = time.monotonic()
        act()
        _say(answers, {"began_at": began_at, "ended_at": time.monotonic()})


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _singly(engine: Any, todo: Any) -> Any:
    def act() -> None:
        for job in todo:
            engine.dispatch(job)

    return act


def _in_bulk(engine: Any, todo: Any) -> Any:
    def act() -> None:
        for first in range(0, len(todo), _IN_ONE_CALL):
            engine.dispatch_bulk(todo[first : first + _IN_ONE_CALL])

    return act


def _in_transactions(engine: Any, todo: Any) -> Any:
    """One after the other, but with a commit for many: to fill a queue."""
    from django.db import transaction

    def act() -> None:
        for first in range(0, len(todo), _IN_ONE_CALL):
            with transaction.atomic():
                for job in todo[first : first + _IN_ONE_CALL]:
                    engine.dispatch(job)

    return act


if __name__ == "__main__":
    main()
