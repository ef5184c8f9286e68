"""Queries and processes for the tests of the embedded PostgreSQL."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg

REPOSITORY = Path(__file__).parents[3]
SMALL: dict[str, str | int] = {"shared_buffers": "16MB", "max_connections": 20}


def ask(url: str, query: str) -> Any:
    with connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def execute(url: str, statement: str) -> None:
    with connect(url) as connection:
        connection.execute(statement.encode())


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(url, autocommit=True, options="-c statement_timeout=30s")


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()
