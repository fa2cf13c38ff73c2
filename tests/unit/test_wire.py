"""What clients send is cut into commands, wherever the network cuts it, and no byte is changed."""

import pytest

from tests.support.wire import Framing, PostgresFraming, RedisFraming, summary

START = (8).to_bytes(4, "big") + (196_608).to_bytes(4, "big")
NO_TLS = (8).to_bytes(4, "big") + (80_877_103).to_bytes(4, "big")


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def pieces(framing: Framing, data: bytes, step: int) -> list[tuple[str | None, bytes]]:
    return [
        piece
        for first in range(0, len(data), step)
        for piece in framing.feed(data[first : first + step])
    ]


PIPELINE = b"*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\r\n\r\n"
STATEMENTS = (
    NO_TLS
    + START
    + message(b"Q", b'UPDATE "task" SET state = 1\0')
    + message(b"P", b"\0SELECT 1\0\0\0")
    + message(b"B", b"\0\0")
    + message(b"E", b"\0\0\0\0\0")
    + message(b"S", b"")
    + message(b"X", b"")
)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_pipeline_is_as_many_commands_as_it_has(step: int) -> None:
    found = pieces(RedisFraming(), PIPELINE, step)
    assert [name for name, _ in found] == ["PING", "SET"]
    assert b"".join(raw for _, raw in found) == PIPELINE


def test_a_script_is_named_by_its_digest() -> None:
    command = b"*2\r\n$7\r\nEVALSHA\r\n$4\r\nabcd\r\n"
    assert pieces(RedisFraming(), command, 1000) == [("EVALSHA abcd", command)]


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_messages_up_to_a_sync_are_one_command_and_an_end_is_none(step: int) -> None:
    found = pieces(PostgresFraming(), STATEMENTS, step)
    assert [name for name, _ in found] == [None, "connect", "UPDATE task", "SELECT 1", None]
    assert b"".join(raw for _, raw in found) == STATEMENTS


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        (b'SELECT "t"."id" FROM "t" WHERE true', "SELECT t"),
        (b'INSERT INTO "t" ("id") VALUES (1)', "INSERT t"),
        (b'DELETE FROM "t"', "DELETE t"),
        (b"BEGIN", "BEGIN"),
        (b"", ""),
    ],
)
def test_a_statement_is_shown_in_a_few_words(sql: bytes, shown: str) -> None:
    assert summary(sql) == shown
