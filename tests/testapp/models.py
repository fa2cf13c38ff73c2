"""Models that tests use as resources. No migrations: the tables are made as they stand here."""

from django.db import models


class Book(models.Model):
    title = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.title


class Reprint(Book):
    """The same rows by another name."""

    class Meta:
        proxy = True


class Audiobook(Book):
    """A table of its own, whose rows are books, too."""

    narrator = models.CharField(max_length=100)


class Run(models.Model):
    """When a body ran: seconds on the clock that all processes of this host share.

    A body that was killed has no end.
    """

    task_id = models.UUIDField(null=True)
    label = models.CharField(max_length=100)
    pid = models.PositiveIntegerField()
    began = models.FloatField()
    ended = models.FloatField(null=True)

    def __str__(self) -> str:
        return f"{self.label} {self.began}-{self.ended}"
