"""Time of the server alone for each resource, as it counts it: INFO commandstats."""

from collections.abc import Sequence

from django_redis import get_redis_connection
from redis import Redis

from benchmarks.locks import OWN, contestants
from benchmarks.locks.contestants import case_of
from django_task_locks.connections import new_lock_manager

CASES = (case_of(1000, 0), case_of(500, 500))
_MOST_BATCHES = 20
_PAIRS = 20


def measure(
    rounds: int, peers: Sequence[str], **unused: object
) -> dict[str, dict[str, list[float]]]:
    """Microseconds of the server for each resource of a pair, by case and contestant."""
    client = get_redis_connection("default")
    own = new_lock_manager(longest_wait=0)
    measured: dict[str, dict[str, list[float]]] = {}
    for case in CASES:
        entered = [contestants.ours(OWN, own, case)]
        if "pulpcore" in peers:
            entered.append(contestants.pulpcore(client, case))
        took: dict[str, list[float]] = {contestant.name: [] for contestant in entered}
        for contestant in entered:
            contestant.prepare(1)()
        resources = len(case.exclusive) + len(case.shared)
        for _batch in range(min(rounds, _MOST_BATCHES)):
            for contestant in entered:
                run = contestant.prepare(_PAIRS)
                client.config_resetstat()
                run()
                took[contestant.name].append(_script_time(client) / _PAIRS / resources)
        measured[case.name] = took
    return measured


def _script_time(client: Redis) -> float:
    """Microseconds in scripts, including the commands that they call."""
    statistics = client.info("commandstats")
    names = ("eval", "evalsha", "fcall")
    return float(sum(statistics.get(f"cmdstat_{name}", {}).get("usec", 0) for name in names))
