"""Chooses what is mirrored: the distributions installed here that take longest to hash."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from mirror.models import Publication, Remote, Repository
from mirror.records import Offer, compute_digests, offers, recorded_files

REPOSITORIES = 8
FEWEST = 6
# Seconds that a sync should take when it has a processor to itself: long enough to be watched
# and killed, reached by reading the files several times.
BODY = 0.6
MOST_PASSES = 400
# Opening a file costs about as much as hashing this many bytes.
BYTES_TO_OPEN = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A repository of the demo with its publications, and how often its syncs read the files."""

    repository: Repository
    publications: tuple[Publication, ...]
    passes: int
    files: int
    size: int


class TooFewDistributions(Exception):
    """There are too few installed distributions with a RECORD to mirror."""


def build_catalog() -> list[Entry]:
    """Creates the repositories, the heaviest first; the last one is small and read once.

    Raises TooFewDistributions.
    """
    heaviest = sorted(offers(), key=_weight, reverse=True)[: REPOSITORIES + 1]
    if len(heaviest) <= FEWEST:
        raise TooFewDistributions(
            f"The demo mirrors {FEWEST + 1} or more installed distributions that have a RECORD "
            f"with hashes; this environment has {len(heaviest)}. Install a few more, with pip."
        )
    entries = [_create(offer, _passes_for(offer)) for offer in heaviest[:-1]]
    return [*entries, _create(heaviest[-1], passes=1)]


def describe_catalog(entries: Sequence[Entry]) -> str:
    names = ", ".join(str(entry.repository) for entry in entries)
    files, size = sum(entry.files for entry in entries), sum(entry.size for entry in entries)
    return (
        f"{len(entries)} installed distributions ({files:,} files, {size / 1e6:,.0f} MB): {names}"
    )


def _weight(offer: Offer) -> int:
    return offer.size + offer.files * BYTES_TO_OPEN


def _passes_for(offer: Offer) -> int:
    files = list(recorded_files(metadata.distribution(offer.name)))
    compute_digests(files)  # The first pass fills the operating system's cache.
    began = time.perf_counter()
    compute_digests(files)
    seconds = time.perf_counter() - began
    return max(1, min(MOST_PASSES, round(BODY / seconds)))


def _create(offer: Offer, passes: int) -> Entry:
    remote, _ = Remote.objects.get_or_create(location=offer.location)
    repository = Repository.objects.create(remote=remote, name=offer.name, version=offer.version)
    publications = tuple(
        Publication.objects.create(repository=repository, name=name)
        for name in ("stable", "testing")
    )
    return Entry(
        repository=repository,
        publications=publications,
        passes=passes,
        files=offer.files,
        size=offer.size,
    )
