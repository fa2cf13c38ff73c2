"""What a client raises, in this package's words."""

from collections.abc import Sequence
from typing import NoReturn

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    ConnectionError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from django_task_locks.exceptions import EpochLost, ForeignValue, LockServiceUnavailable


class OtherServer(RedisError):
    """A connection leads to another server than the one that the epoch names."""


# All that a client raises for a server's answer or silence; the two have no base in common.
ERRORS = (RedisError, RedisClusterException)

_UNAVAILABLE = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,  # redirected or put off again and again
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
    RedisClusterException,  # no node of the cluster can be reached
)
# Replies by which a server says that it cannot serve now; redis-py, or an older one, has no class
# for these.
_UNAVAILABLE_REPLIES = ("BUSY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNBLOCKED")


def raise_foreign(key: str, operation: str) -> NoReturn:
    raise ForeignValue(
        f"key {key} holds a value of another type, so {operation} did nothing; find out who wrote "
        "it (another application with the same prefix?) and delete it"
    )


def is_away(error: Exception) -> bool:
    """Whether the server cannot be reached, or says that it cannot serve now."""
    return isinstance(error, _UNAVAILABLE) or (
        isinstance(error, ResponseError) and str(error).startswith(_UNAVAILABLE_REPLIES)
    )


def raise_translated(
    error: Exception, operation: str, endpoint: str, keys: Sequence[str] = ()
) -> NoReturn:
    """Raises LockServiceUnavailable where the server cannot be reached or cannot serve,
    ForeignValue where one of the keys is of another type; else the error as it is.
    """
    if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
        raise_foreign(" or ".join(map(repr, keys)), operation)
    if isinstance(error, OtherServer):
        raise EpochLost(f"{operation}: {endpoint}: {error}") from error
    if not is_away(error):
        raise error
    raise LockServiceUnavailable(
        f"{operation}: lock service at {endpoint} is unavailable: {error}"
    ) from error
