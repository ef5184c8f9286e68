"""Print the URL of a PostgreSQL server of this machine that can create databases, or exit 1."""

from __future__ import annotations

import os
import sys

import psycopg

CANDIDATES = [
    os.environ.get("CI_DATABASE_URL", ""),
    "postgres://postgres@/postgres?host=/var/run/postgresql",
    "postgres://postgres@127.0.0.1:5432/postgres",
    f"postgres://{os.environ.get('USER', 'root')}@/postgres?host=/var/run/postgresql",
]
QUESTION = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"


def can_create(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            row = connection.execute(QUESTION).fetchone()
            return connection.info.server_version >= 130_000 and bool(row and row[0])
    except psycopg.Error:
        return False


if __name__ == "__main__":
    found = next((url for url in CANDIDATES if url and can_create(url)), None)
    if found is None:
        sys.exit(1)
    sys.stdout.write(found + "\n")
