"""What the mirror knows, and the record of when each task's body ran."""

from django.db import models


class Remote(models.Model):
    """A place that distributions come from: one directory of installed packages."""

    location = models.CharField(max_length=1024, unique=True)
    refreshed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.location


class Repository(models.Model):
    """One distribution of a remote.

    Each sync writes its artifacts under a new serial and makes that serial the current one at
    its end. A sync that dies half-way leaves artifacts that nobody reads; prune deletes them.
    """

    remote = models.ForeignKey(Remote, on_delete=models.CASCADE)
    name = models.CharField(max_length=200, unique=True)
    version = models.CharField(max_length=100, blank=True)
    next_serial = models.PositiveIntegerField(default=1)
    current_serial = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.name


class Artifact(models.Model):
    """One file of a repository, as recorded by its installer and as found on disk."""

    repository = models.ForeignKey(Repository, on_delete=models.CASCADE)
    serial = models.PositiveIntegerField()
    path = models.CharField(max_length=1024)
    recorded_hash = models.CharField(max_length=64)
    computed_hash = models.CharField(max_length=64, blank=True)
    size = models.PositiveBigIntegerField()
    ok = models.BooleanField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("repository", "serial", "path"), name="artifact_once_a_serial"
            ),
        )

    def __str__(self) -> str:
        return self.path


class Publication(models.Model):
    """A manifest of a repository that clients may read."""

    repository = models.ForeignKey(Repository, on_delete=models.CASCADE)
    name = models.CharField(max_length=100)
    serial = models.PositiveIntegerField(default=0)
    content_hash = models.CharField(max_length=64, blank=True)
    manifest = models.TextField(blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("repository", "name"), name="publication_name"),
        )

    def __str__(self) -> str:
        return f"{self.repository}/{self.name}"


class TaskRun(models.Model):
    """When a task's body began and ended, on the clock that all processes of a host share.

    The rows are the evidence for the demo's checks. A body that was killed has no end.
    """

    task_id = models.UUIDField(db_index=True)
    name = models.CharField(max_length=200)
    worker = models.CharField(max_length=200, blank=True)
    incarnation = models.UUIDField(null=True, help_text="primary key of the process's AppStatus")
    pid = models.PositiveIntegerField()
    began = models.BigIntegerField(help_text="CLOCK_MONOTONIC, nanoseconds")
    ended = models.BigIntegerField(null=True, help_text="CLOCK_MONOTONIC, nanoseconds")

    def __str__(self) -> str:
        return f"{self.name} {self.task_id}"
