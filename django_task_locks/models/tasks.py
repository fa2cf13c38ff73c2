"""Task: what to run, and its state machine."""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.db import models, router, transaction

from django_task_locks import progress, signals, statements, states
from django_task_locks.exceptions import InvalidTransition
from django_task_locks.ids import uuid7
from django_task_locks.managers import DatabaseNow, TaskQuerySet
from django_task_locks.models.fields import NamesField
from django_task_locks.models.groups import TaskGroup
from django_task_locks.models.processes import AppStatus
from django_task_locks.states import State

NOW = DatabaseNow()


class Task(models.Model):
    """What to run, with which resources, and how it went.

    A change of state is one conditional UPDATE (`start`, `finish`, `request_cancel`, `put_back`):
    it happens only from the state, owner and token that it names; otherwise InvalidTransition is
    raised and nothing has changed. `signals.task_state_changed` follows its commit.
    """

    State = states.State
    OnWorkerLoss = states.OnWorkerLoss

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=255)
    args = models.JSONField(default=list, blank=True)
    kwargs = models.JSONField(default=dict, blank=True)
    exclusive = NamesField(default=list, blank=True)
    shared = NamesField(default=list, blank=True)
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    queue = models.CharField(max_length=100, default="default")
    priority = models.SmallIntegerField(default=0)
    run_after = models.DateTimeField(null=True, blank=True)
    immediate = models.BooleanField(default=False)
    deferred = models.BooleanField(default=True)
    versions = models.JSONField(default=dict, blank=True)
    on_worker_loss = models.CharField(
        max_length=10, choices=OnWorkerLoss, default=OnWorkerLoss.FAIL
    )
    max_attempts = models.PositiveSmallIntegerField(default=1)
    attempt = models.PositiveSmallIntegerField(default=1)
    retry_on = models.JSONField(default=list, blank=True)
    retry_delay = models.FloatField(null=True, blank=True)
    time_limit = models.FloatField(null=True, blank=True)
    unique_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001
    # What stands for the key while the task is incomplete; NULL, of which every database accepts
    # many, from its final transition on.
    key_claim = models.CharField(max_length=64, null=True, editable=False)  # noqa: DJ001
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    progress = models.JSONField(null=True, blank=True)
    # A constraint would make every claim lock its process's row, which the heartbeat writes.
    app_lock = models.ForeignKey(
        AppStatus,
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="tasks",
    )
    worker_name = models.CharField(max_length=200, blank=True)
    parent_task = models.ForeignKey(
        "self",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="child_tasks",
    )
    task_group = models.ForeignKey(
        TaskGroup, models.PROTECT, null=True, blank=True, db_index=False, related_name="tasks"
    )
    lock_token = models.BigIntegerField(default=0)

    objects = TaskQuerySet.as_manager()

    class Meta:
        # Each change of state writes into every index that has the row: those of what most rows
        # have not leave these out, where the database can.
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["state", "id"], name="task_locks_state"),
            models.Index(
                fields=["app_lock"],
                name="task_locks_app_lock",
                condition=models.Q(app_lock__isnull=False),
            ),
            models.Index(
                fields=["parent_task"],
                name="task_locks_parent",
                condition=models.Q(parent_task__isnull=False),
            ),
            models.Index(
                fields=["task_group", "state"],
                name="task_locks_group",
                condition=models.Q(task_group__isnull=False),
            ),
        ]
        # No `unique=True`: PostgreSQL would get another index, for LIKE.
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["key_claim"], name="task_locks_key_claim"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.pk})"

    @property
    def is_final(self) -> bool:
        return State(self.state).is_final

    # -- for its callers -------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> Any:
        """The task's result, as soon as it has ended; this instance is loaded anew.

        timeout  seconds to wait; 0 only looks, None waits as long as it takes

        Who waits is woken by the lock service, from any number of processes; while that is away,
        the row is looked at once a second at most.

        Raises TaskFailed or TaskCanceled, with the error that was stored; TaskTimeout, which names
        who is in the way; WouldDeadlock where the task cannot end before this code does: in its own
        body, while this code holds what it waits for, inside a transaction. Whoever waits in a
        worker's task occupies its executor: leave others for those that are waited for.
        """
        from django_task_locks import waiting

        return waiting.here(waiting.result_of(self, timeout))

    async def await_result(self, timeout: float | None = None) -> Any:
        """As `wait`, without blocking the event loop."""
        from django_task_locks import waiting

        return await waiting.there(waiting.result_of(self, timeout))

    # -- for its body ----------------------------------------------------------------------------

    has_news = False

    def is_canceling(self) -> bool:
        """Whether somebody wants this task to end: for its own code, which ends early then. Asks
        the database.

        A worker stops the code of its tasks, and this process coroutines; a synchronous immediate
        task has to ask. It is recorded as canceled, whatever it returns.
        """
        return self._rows().filter(state=State.CANCELING, lock_token=self.lock_token).exists()

    def report_progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Stores in `progress` how far this task has come; for its own code, sync or async.

        done, total  numbers in whatever unit; total may be unknown
        message      text of up to 1,000 characters

        It never waits and never fails for a database that is away: a thread stores the last value
        at most once a second, past any transaction of the body, and the outcome brings the very
        last. Raises InvalidProgress for values that cannot be stored, and outside of the body.
        """
        progress.report(self, done, total, message)

    def store_progress(self) -> None:
        """Writes it now, while the row is this claim's and runs."""
        rows = self._rows().filter(state__in=State.owned(), lock_token=self.lock_token)
        rows.update(progress=self.progress)

    # -- state machine ---------------------------------------------------------------------------

    def start(self, process: AppStatus, token: int) -> None:
        """waiting to running, by the process that has claimed the request with this token.

        A token that is not newer than the row's was handed back in the meantime.
        """
        guard, changes = _start(process, token)
        self._change([State.WAITING], State.RUNNING, guard, **changes)

    @classmethod
    def starting(cls, pk: UUID, process: AppStatus, token: int) -> statements.Update:
        """The update by which `start` makes a row run that nobody has loaded yet. Who has carried
        it out calls `announce`.
        """
        guard, changes = _start(process, token)
        return _update(pk, [State.WAITING], State.RUNNING, guard, changes)

    def finish(
        self,
        state: states.State,
        *,
        token: int,
        result: Any = None,
        error: dict[str, str] | None = None,
        sources: Iterable[states.State] = (State.RUNNING,),
    ) -> None:
        """To a final state, by whoever may decide for the claim with this token."""
        news = {"progress": self.progress} if self.has_news else {}
        self._change(
            list(sources),
            state,
            {"lock_token": token},
            result=result,
            error=error,
            app_lock=None,
            finished_at=NOW,
            **news,
        )

    def request_cancel(self) -> None:
        """waiting to canceled, or running to canceling: whichever of them it is when the UPDATE
        comes; raises InvalidTransition if it is neither.
        """
        try:
            self.cancel_unstarted("Canceled before it started.")
        except InvalidTransition:
            self._change([State.RUNNING], State.CANCELING, {})

    def cancel_unstarted(self, why: str) -> None:
        """waiting to canceled, and nothing else."""
        self._change([State.WAITING], State.CANCELED, {}, error=reason(why), finished_at=NOW)

    def put_back(
        self,
        *,
        token: int,
        error: dict[str, str] | None = None,
        run_after: datetime | None = None,
    ) -> None:
        """running to waiting: another attempt, after its process was lost, or with the `error` of
        the last one, after `run_after` if there is one.
        """
        changes = {} if error is None else {"error": error, "run_after": run_after}
        self._change(
            [State.RUNNING],
            State.WAITING,
            {"lock_token": token, "attempt": self.attempt},
            app_lock=None,
            attempt=self.attempt + 1,
            started_at=None,
            **changes,
        )

    def hand_back(self, *, token: int) -> None:
        """running to waiting, by who has it and does not go on: the same attempt starts anew."""
        self._change(
            [State.RUNNING], State.WAITING, {"lock_token": token}, app_lock=None, started_at=None
        )

    def fence(self, token: int) -> bool:
        """Shuts out a claim whose request is about to be handed back: its late start will find the
        token used. False if the row is not waiting, or knows this token or a newer one.
        """
        return bool(
            self._rows().filter(state=State.WAITING, lock_token__lt=token).update(lock_token=token)
        )

    def _rows(self) -> TaskQuerySet:
        return Task.objects.using(router.db_for_write(Task, instance=self)).filter(pk=self.pk)

    def _change(
        self,
        sources: list[states.State],
        target: states.State,
        guard: dict[str, Any],
        **changes: Any,
    ) -> None:
        if target.is_final:
            changes["key_claim"] = None
        alias = router.db_for_write(Task, instance=self)
        if not _update(self.pk, sources, target, guard, changes).run(alias):
            expected = " or ".join(source.value for source in sources)
            conditions = "".join(f", {name}={value!r}" for name, value in guard.items())
            raise InvalidTransition(
                f"task {self.pk} cannot become {target.value}: it is not {expected}{conditions}"
            )
        old, self.state = self.state, target
        for name, value in changes.items():
            if isinstance(value, models.Expression | models.Func):
                self.__dict__.pop(name, None)  # the database knows; loaded when somebody asks
            else:
                setattr(self, name, value)
        self.announce(sources[0] if len(sources) == 1 else State(old))

    def announce(self, old_state: states.State, new_state: states.State | None = None) -> None:
        """Sends `task_state_changed`, with the present state unless another is given, when the
        present transaction is committed; at once without.
        """
        transaction.on_commit(
            partial(
                signals.task_state_changed.send_robust,
                sender=Task,
                task=self,
                old_state=old_state,
                new_state=new_state or State(self.state),
            ),
            using=router.db_for_write(Task, instance=self),
            robust=True,
        )


def _update(
    pk: UUID,
    sources: list[states.State],
    target: states.State,
    guard: dict[str, Any],
    changes: dict[str, Any],
) -> statements.Update:
    where = {"pk": pk, "state__in": tuple(sources), **guard}
    return statements.Update(Task, where, {"state": target, **changes})


def _start(process: AppStatus, token: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What must be true of a row that waits, and what changes with the state."""
    guard = {"lock_token__lt": token}
    changes = {
        "app_lock": process,
        "worker_name": process.name,
        "lock_token": token,
        "started_at": NOW,
    }
    return guard, changes


def reason(message: str) -> dict[str, str]:
    """The error of a task that ended for a reason other than its own exception."""
    return {"type": "", "message": message, "traceback": ""}


def described(error: dict[str, str]) -> str:
    """A task's error in one line."""
    return ": ".join(filter(None, (error["type"], error["message"])))
