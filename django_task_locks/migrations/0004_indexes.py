import django.db.models.deletion
from django.db import migrations, models

# What looks for rows always finds an index: the new ones come before the old ones go.


class Migration(migrations.Migration):
    dependencies = [
        ("django_task_locks", "0003_epoch"),
    ]

    operations = [
        migrations.AddConstraint(
            model_name="task",
            constraint=models.UniqueConstraint(fields=("key_claim",), name="task_locks_key_claim"),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("app_lock__isnull", False)),
                fields=["app_lock"],
                name="task_locks_app_lock",
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("parent_task__isnull", False)),
                fields=["parent_task"],
                name="task_locks_parent",
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("task_group__isnull", False)),
                fields=["task_group", "state"],
                name="task_locks_group",
            ),
        ),
        migrations.AlterField(
            model_name="task",
            name="key_claim",
            field=models.CharField(editable=False, max_length=64, null=True),
        ),
        migrations.AlterField(
            model_name="task",
            name="app_lock",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="tasks",
                to="django_task_locks.appstatus",
            ),
        ),
        migrations.AlterField(
            model_name="task",
            name="parent_task",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="child_tasks",
                to="django_task_locks.task",
            ),
        ),
        migrations.AlterField(
            model_name="task",
            name="task_group",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="tasks",
                to="django_task_locks.taskgroup",
            ),
        ),
        migrations.RemoveIndex(
            model_name="task",
            name="task_locks_group_state",
        ),
    ]
