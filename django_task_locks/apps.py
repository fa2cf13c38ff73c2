from django.apps import AppConfig


class TaskLocksConfig(AppConfig):
    name = "django_task_locks"
    verbose_name = "Task locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_task_locks import checks, epochs, receivers, schedules
        from django_task_locks.models import LockEpoch

        epochs.set_loader(lambda: str(LockEpoch.present()))
        checks.register_all()
        receivers.connect()
        schedules.connect()
