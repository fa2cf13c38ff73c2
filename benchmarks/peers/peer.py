"""The description of one peer, which all scenarios have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

Command = Sequence[str]


class Locks(IntEnum):
    """What a job of this peer can ask for; each includes those before it."""

    NONE = 0
    ONE = 1  # one exclusive resource
    SEVERAL = 2  # several; a shared one is taken as exclusive
    SHARED = 3  # several, exclusive and shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """
    engine        module of benchmarks.engines that has its tasks
    requirements  what its environment has beside what all have; None: it runs in this one
    commands      of the processes that are so many executors, under a name, for its Python
    setup         how it is set up, in a sentence for the report
    runs_plain    whether a job without resources is something else than with another peer
    is_slow       whether its runs take so long that one may leave some out
    migration     the command that makes its tables; () if it has none
    environment   of all its processes
    python        oldest version of Python that it runs on
    """

    name: str
    engine: str
    requirements: Sequence[str] | None
    commands: Callable[[int, str], Sequence[Command]]
    setup: str
    locks: Locks = Locks.NONE
    runs_plain: bool = True
    is_slow: bool = False
    migration: Command = ("-m", "django", "migrate", "-v", "0")
    environment: Mapping[str, str] = field(default_factory=dict)
    python: tuple[int, int] = (3, 11)


def each(command: Callable[[str], Command]) -> Callable[[int, str], Sequence[Command]]:
    """One process for each executor; the command is that of one with a name of its own."""

    def commands(executors: int, name: str) -> Sequence[Command]:
        return [command(f"{name}-{number}") for number in range(executors)]

    return commands
