"""Bodies that do what the present test says; they run in its own process only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class _Plan:
    action: ClassVar[list[Callable[..., Any]]] = []


@contextmanager
def doing(action: Callable[..., Any]) -> Iterator[None]:
    """Within, `run` and `arun` call the action with their arguments."""
    _Plan.action.append(action)
    try:
        yield
    finally:
        _Plan.action.remove(action)


def run(*args: Any) -> Any:
    return _Plan.action[-1](*args)


async def arun(*args: Any) -> Any:
    return await _Plan.action[-1](*args)
