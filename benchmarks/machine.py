"""What the figures depend on: machine, versions, settings."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Final

import django
import psycopg

SETTINGS: Final = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_compression",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
)


def describe(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Return machine, versions and the server's settings, by name."""
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "load average": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Django": django.get_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        "connection": "socket" if _is_local(connection) else "TCP",
        **{f"PostgreSQL {name}": _shown(connection, name) for name in SETTINGS},
    }


def _shown(connection: psycopg.Connection[Any], name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    return str(row[0]) if row else "?"


def _is_local(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.host.startswith("/")


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
