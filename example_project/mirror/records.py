"""Installed distributions, as their RECORD files describe them."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """One line of a RECORD: a file with the hash and the size that it had when installed."""

    path: str
    location: Path
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A distribution that can be mirrored."""

    name: str
    version: str
    location: str
    files: int
    size: int


def offers() -> list[Offer]:
    """All installed distributions that list files with hashes; one of several of a name."""
    found: dict[str, Offer] = {}
    for distribution in metadata.distributions():
        files = list(recorded_files(distribution))
        name = distribution.metadata["Name"]
        if files and name.lower() not in found:
            found[name.lower()] = Offer(
                name=name,
                version=distribution.version,
                location=str(distribution.locate_file("")),
                files=len(files),
                size=sum(file.size for file in files),
            )
    return list(found.values())


def recorded_files(distribution: metadata.Distribution) -> Iterator[RecordedFile]:
    """The files of a distribution that have a SHA-256 in its RECORD; missing ones too."""
    seen: set[str] = set()
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        path, recorded, size = (*row, "", "", "")[:3]
        algorithm, _, digest = recorded.partition("=")
        if algorithm == "sha256" and path not in seen:
            seen.add(path)
            yield RecordedFile(
                path=path,
                location=Path(str(distribution.locate_file(path))),
                digest=digest,
                size=int(size or 0),
            )


def compute_digest(location: Path) -> str:
    """The hash of a file as RECORD writes it: URL-safe base64 of its SHA-256, unpadded.

    Empty where the file is gone or unreadable.
    """
    sha256 = hashlib.sha256()
    try:
        with location.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                sha256.update(chunk)
    except OSError:
        return ""
    return base64.urlsafe_b64encode(sha256.digest()).rstrip(b"=").decode()


def compute_digests(files: Sequence[RecordedFile], passes: int = 1) -> dict[str, str]:
    """The hashes of files by their paths, each computed `passes` times."""
    computed: dict[str, str] = {}
    for _ in range(passes):
        computed = {file.path: compute_digest(file.location) for file in files}
    return computed
