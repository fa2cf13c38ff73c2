"""The virtual environments that measuring processes run in, made once and kept."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTORY = ROOT / "build" / "benchmarks"


class UsageError(Exception):
    """Arguments that make no sense; says what would."""


class NoInterpreter(Exception):
    """A package needs another Python than there is on this machine."""


def interpreter(oldest: tuple[int, int]) -> Path:
    """A Python that is at least so new: this one if it will do, or one on the PATH or of pyenv.
    Raises NoInterpreter."""
    if sys.version_info >= oldest:
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in range(oldest[1], oldest[1] + 4):
        name = f"{oldest[0]}.{minor}"
        candidates = [shutil.which(f"python{name}"), *pyenv.glob(f"versions/{name}.*/bin/python")]
        for candidate in candidates:
            # That on the PATH may only be what would start one.
            if (
                candidate
                and not subprocess.run([candidate, "-c", ""], capture_output=True).returncode
            ):
                return Path(candidate)
    raise NoInterpreter(f"it needs Python {oldest[0]}.{oldest[1]} or newer")


def chosen(peers: str, known: Mapping[str, str]) -> dict[str, str]:
    """The requirements of the peers that `--peers` names, by name; `known` has them all, and "" for
    one that is installed here in any case.
    """
    if peers == "none":
        return {}
    if peers == "all":
        return dict(known)
    found = {}
    for peer in peers.split(","):
        name, separator, _ = peer.partition("==")
        if name not in known:
            raise UsageError(f"--peers {peer!r}: all, none, or some of {', '.join(known)}")
        if separator and not known[name]:
            raise UsageError(f"--peers {peer!r}: the version of {name} is that installed here")
        found[name] = peer if separator else known[name]
    return found


def installed(packages: Iterable[str]) -> list[str]:
    """Requirements for these packages as they are here; without those that are not."""
    found = []
    for package in packages:
        try:
            found.append(f"{package}=={version(package)}")
        except PackageNotFoundError:
            continue
    return found


def environment(
    requirements: Sequence[str], alone: Sequence[str] = (), interpreter: Path | None = None
) -> Path:
    """The Python of an environment that has these requirements and, without what they depend on,
    those in `alone`.

    interpreter  the Python that it is made with, if not this one
    """
    kind = sys.version if interpreter in (None, Path(sys.executable)) else str(interpreter)
    described = "\n".join([kind, *sorted(requirements), "alone:", *sorted(alone)])
    directory = DIRECTORY / f"venv-{hashlib.sha256(described.encode()).hexdigest()[:12]}"
    python = directory / "bin" / "python"
    made = directory / "made"
    if not made.exists():
        packages = ", ".join([*requirements, *alone])
        print(f"Making {directory.relative_to(ROOT)} with {packages}.", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([interpreter or sys.executable, "-m", "venv", directory], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        try:
            subprocess.run([*install, *requirements], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if alone:
            subprocess.run([*install, "--no-deps", *alone], check=True)
        made.touch()
    return python


def versions(python: Path, packages: Iterable[str]) -> dict[str, str | None]:
    """What is installed for this Python, by package; None for what is not."""
    program = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {"Python": platform.python_version()}
for package in sys.argv[1:]:
    try:
        found[package] = version(package)
    except PackageNotFoundError:
        found[package] = None
print(json.dumps(found))
"""
    output = subprocess.check_output([python, "-c", program, *packages], text=True)
    found: dict[str, str | None] = json.loads(output)
    return found
