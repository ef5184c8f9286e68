"""Migration operations that several processes may run at the same time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from delayed_queue.fields import EpochMillisecondField

# Processes that migrate at the same time queue up here, until the winner's commit. The limit on
# waiting for table locks is set after that, so it does not cut short an orderly wait.
_TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""
# The first and the last operation of each migration: one for each way.
TAKE_TURN = migrations.RunSQL(_TAKE_TURNS, reverse_sql=migrations.RunSQL.noop)
END_TURN = migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=_TAKE_TURNS)


ID: Final = (
    "id",
    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
)


def instant(column: str, **options: Any) -> EpochMillisecondField:
    return EpochMillisecondField(db_column=column, **options)


# Marks the columns that a table of another service got from us: a migration back drops no others.
_ADDED: Final = "Added by delayed_queue to a table of another service."


class CreateModelOnce(migrations.CreateModel):
    """Create the table unless the current schema has it already.

    Does nothing on a database that the router keeps the model off. A process that lost the race
    for the lock finds the table of the winner. A table with only the columns in ``adopts`` was made
    by another service that shares it: it gets the missing columns, and a migration back drops just
    these. Any other table of that name is refused.
    """

    def __init__(self, *args: Any, adopts: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adopts = adopts

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        model = states[1].apps.get_model(app_label, self.name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if not _exists(schema_editor, model._meta.db_table):
            super().database_forwards(app_label, schema_editor, *states)
        else:
            self._adopt(schema_editor, model)

    def _adopt(self, schema_editor: Any, model: Any) -> None:
        table = model._meta.db_table
        present = _columns(schema_editor, table)
        missing = [each for each in model._meta.local_concrete_fields if each.column not in present]
        foreign = [each.column for each in missing if each.column in self.adopts]
        if foreign or (missing and not self.adopts):
            raise RuntimeError(
                f"The table {table!r} exists, but is not this app's: it has no column "
                f"{(foreign or [missing[0].column])[0]!r}. Rename or drop it, then migrate again."
            )
        for field in missing:
            schema_editor.add_field(model, field)
            _mark_added(schema_editor, table, field.column)
        # Indexes of ours over columns that the table did not have; it keeps its own for the rest.
        for index in model._meta.indexes:
            if not {each.name for each in missing}.isdisjoint(index.fields):
                schema_editor.add_index(model, index)

    def database_backwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        model = states[0].apps.get_model(app_label, self.name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if added := _added_columns(schema_editor, model._meta.db_table):
            for field in model._meta.local_concrete_fields:
                if field.column in added:
                    schema_editor.remove_field(model, field)
        elif _exists(schema_editor, model._meta.db_table):
            super().database_backwards(app_label, schema_editor, *states)


class CreateTableOfDays(CreateModelOnce):
    """Create the table as partitioned by a column, with one partition for what has no day."""

    def __init__(self, *args: Any, by: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.by = by

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        model = states[1].apps.get_model(app_label, self.name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        plain = schema_editor.sql_create_table
        schema_editor.sql_create_table = f"{plain} PARTITION BY RANGE ({self.by})"
        table = model._meta.db_table
        is_new = not _exists(schema_editor, table)
        try:
            super().database_forwards(app_label, schema_editor, *states)
        finally:
            schema_editor.sql_create_table = plain
        if is_new:
            schema_editor.execute(f"CREATE TABLE {table}_rest PARTITION OF {table} DEFAULT")


class CreateFunctions(Operation):
    """Run a file of SQL functions in the current schema, without rights for PUBLIC.

    Does nothing on a database that the router keeps the messages off. A migration back drops them.
    """

    def __init__(self, file: str) -> None:
        self.file = file

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        revoke = f"REVOKE ALL ON FUNCTION {', '.join(self._names())} FROM PUBLIC"
        self._run([self._text(), revoke], app_label, schema_editor, states[1])

    def database_backwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        drop = f"DROP FUNCTION IF EXISTS {', '.join(self._names())}"
        self._run([drop], app_label, schema_editor, states[0])

    def _text(self) -> str:
        path = Path(__file__).parents[1] / "sql" / self.file
        return path.read_text(encoding="utf-8").rstrip(";\n")

    def _names(self) -> list[str]:
        return re.findall(r"FUNCTION (public\.\w+)", self._text())

    def _run(self, statements: list[str], app: str, editor: Any, state: ProjectState) -> None:
        if not self.allow_migrate_model(
            editor.connection.alias, state.apps.get_model(app, "Message")
        ):
            return
        with editor.connection.cursor() as cursor:
            cursor.execute("SELECT quote_ident(current_schema())")
            (schema,) = cursor.fetchone()
        for each in statements:
            in_text = schema.replace("'", "''")
            placed = each.replace("'public.", f"'{in_text}.").replace(" public.", f" {schema}.")
            editor.execute(placed, None)


def _exists(schema_editor: Any, table: str) -> bool:
    if schema_editor.collect_sql:  # sqlmigrate shows all statements
        return False
    named = "SELECT to_regclass(format('%%I.%%I', current_schema(), %s::text)) IS NOT NULL"
    return _read(schema_editor, named, table) == {True}


def _mark_added(schema_editor: Any, table: str, column: str) -> None:
    quote = schema_editor.quote_name
    schema_editor.execute(f"COMMENT ON COLUMN {quote(table)}.{quote(column)} IS '{_ADDED}'", None)


def _added_columns(schema_editor: Any, table: str) -> set[str]:
    """Return the columns that the table of another service got from us."""
    if schema_editor.collect_sql:
        return set()
    marked = (
        "SELECT attname FROM pg_attribute "
        "WHERE attrelid = to_regclass(format('%%I.%%I', current_schema(), %s::text)) "
        "AND NOT attisdropped AND col_description(attrelid, attnum) = %s"
    )
    return _read(schema_editor, marked, table, _ADDED)


def _columns(schema_editor: Any, table: str) -> set[str]:
    columns = (
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND table_name = %s"
    )
    return _read(schema_editor, columns, table)


def _read(schema_editor: Any, statement: str, *params: str) -> set[Any]:
    """Return the values of the statement's column."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(statement, params)
        return {row[0] for row in cursor.fetchall()}
