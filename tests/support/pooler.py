"""A PgBouncer in transaction mode, before a server."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.processes import wait_until

PROGRAM: Final = "pgbouncer"
SECONDS: Final = 20
CONFIGURATION: Final = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 10
server_tls_sslmode = disable
ignore_startup_parameters = extra_float_digits,options
{prepared}
"""


class PoolerMissing(Exception):
    """There is no program named pgbouncer on this machine."""


def find_program() -> str | None:
    # Debian installs it where only administrators have a path.
    return shutil.which(PROGRAM, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def version_of() -> tuple[int, ...]:
    program = find_program()
    if program is None:
        raise PoolerMissing(PoolerMissing.__doc__)
    said = subprocess.run(  # a program of the machine
        [program, "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


@contextmanager
def pooler(server: str) -> Iterator[str]:
    """Start a PgBouncer before the server; yield the conninfo of the same database through it."""
    program, version = find_program(), version_of()
    parts, port = conninfo_to_dict(server), _free_port()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        file = Path(directory) / "pgbouncer.ini"
        prepared = "max_prepared_statements = 200" if version >= (1, 21) else ""
        file.write_text(CONFIGURATION.format(server=_upstream(parts), port=port, prepared=prepared))
        process = subprocess.Popen(  # a program of the machine
            [str(program), "-q", *_account(parts.get("host")), str(file)]
        )
        try:
            _wait_for(port, process)
            yield make_conninfo(
                "", host="127.0.0.1", port=port, dbname=parts["dbname"],
                user=parts.get("user", "any"), sslmode="disable", gssencmode="disable",
            )  # fmt: skip
        finally:
            process.terminate()
            process.wait(SECONDS)


def _upstream(parts: Mapping[str, object]) -> str:
    known = ("host", "port", "user", "password")
    return " ".join(f"{name}={parts[name]}" for name in known if parts.get(name))


def _account(host: object) -> list[str]:
    """It refuses to run as root; only the server's account may use its private socket."""
    if os.getuid() != 0:
        return []
    owner = Path(str(host)).stat().st_uid if str(host).startswith("/") else 65534
    return ["-u", pwd.getpwuid(owner).pw_name]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: process.poll() is not None or _accepts(port), SECONDS)
    assert process.poll() is None, "PgBouncer stopped by itself"


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
