"""Whether whoever needed locks had them all the time, and nobody else had them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.crash.lock_record import Span


@dataclass(slots=True, kw_only=True)
class Need:
    """A body that was there, or a row that said so, from when until when; by the same clock as the
    record of the locks.
    """

    what: str
    id: str
    exclusive: list[str]
    shared: list[str]
    began: float
    ended: float


def faults(needs: Iterable[Need], spans: list[Span]) -> Iterator[str]:
    """Each time without a lock that was needed, and each lock of somebody else's in that time."""
    for need in needs:
        for resource in (*need.exclusive, *need.shared):
            there = [
                span for span in spans if span.resource == resource and span.began < need.ended
            ]
            yield from _gaps(need, resource, [span for span in there if span.id == need.id])
            for span in there:
                is_other = span.id != need.id and not (span.is_shared and resource in need.shared)
                if is_other and span.ended > need.began:
                    yield (
                        f"{need.what}: {span.id} had the lock on {resource} from {span.began:.6f} "
                        f"to {span.ended:.6f}, and it was needed {_when(need)}"
                    )


def _gaps(need: Need, resource: str, own: list[Span]) -> Iterator[str]:
    # What was lost comes back when the locks are rebuilt; until then nobody else may have it.
    before = [span for span in own if span.began <= need.began]
    if not before or (before[-1].ended <= need.began and not before[-1].is_lost):
        yield f"{need.what}: no lock on {resource}, needed {_when(need)}"
    for span in own:
        if need.began < span.ended < need.ended and not span.is_lost:
            yield (
                f"{need.what}: its lock on {resource} was released at {span.ended:.6f}, "
                f"{need.ended - span.ended:.6f} s early"
            )


def _when(need: Need) -> str:
    return f"from {need.began:.6f} to {need.ended:.6f}"
