"""Cuts what a client sends to Redis or PostgreSQL into commands, without changing a byte of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

# The name of a command, None for what is none and is only passed on; and its bytes.
Piece = tuple[str | None, bytes]


class Framing(ABC):
    """One connection's stream from the client, in pieces; it keeps what is incomplete."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete with this data."""
        self._data += data
        while (end := self._end()) is not None:
            raw, self._data = self._data[:end], self._data[end:]
            yield from self._piece(raw)

    @abstractmethod
    def _end(self) -> int | None:
        """Where the first unit of the data ends; None if it is incomplete."""

    @abstractmethod
    def _piece(self, raw: bytes) -> Iterator[Piece]: ...


class RedisFraming(Framing):
    """RESP: each request is an array of bulk strings. A pipeline has several."""

    def _end(self) -> int | None:
        data = self._data
        if (at := data.find(b"\r\n")) < 0:
            return None
        parts, position = int(data[1:at]), at + 2
        for _ in range(parts):
            if (at := data.find(b"\r\n", position)) < 0:
                return None
            position = at + 2 + int(data[position + 1 : at]) + 2
        return position if position <= len(data) else None

    def _piece(self, raw: bytes) -> Iterator[Piece]:
        words = raw.split(b"\r\n")[2:5:2]  # the command and its first argument
        with_argument = words[0].upper() in (b"EVALSHA", b"EVAL", b"CLIENT")
        shown = words if with_argument else words[:1]
        yield b" ".join(word[:60] for word in shown).decode(errors="replace"), raw


class PostgresFraming(Framing):
    """A command is the connection's start, a Query, or all from a Parse, Bind or Execute to the
    Sync.
    """

    _START = 196_608  # version 3.0 of the protocol

    def __init__(self) -> None:
        super().__init__()
        self._is_started = False
        self._unit = b""
        self._sql = ""

    def _end(self) -> int | None:
        head = 0 if not self._is_started else 1
        if len(self._data) < head + 4:
            return None
        end = head + int.from_bytes(self._data[head : head + 4], "big")
        return end if end <= len(self._data) else None

    def _piece(self, raw: bytes) -> Iterator[Piece]:
        if not self._is_started:
            code = int.from_bytes(raw[4:8], "big")
            self._is_started = code == self._START
            # Others ask for encryption or cancel a statement of another connection.
            yield ("connect" if self._is_started else None), raw
            return
        kind = raw[:1]
        if kind == b"Q":
            yield summary(raw[5:-1]), self._unit + raw
            self._unit = b""
        elif kind == b"S":
            yield self._sql or "execute", self._unit + raw
            self._unit, self._sql = b"", ""
        elif kind in b"PBDEC":
            if kind == b"P":
                self._sql = summary(raw[5:].split(b"\0")[1])
            self._unit += raw
        else:
            yield None, self._unit + raw
            self._unit = b""


def summary(sql: bytes) -> str:
    """A statement in a few words: its verb and the table, or how it begins."""
    words = sql.decode(errors="replace").replace('"', "").split()
    verb = words[0].upper() if words else ""
    marks = {"SELECT": "FROM", "INSERT": "INTO", "DELETE": "FROM", "UPDATE": "UPDATE"}
    mark = marks.get(verb)
    upper = [word.upper() for word in words]
    if mark in upper and len(words) > upper.index(mark) + 1:
        return f"{verb} {words[upper.index(mark) + 1]}"
    return " ".join(words)[:60]
