"""AppStatus: a process with a heartbeat. LockEpoch: what processes agree upon."""

from django.db import models, router

from django_task_locks.ids import uuid7
from django_task_locks.locks.rebuild import Epoch
from django_task_locks.managers import AppStatusQuerySet


class AppStatus(models.Model):
    """One incarnation of a process: a restart under the same name is another row and owner."""

    class AppType(models.TextChoices):
        WORKER = "worker"
        WEB = "web"
        OTHER = "other"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=200, db_index=True)
    app_type = models.CharField(max_length=10, choices=AppType, default=AppType.OTHER)
    versions = models.JSONField(default=dict, blank=True)
    ttl = models.DurationField()
    started_at = models.DateTimeField()
    last_heartbeat = models.DateTimeField()
    missing_at = models.DateTimeField(null=True, blank=True)
    epoch = models.BigIntegerField(default=0)
    hostname = models.CharField(max_length=255, blank=True)
    pid = models.PositiveIntegerField(default=0)
    lock_file = models.CharField(max_length=1000, blank=True)

    objects = AppStatusQuerySet.as_manager()

    class Meta:
        verbose_name = "process"
        verbose_name_plural = "processes"

    def __str__(self) -> str:
        return self.owner

    @property
    def owner(self) -> str:
        """How the lock manager names this incarnation."""
        return f"{self.name}@{self.pk}"


class LockEpoch(models.Model):
    """The present epoch of the locks (see `locks.rebuild`): one row, none before the first."""

    id = models.SmallIntegerField(primary_key=True, default=1, editable=False)
    number = models.BigIntegerField()
    server = models.CharField(max_length=64, blank=True)
    raised_at = models.DateTimeField()

    class Meta:
        verbose_name = "epoch of the locks"
        verbose_name_plural = "epochs of the locks"

    def __str__(self) -> str:
        return f"{self.number}:{self.server}"

    @classmethod
    def present(cls) -> Epoch:
        """As it stands in the database now."""
        rows = cls.objects.using(router.db_for_write(cls))
        found = rows.values_list("number", "server").first()
        return Epoch(*found) if found else Epoch(0)
