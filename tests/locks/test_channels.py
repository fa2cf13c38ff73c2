"""A connection that redis-py has made, used by its socket: the same replies and errors."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.exceptions import (
    ConnectionError,
    NoScriptError,
    ResponseError,
    TimeoutError,
)

from django_task_locks.locks import channels
from django_task_locks.locks.channels import SocketChannel
from tests.support.servers import ValkeyServer

pytestmark = pytest.mark.skipif(channels.hiredis is None, reason="used with hiredis alone")


class OwnReading(UnixDomainSocketConnection):
    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        return super().read_response(*args, **kwargs)


@pytest.fixture
def opened() -> Iterator[list[SocketChannel]]:
    found: list[SocketChannel] = []
    yield found
    for channel in found:
        channel.close()


@pytest.fixture
def channel(valkey: ValkeyServer, redis_client: Redis, opened: list[SocketChannel]) -> Any:
    def build(**options: Any) -> SocketChannel:
        pool = ConnectionPool.from_url(valkey.url, **options)
        made = SocketChannel(pool.connection_class(**pool.connection_kwargs))
        opened.append(made)
        return made

    return build


def uses_socket(channel: SocketChannel) -> bool:
    return channel._socket is not None


@pytest.mark.parametrize("options", [{}, {"protocol": 2}, {"protocol": 3}, {"db": 1}])
@pytest.mark.parametrize("decoded", [False, True])
def test_replies_are_text_numbers_lists_and_nothing(
    channel: Any, options: dict[str, Any], decoded: bool
) -> None:
    line = channel(decode_responses=decoded, **options)
    assert line.ask(("SET", "k", "größe")) == "OK"
    assert line.ask_all([("GET", "k"), ("GET", "none"), ("INCR", "n")]) == ["größe", None, 1]
    assert line.ask(("MGET", "k", "n")) == ["größe", "1"]
    assert uses_socket(line)


def test_what_is_no_text_is_shown_escaped(channel: Any) -> None:
    line = channel()
    line.ask(("SET", "k", b"\xff\xfea"))
    assert line.ask(("GET", "k")) == "\\xff\\xfea"


def test_commands_and_replies_of_many_packets_are_whole(channel: Any) -> None:
    line = channel()
    large = "x" * 10_000_000  # more than a socket takes at once
    line.ask(("SET", "k", large))
    assert line.ask(("GET", "k")) == large
    assert line.ask_all([("SET", "k", large + "y"), ("STRLEN", "k")]) == ["OK", len(large) + 1]
    assert uses_socket(line)


def test_errors_are_those_of_redis_py_and_the_next_answer_is_that_to_the_next_question(
    channel: Any,
) -> None:
    line = channel()
    with pytest.raises(NoScriptError):
        line.ask(("EVALSHA", "0" * 40, "0"))
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        line.ask_all([("SET", "k", "v"), ("LPUSH", "k", "a"), ("GET", "k")])
    assert line.ask(("GET", "k")) == "v"


@pytest.mark.skipif(channels._Push is None, reason="hiredis tells a push from an answer since 3.2")
@pytest.mark.parametrize("decoded", [False, True])
def test_what_the_server_pushes_is_no_answer(
    channel: Any, redis_client: Redis, decoded: bool
) -> None:
    line = channel(protocol=3, decode_responses=decoded)
    line.ask(("CLIENT", "TRACKING", "ON", "BCAST"))
    redis_client.set("k", "v")
    assert line.ask(("GET", "k")) == "v"
    assert line.ask(("ECHO", "next")) == "next"
    assert uses_socket(line)


def test_an_answer_that_takes_too_long_is_a_timeout(channel: Any) -> None:
    line = channel(socket_timeout=0.05)
    with pytest.raises(TimeoutError):
        line.ask(("BLPOP", "nothing", "1"))
    line.close()
    assert line.ask(("ECHO", "next")) == "next"


def test_a_connection_that_the_server_has_closed_is_told_and_made_anew(
    channel: Any, redis_client: Redis
) -> None:
    line = channel()
    redis_client.client_kill_filter(_id=str(line.ask(("CLIENT", "ID"))))
    with pytest.raises(ConnectionError):
        line.ask(("ECHO", "lost"))
    line.close()
    assert line.ask(("ECHO", "next")) == "next"


def test_a_server_that_is_away_is_told(channel: Any, valkey: ValkeyServer) -> None:
    pool = ConnectionPool.from_url(f"unix://{valkey.directory}/nobody.sock")
    with pytest.raises(ConnectionError):
        SocketChannel(pool.connection_class(**pool.connection_kwargs)).ask(("PING",))


@pytest.mark.parametrize(
    "options", [{"health_check_interval": 30}, {"connection_class": OwnReading}]
)
def test_what_redis_py_would_do_besides_is_done(channel: Any, options: dict[str, Any]) -> None:
    line = channel(decode_responses=True, **options)
    assert line.ask_all([("SET", "k", "v"), ("GET", "k")])[1] == "v"
    assert line.ask(("GET", "k")) == "v"
    assert not uses_socket(line)


def test_without_hiredis_redis_py_does_it(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "hiredis", None)
    line = channel()
    assert line.ask_all([("SET", "k", "v"), ("GET", "k")])[1] == b"v"
    assert not uses_socket(line)
