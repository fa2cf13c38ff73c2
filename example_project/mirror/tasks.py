"""The mirror's work: ordinary functions, which know nothing about locks.

Whoever dispatches them names the resources (mirror/demo/scenario.py does). Each may be killed
at any moment and run again: what it leaves half-done is never read, and a repeated run gives
the same result. Transactions are short, since SQLite has one writer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from mirror.models import Artifact, Publication, Remote, Repository
from mirror.recording import recorded_run
from mirror.records import compute_digests, offers, recorded_files

BATCH = 500

T = TypeVar("T")


@recorded_run()
def sync_repository(repository_id: int, passes: int = 1) -> dict[str, int]:
    """Hashes every file of a distribution, compares it with RECORD and stores the artifacts.

    Needs the repository exclusively and its remote shared. The files are read `passes` times:
    one pass finds what there is to find, the demo asks for more so that there is time to watch.
    """
    repository = Repository.objects.get(pk=repository_id)
    serial = repository.next_serial
    Repository.objects.filter(pk=repository_id).update(next_serial=serial + 1)

    files = list(recorded_files(metadata.distribution(repository.name)))
    computed = compute_digests(files, passes)
    artifacts = [
        Artifact(
            repository=repository,
            serial=serial,
            path=file.path,
            recorded_hash=file.digest,
            computed_hash=computed[file.path],
            size=file.size,
            ok=computed[file.path] == file.digest,
        )
        for file in files
    ]
    for some in _batches(artifacts):
        Artifact.objects.bulk_create(some)
    Repository.objects.filter(pk=repository_id).update(current_serial=serial)
    return {
        "serial": serial,
        "files": len(artifacts),
        "mismatches": sum(not artifact.ok for artifact in artifacts),
    }


@recorded_run()
def publish_repository(
    repository_id: int, publication_id: int, passes: int = 1
) -> dict[str, str | int]:
    """Writes a manifest of the repository's artifacts, those that are still as they were synced.

    Needs the repository shared and the publication exclusively: two publications of one
    repository are written side by side, and none while the repository is synced.
    """
    repository = Repository.objects.get(pk=repository_id)
    serial = repository.current_serial
    artifacts = Artifact.objects.filter(repository=repository, serial=serial, ok=True)
    synced = dict(artifacts.order_by("path").values_list("path", "computed_hash"))

    files = recorded_files(metadata.distribution(repository.name))
    found = compute_digests([file for file in files if file.path in synced], passes)
    same = {path: digest for path, digest in synced.items() if found.get(path) == digest}
    manifest = "".join(f"{digest}  {path}\n" for path, digest in same.items())
    content_hash = hashlib.sha256(manifest.encode()).hexdigest()
    Publication.objects.filter(pk=publication_id).update(
        serial=serial, manifest=manifest, content_hash=content_hash
    )
    return {"serial": serial, "files": len(same), "content_hash": content_hash}


@recorded_run()
def refresh_remote(remote_id: int) -> dict[str, int]:
    """Looks up which versions a remote offers now. Needs the remote exclusively."""
    remote = Remote.objects.get(pk=remote_id)
    versions = {o.name: o.version for o in offers() if o.location == remote.location}
    known = list(Repository.objects.filter(remote=remote, name__in=versions))
    for repository in known:
        repository.version = versions[repository.name]
    with transaction.atomic():
        Repository.objects.bulk_update(known, ["version"])
        Remote.objects.filter(pk=remote_id).update(refreshed_at=timezone.now())
    return {"offered": len(versions), "mirrored": len(known)}


@recorded_run()
def prune() -> dict[str, int]:
    """Deletes artifacts that a later sync superseded or whose files are gone.

    Needs all repositories exclusively.
    """
    superseded = Artifact.objects.filter(~Q(serial=F("repository__current_serial")))
    return {
        "superseded": _delete(superseded.values_list("pk", flat=True)),
        "gone": _delete(_gone()),
    }


def _gone() -> Iterator[int]:
    current = Artifact.objects.filter(serial=F("repository__current_serial"))
    for pk, location, path in current.values_list("pk", "repository__remote__location", "path"):
        if not Path(location, path).exists():
            yield pk


def _delete(primary_keys: Iterable[int]) -> int:
    batches = _batches(list(primary_keys))
    return sum(Artifact.objects.filter(pk__in=some).delete()[0] for some in batches)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]
