"""Migration operations that several processes may run at the same time."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState


class CreateModelOnce(migrations.CreateModel):
    """Create the table unless the schema it would be created in has it already.

    Under the lock that the migration takes first, a process that lost the race finds the
    table of the winner. A table of that name in another schema of the search path is not ours.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        table = to_state.apps.get_model(app_label, self.name)._meta.db_table
        if not _exists(schema_editor, table):
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        table = from_state.apps.get_model(app_label, self.name)._meta.db_table
        if _exists(schema_editor, table):
            super().database_backwards(app_label, schema_editor, from_state, to_state)


def _exists(schema_editor: Any, table: str) -> bool:
    if schema_editor.collect_sql:  # sqlmigrate shows the statements whatever the database has
        return False
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass(format('%%I.%%I', current_schema(), %s::text)) IS NOT NULL",
            [table],
        )
        return bool(cursor.fetchone()[0])
