from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_task_locks", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="task",
            name="time_limit",
            field=models.FloatField(blank=True, null=True),
        ),
    ]
