"""Everything that stands under a prefix, as plain Python values."""

from collections.abc import Callable
from typing import Any

from redis import Redis

from django_task_locks.locks.keys import Keys

# A string as str, a list as list, a set as set, a sorted set and a hash as dict.
Value = str | list[str] | set[str] | dict[str, Any]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


_READERS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Value]]] = {
    "string": (lambda pipeline, key: pipeline.get(key), _text),
    "list": (
        lambda pipeline, key: pipeline.lrange(key, 0, -1),
        lambda values: [_text(value) for value in values],
    ),
    "set": (
        lambda pipeline, key: pipeline.smembers(key),
        lambda values: {_text(value) for value in values},
    ),
    "zset": (
        lambda pipeline, key: pipeline.zrange(key, 0, -1, withscores=True),
        lambda pairs: {_text(member): int(score) for member, score in pairs},
    ),
    "hash": (
        lambda pipeline, key: pipeline.hgetall(key),
        lambda values: {_text(name): _text(value) for name, value in values.items()},
    ),
}


def snapshot(client: Redis, prefix: str) -> dict[str, Value]:
    """Each key under the prefix with its value; the order of a sorted set is that of its dict."""
    keys: list[Any] = list(client.keys(f"{Keys(prefix).base}*"))
    types = client.pipeline(transaction=False)
    for key in keys:
        types.type(key)
    kinds = [_text(kind) for kind in types.execute()]
    values = client.pipeline(transaction=False)
    for key, kind in zip(keys, kinds, strict=True):
        _READERS[kind][0](values, key)
    return {
        _text(key): _READERS[kind][1](value)
        for key, kind, value in zip(keys, kinds, values.execute(), strict=True)
    }


def remove_all(client: Redis, prefix: str) -> None:
    """Deletes what stands under the prefix, and nothing else."""
    if keys := list(client.keys(f"{Keys(prefix).base}*")):
        client.delete(*keys)
