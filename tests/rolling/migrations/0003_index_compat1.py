"""An index of the next release, which works without it."""

from __future__ import annotations

from django.db import migrations

from delayed_queue.migrations._operations import END_TURN, TAKE_TURN


class Migration(migrations.Migration):
    workers_need_it = False

    dependencies = [("delayed_queue", "0002_more_compat1")]

    operations = [
        TAKE_TURN,
        migrations.RunSQL(
            "CREATE INDEX later_attempts ON delayed_queue (attempts)", "DROP INDEX later_attempts"
        ),
        END_TURN,
    ]
