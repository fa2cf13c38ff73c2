"""Acts on what only a scan finds: requests that no registry has, locks that no request has."""

from django.db import router

from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.locks.keys import QUEUE_OWNER
from django_task_locks.models import Task
from django_task_locks.reconciling import release_ended
from django_task_locks.reports import Report
from django_task_locks.settling import find_task, task_id


def clean_unregistered(report: Report) -> None:
    """Those of dead processes have been settled with all else that these have left."""
    for owner, ids in sorted(report.survey.unregistered().items()):
        for id in sorted(ids):
            if not report.scope.covers_owner(owner) or not report.scope.covers_request(id):
                continue
            if not owner.startswith(QUEUE_OWNER):
                if get_lock_manager().known([id]):
                    why = "no registry has it"
                    report.postpone("request", id, owner, why, "leave it to its process")
            elif is_incomplete(id):
                report.postpone("request", id, owner, "no registry has it", "leave it to its task")
            else:
                release_ended(id, owner, report)


def clean_strays(report: Report) -> None:
    """A lock whose request is lost may still protect code that runs: it is freed where the row of
    its task says that this has ended, or where its process was found dead.
    """
    for resource, kind, id in report.survey.strays():
        if not report.scope.is_everything and not report.scope.covers_lock(resource, id):
            continue
        subject, why = f"{resource} {id}", f"its {kind} has no request"
        if is_incomplete(id):
            report.postpone("lock", subject, "", why, "leave it to its task")
        elif id not in report.survey.of_dead and find_task(id) is None:
            # A hold's, or an immediate task's in a transaction that nobody sees.
            report.postpone(
                "lock", subject, "", why, "leave it: nothing tells whether it has ended"
            )
        else:
            with report.step("lock", subject, "", why, "free"):
                if not report.dry_run:
                    get_lock_manager().free(resource, id)
                    emit("recovery.freed", resource=resource, request=id)


def is_incomplete(id: str) -> bool:
    rows = Task.objects.using(router.db_for_write(Task)).incomplete()
    return (pk := task_id(id)) is not None and rows.filter(pk=pk).exists()
