"""What happens after the worker was killed."""

from enum import StrEnum


class Case(StrEnum):
    ORDINARY = "nothing is killed: a worker starts and finds a task"
    SAME_NAME = "restarted under its name at once"
    SAME_NAME_LATER = "restarted under its name after the TTL"
    OTHER_NAME = "restarted under another name at once"
    OTHER_RUNS = "not restarted; another worker runs"

    @property
    def has_successor(self) -> bool:
        return self not in (Case.ORDINARY, Case.OTHER_RUNS)
