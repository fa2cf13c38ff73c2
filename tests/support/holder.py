"""Code that holds a resource by itself, and says whether it still does when it is asked: in a task,
in a thread, or run as a program: `python -m tests.support.holder DIRECTORY RESOURCE`.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path


def hold_until_released(directory: str, resource: str) -> None:
    """Until the file `release` is there. `<resource>.held` says that it has it, and whenever the
    file `ask` has another text, `<resource>.says` tells it together with the answer.
    """
    from django_task_locks import hold
    from django_task_locks.exceptions import LockServiceUnavailable
    from tests.testapp.witnesses import witnessed

    files, answered = Path(directory), ""
    with hold(resource, timeout=20) as held, witnessed(directory, [resource], []):
        (files / f"{resource}.held").touch()
        while not (files / "release").exists():
            question = (files / "ask").read_text() if (files / "ask").exists() else ""
            if question != answered:
                with suppress(LockServiceUnavailable):
                    says = files / f"{resource}.says"
                    says.with_suffix(".new").write_text(f"{question} {held.is_held()}")
                    says.with_suffix(".new").rename(says)
                    answered = question
            time.sleep(0.02)


if __name__ == "__main__":
    import django

    django.setup()
    hold_until_released(*sys.argv[1:])
