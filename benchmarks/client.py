"""The process that dispatches jobs for a peer: see benchmarks.engines.client for what it does."""

import json
import select
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Started

_LONGEST_ANSWER = 300.0


@dataclass(frozen=True, slots=True)
class Done:
    """By time.monotonic, which is one clock for all processes of the host."""

    began_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


class ClientFailed(Exception):
    """The process that dispatches has ended, or has not answered for minutes.

    log  the end of what it has printed
    """

    def __init__(self, log: str) -> None:
        super().__init__("the dispatching process ended, or hangs")
        self.log = log


class Client:
    def __init__(self, python: Path, environment: Mapping[str, str], log: Path) -> None:
        self.started = Started(
            [python, "-m", "benchmarks.engines.client"],
            environment,
            log,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        # What this peer can do beside dispatching one job.
        self.can: Sequence[str] = self._answer()["can"]

    def dispatch(self, file: Path, how: str) -> Done:
        return Done(**self._order({"dispatch": str(file), "how": how}))

    def occupy(self, names: Sequence[str]) -> Done:
        return Done(**self._order({"occupy": list(names)}))

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        stdin = self.started.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        stdout = self.started.process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], _LONGEST_ANSWER)
        line = stdout.readline() if ready else b""
        if not line:
            raise self._failed()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self) -> ClientFailed:
        return ClientFailed(self.started.log())
