"""Every addition that a release may make: columns, one with a default, and a table."""

from __future__ import annotations

from django.db import migrations, models

from delayed_queue.migrations._operations import END_TURN, TAKE_TURN

_TO_EACH = """
DO $$
DECLARE each text;
BEGIN
    FOR each IN SELECT relname FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND NOT relispartition
            AND relkind IN ('r', 'p') AND relname LIKE 'delayed\\_queue%'
        -- Messages first, as workers lock them: else the two could wait for each other.
        ORDER BY relname COLLATE "C"
    LOOP
        EXECUTE format('ALTER TABLE %I {}', each);
    END LOOP;
END $$
"""
_ADDED = "ADD COLUMN later_text text, ADD COLUMN later_number integer NOT NULL DEFAULT 7"
_TAKEN_BACK = "DROP COLUMN later_text, DROP COLUMN later_number"


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        TAKE_TURN,
        migrations.RunSQL(_TO_EACH.format(_ADDED), _TO_EACH.format(_TAKEN_BACK)),
        migrations.CreateModel("Later", [("id", models.BigAutoField(primary_key=True))]),
        END_TURN,
    ]
