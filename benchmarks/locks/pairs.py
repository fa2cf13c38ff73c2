"""Uncontended pairs of acquire and release, in paired rounds."""

from collections.abc import Sequence

from django_redis import get_redis_connection

from benchmarks.locks import FIFTY, ONE, OWN, PLAIN, TEN, contestants
from benchmarks.locks.contestants import case_of
from benchmarks.rounds import paired_rounds
from django_task_locks.connections import new_lock_manager
from django_task_locks.locks import LockManager

CASES = (
    case_of(1, 0, ONE),
    case_of(5, 5, TEN),
    case_of(50, 0, FIFTY),
)


def measure(
    rounds: int, pairs: int, seed: int, peers: Sequence[str], **unused: object
) -> dict[str, dict[str, list[float]]]:
    """Microseconds by case and contestant."""
    client = get_redis_connection("default")
    plain = LockManager(client, "plain")
    own = new_lock_manager(longest_wait=0)
    measured = {}
    for case in CASES:
        entered = [
            contestants.floor(client),
            contestants.ours(PLAIN, plain, case),
            contestants.ours(OWN, own, case),
            contestants.tasks(own, case),
            contestants.holding(case),
            *contestants.others(peers, client, case),
        ]
        measured[case.name] = paired_rounds(entered, rounds=rounds, repetitions=pairs, seed=seed)
    return measured
