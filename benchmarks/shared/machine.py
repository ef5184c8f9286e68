"""The conditions of a run: machine, versions, settings of the server."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

import django
import psycopg

from benchmarks.shared.database import Connection, value_of

SETTINGS: Final = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_compression",
    "shared_buffers", "max_wal_size", "autovacuum",
)  # fmt: skip


def describe(connection: Connection | None = None) -> dict[str, str]:
    """Return machine and versions, and the server's settings if there is a server."""
    found = {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "load average": load_average(),
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Django": django.get_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
    }
    if connection is not None:
        found["connection"] = "socket" if connection.info.host.startswith("/") else "TCP"
        for name in SETTINGS:
            shown = value_of(connection, "SELECT current_setting(%s)", [name])
            found[f"PostgreSQL {name}"] = str(shown)
    return found


def load_average() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
