"""python -m benchmarks.locks.waiter hold|pop NAME: for each line on stdin it waits for the
resource, or for an element of the list, and prints when it had it: by time.monotonic_ns, which is
one clock for all processes on Linux.
"""

import sys
import time

import django


def main() -> None:
    _, how, name = sys.argv
    django.setup()
    from django_task_locks import epochs, hold
    from django_task_locks.connections import get_waiting_lock_manager

    transport = get_waiting_lock_manager().transport
    for _ in sys.stdin:
        if how == "hold":
            with hold(exclusive=name):
                given = time.monotonic_ns()
        else:
            transport.send([("BLPOP", name, "60")], epochs.current())
            given = time.monotonic_ns()
        print(given, flush=True)


if __name__ == "__main__":
    main()
