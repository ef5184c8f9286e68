from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="parkedrequest",
            name="tenant",
            field=models.CharField(blank=True, db_default="", max_length=100),
        ),
    ]
