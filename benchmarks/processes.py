"""Processes of peers: started, looked at, and ended with everything that they have started."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.server_base import tethered


class Started:
    """One command in a session of its own, its output in a file. It ends with this process."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        output: Path,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> None:
        self.output = output
        with output.open("ab") as log:
            self.process = subprocess.Popen(
                tethered(command, signal.SIGKILL),
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        # What is killed with it is known even when the process itself is gone.
        self._seen: set[psutil.Process] = set()

    def family(self) -> list[psutil.Process]:
        """It and all that it has started and that lives: descendants, and who is in its session."""
        with suppress(psutil.NoSuchProcess):
            self._seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        for process in psutil.process_iter():
            with suppress(ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    self._seen.add(process)
        self._seen = {process for process in self._seen if process.is_running()}
        return list(self._seen)

    def log(self, lines: int = 12) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])


def kill(all_started: Sequence[Started], timeout: float = 10.0) -> float:
    """SIGKILL to all of them at once, as when a container ends. Returns when they are gone: the
    time.monotonic() of the blow."""
    doomed = [process for started in all_started for process in started.family()]
    struck_at = time.monotonic()
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, or they would start others
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
    # What they started between the look and the stop.
    late = [process for started in all_started for process in started.family()]
    for process in late:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for started in all_started:
        started.process.wait(timeout)
    psutil.wait_procs([*doomed, *late], timeout=timeout)
    return struck_at
