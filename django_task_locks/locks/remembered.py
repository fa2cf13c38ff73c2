"""Items that are made when they are needed, and only once."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """What an iterable gives, to be iterated more than once: so what is sent can be made while the
    server works at what was sent before, and is there when it has to be sent again.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._made: list[T] = []
        self._rest = iter(items)

    def __iter__(self) -> Iterator[T]:
        yield from self._made
        for item in self._rest:
            self._made.append(item)
            yield item
