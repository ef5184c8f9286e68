"""A database of its own for each run: created, migrated, and dropped at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, LiteralString

import django
import psycopg
from django.conf import settings
from django.core.management import call_command
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from example_project.postgres import EmbeddedPostgres, database_url

QUEUE: Final = "benchmark"
KIND: Final = "benchmark|bytes"
PAYLOAD: Final = b"x" * 100
FILL: Final[LiteralString] = """
INSERT INTO {} (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT 'key-' || n, %(kind)s, %(payload)s, n, n, n
FROM generate_series(1, %(count)s) AS n
"""
FILL_GROUPS: Final[LiteralString] = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "group"
)
SELECT 'key-' || n, %(kind)s, %(payload)s, n, n, n, 'group-' || n %% %(groups)s::integer
FROM generate_series(1, %(count)s) AS n
"""
Connection = psycopg.Connection[Any]


def embedded_server() -> str:
    """Start the embedded PostgreSQL unless it runs; return its URL. It keeps running."""
    server = EmbeddedPostgres()
    server.start()
    return server.socket_url


@contextmanager
def new_database(server: str, name: str = "delayed_queue_benchmark") -> Iterator[str]:
    """Create an empty database; yield its connection string; drop it."""
    name = f"{name}_{os.getpid()}"
    identifier = sql.Identifier(name)
    with psycopg.connect(server, autocommit=True) as maintenance:
        maintenance.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
        try:
            yield make_conninfo(server, dbname=name)
        finally:
            maintenance.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


@contextmanager
def benchmark_database(
    server: str | None = None, apps: tuple[str, ...] = (), **more: Any
) -> Iterator[Connection]:
    """Create a database, configure Django for it alone and migrate; yield a connection.

    ``apps`` are installed beside the core; ``more`` are further settings.
    """
    with new_database(server or embedded_server()) as conninfo:
        settings.configure(
            INSTALLED_APPS=["delayed_queue", *apps], DATABASES=databases(conninfo), USE_TZ=True,
            LOGGING_CONFIG=None, SECRET_KEY="benchmark" * 5, **more,
        )  # fmt: skip
        django.setup()
        call_command("migrate", verbosity=0)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            yield connection


def conninfo_of(connection: Connection) -> str:
    """Return a connection string for the connection's database, with the password."""
    return make_conninfo(connection.info.dsn, password=connection.info.password)


def databases(conninfo: str) -> dict[str, dict[str, Any]]:
    """Return Django's setting ``DATABASES`` for a connection string."""
    parts = conninfo_to_dict(conninfo)
    keys = {
        "NAME": "dbname",
        "USER": "user",
        "PASSWORD": "password",
        "HOST": "host",
        "PORT": "port",
    }
    named = {name: parts.pop(key, "") for name, key in keys.items()}
    engine = "django.db.backends.postgresql"
    return {"default": {"ENGINE": engine, "OPTIONS": parts, "CONN_MAX_AGE": None, **named}}


def example_environment(conninfo: str, **variables: str) -> dict[str, str]:
    """Return the environment in which the example project uses the database."""
    parts = conninfo_to_dict(conninfo)
    url = database_url(
        user=str(parts.get("user", "")), password=str(parts.get("password", "")),
        host=str(parts.get("host", "")), port=str(parts.get("port", 5432)),
        name=str(parts["dbname"]),
    )  # fmt: skip
    return {
        **os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", "DATABASE_URL": url,
        "DEBUG": "0", "SECRET_KEY": "of a benchmark", "ALLOWED_HOSTS": "127.0.0.1",
        "LOG_LEVEL": "ERROR", **variables,
    }  # fmt: skip


def empty(connection: Connection, table: str = "delayed_queue") -> None:
    """Remove every row and every dead version."""
    connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(table)))


def fill(connection: Connection, table: str, count: int) -> None:
    """Leave exactly ``count`` due messages in the table; analyze it."""
    empty(connection, table)
    identifier = sql.Identifier(table)
    params = {"kind": KIND, "payload": PAYLOAD, "count": count}
    connection.execute(sql.SQL(FILL).format(identifier), params)
    connection.execute(sql.SQL("ANALYZE {}").format(identifier))


def fill_groups(connection: Connection, kind: str, count: int, groups: int) -> None:
    """Leave exactly ``count`` due messages, spread over the groups; analyze the table."""
    empty(connection)
    params = {"kind": kind, "payload": PAYLOAD, "count": count, "groups": groups}
    connection.execute(FILL_GROUPS, params)
    connection.execute("ANALYZE delayed_queue")


def value_of(connection: Connection, query: str, params: Any = None) -> Any:
    """Return the first column of the first row, or None."""
    row = connection.execute(query.encode(), params).fetchone()
    return row[0] if row else None
