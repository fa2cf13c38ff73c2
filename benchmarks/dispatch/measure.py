"""python -m benchmarks.dispatch.measure OPTIONS RESULT: OPTIONS is a JSON object, and so is what
was measured, in the file RESULT.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
from django.core.management import call_command

FUNCTION = "benchmarks.dispatch.measure.nothing"
_RESOURCES = 50


def nothing(number: int) -> None: ...


def measure(rounds: int, tasks: int, seed: int) -> dict[str, list[float]]:
    """Microseconds for each task, by contestant."""
    from benchmarks.dispatch import BULK, ROWS, SINGLE
    from benchmarks.rounds import Contestant, paired_rounds
    from django_task_locks import dispatch, dispatch_many
    from django_task_locks.connections import get_lock_manager
    from django_task_locks.models import Task

    def on_empty(run: Callable[[range], object]) -> Callable[[int], Callable[[], None]]:
        def prepare(count: int) -> Callable[[], None]:
            Task.objects.all()._raw_delete("default")
            get_lock_manager().client.flushall()
            return lambda: (run(range(count)), None)[1]

        return prepare

    def single(numbers: range) -> None:
        for number in numbers:
            dispatch(FUNCTION, [number], exclusive=f"r{number % _RESOURCES}")

    def bulk(numbers: range) -> None:
        dispatch_many(
            ({"args": [number], "exclusive": f"r{number % _RESOURCES}"} for number in numbers),
            func=FUNCTION,
        )

    def prepare_rows(count: int) -> Callable[[], None]:
        bulk(range(count))
        rows = list(Task.objects.order_by("pk"))
        Task.objects.all()._raw_delete("default")
        return lambda: (Task.objects.bulk_create(rows), None)[1]

    contestants = [
        Contestant(SINGLE, on_empty(single)),
        Contestant(BULK, on_empty(bulk)),
        Contestant(ROWS, prepare_rows),
    ]
    return paired_rounds(contestants, rounds=rounds, repetitions=tasks, seed=seed)


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    django.setup()
    call_command("migrate", verbosity=0)
    Path(sys.argv[2]).write_text(json.dumps(measure(**options)))


if __name__ == "__main__":
    main()
