"""What a lock manager may do on a server with users. README.md tells the rules to operators."""

from django_task_locks.locks.keys import Keys

# Each is needed, and no other: tests/locks/test_rights.py.
COMMANDS = """
    blmove blpop bzpopmin del eval evalsha exists expire get hdel hexists hget hgetall
    hincrby hkeys hset hsetnx incr info ltrim mget mset msetnx pexpire pttl rpush sadd
    scan scard sdiff set
    sismember smembers srandmember srem time type zadd zcard zrange zrangebyscore zrem
    zremrangebyscore zrevrange zscore
""".split()  # noqa: SIM905
# By categories: short, and right for later versions of the package, too.
SIMPLE = ("+@read", "+@write", "+@scripting", "+time", "-@dangerous", "+info")
# What redis-py asks a cluster for besides.
IN_CLUSTER = ("+cluster|slots", "+command")


def minimal_rights(prefix: str) -> list[str]:
    """The rules of an ACL user that may do what a lock manager does, and nothing else."""
    return [f"~{Keys(prefix).base}*", *(f"+{command}" for command in COMMANDS)]


def simple_rights(prefix: str) -> list[str]:
    """The rules that README.md recommends."""
    return [f"~{Keys(prefix).base}*", *SIMPLE]
