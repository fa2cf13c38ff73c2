"""Who had which lock from when until when, by the clock of the server: Valkey tells a client that
monitors it each command that it has executed, those of scripts too. Nobody needs to read along; the
server keeps it until the end.
"""

import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis

from django_task_locks.locks.keys import Keys

_LINE = re.compile(rb"\+(\d+\.\d+) \[[^\]]*\] (.*)")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))")
_OTHERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}
_READS = {
    *("EXISTS", "GET", "MGET", "SCARD", "SDIFF", "SISMEMBER", "SMEMBERS", "SRANDMEMBER", "TYPE"),
    *("ECHO", "EVAL", "EVALSHA", "SCAN", "SSCAN", "STRLEN"),
}


@dataclass(slots=True)
class Span:
    """A lock that a request had; is_lost: until the server lost everything."""

    resource: str
    id: str
    is_shared: bool
    began: float
    ended: float = inf
    is_lost: bool = False


class LockRecord:
    """Of the server at this socket, while it is entered."""

    def __init__(self, socket_path: Path, keys: Keys) -> None:
        self._path = str(socket_path)
        self._keys = keys
        self._socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        self._socket.connect(self._path)
        self._socket.sendall(b"MONITOR\r\n")
        if self._socket.recv(5) != b"+OK\r\n":
            raise RuntimeError("the server cannot be monitored")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def spans(self) -> list[Span]:
        """All until now, by their beginning. To be asked once."""
        last = b"the end of the record"
        with Redis(unix_socket_path=self._path) as client:
            client.echo(last)
        data = b""
        while last not in data[-1000:]:
            more = self._socket.recv(1 << 20)
            if not more:
                raise RuntimeError("the server has cut its record off")
            data += more
        replay = _Replay(self._keys)
        replay.take(data.splitlines())
        return replay.spans


@dataclass(slots=True)
class _Replay:
    """The keys of requests and locks, as the commands have changed them."""

    keys: Keys
    spans: list[Span] = field(default_factory=list)
    _strings: dict[str, str] = field(default_factory=dict)
    _sets: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _open: dict[tuple[str, str], Span] = field(default_factory=dict)

    def take(self, lines: Iterable[bytes]) -> None:
        ours = (self.keys.request("").encode(), self.keys.lock("").encode(), b'"FLUSHALL"')
        for line in lines:
            if any(mark in line for mark in ours) and (match := _LINE.match(line)):
                words = [_unescaped(word) for word in _WORD.findall(match[2])]
                self._follow(float(match[1]), words[0].upper(), words[1:])

    def _follow(self, at: float, command: str, words: list[str]) -> None:
        if command in _READS:
            return
        if command == "FLUSHALL":
            self._lose(at)
            return
        changes: dict[str, Callable[[list[str]], None]] = {
            "SET": self._set,
            "MSET": self._mset,
            "MSETNX": self._msetnx,
            "DEL": self._delete,
            "SADD": self._add,
            "SREM": self._remove,
        }
        if command not in changes:
            # SADD owner:..., RPUSH grant:... and the like name ids, not keys of ours.
            if any(map(self._is_ours, words)):
                raise ValueError(f"{command}: what it does to {words} is not known here")
            return
        changes[command](words)
        for key in filter(self._is_lock, words):
            self._note(at, key)

    # -- the commands ------------------------------------------------------------------------------

    def _set(self, words: list[str]) -> None:
        key, value, *options = words
        if "NX" in options and self._is_there(key):
            return
        self._delete([key])
        self._strings[key] = value

    def _mset(self, words: list[str]) -> None:
        for key, value in _pairs(words):
            self._set([key, value])

    def _msetnx(self, words: list[str]) -> None:
        if not any(self._is_there(key) for key, _ in _pairs(words)):
            self._mset(words)

    def _delete(self, words: list[str]) -> None:
        for key in words:
            self._strings.pop(key, None)
            self._sets.pop(key, None)

    def _add(self, words: list[str]) -> None:
        key, *members = words
        if key not in self._strings:  # a string refuses
            self._sets[key].update(members)

    def _remove(self, words: list[str]) -> None:
        key, *members = words
        if key in self._sets:
            self._sets[key].difference_update(members)
            if not self._sets[key]:
                del self._sets[key]

    def _lose(self, at: float) -> None:
        self._strings.clear()
        self._sets.clear()
        for span in self._open.values():
            span.ended, span.is_lost = at, True
        self._open.clear()

    # -- what comes of them ------------------------------------------------------------------------

    def _is_there(self, key: str) -> bool:
        return key in self._strings or key in self._sets

    def _is_lock(self, word: str) -> bool:
        return word.startswith(self.keys.lock(""))

    def _is_ours(self, word: str) -> bool:
        return self._is_lock(word) or word.startswith(self.keys.request(""))

    def _holders(self, key: str) -> set[str]:
        if key in self._strings:
            holder = self._strings[key][1:]  # after the mark whether somebody waits
            return {holder} if holder else set()
        return set(self._sets.get(key, ()))

    def _note(self, at: float, key: str) -> None:
        resource, holders = key.removeprefix(self.keys.lock("")), self._holders(key)
        present = {id for name, id in self._open if name == resource}
        for id in present - holders:
            self._open.pop((resource, id)).ended = at
        for id in holders - present:
            self._open[resource, id] = span = Span(resource, id, key in self._sets, at)
            self.spans.append(span)


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    return zip(words[::2], words[1::2], strict=True)


def _unescaped(word: bytes) -> str:
    def plain(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes([int(match[1], 16)])
        return _OTHERS.get(match[2], match[2])

    return _ESCAPED.sub(plain, word).decode(errors="replace")
