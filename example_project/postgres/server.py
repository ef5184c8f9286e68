"""One PostgreSQL server in a directory of its own, shared by every process that names it."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import quote

from example_project.postgres.accounts import is_root, run_as, server_account
from example_project.postgres.binaries import can_run, copy_binaries, find_binaries, version_of
from example_project.postgres.exceptions import LauncherError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from example_project.postgres.accounts import Account

ROLE: Final = "delayed_queue"
DATABASE: Final = "delayed_queue"
# The socket has this port under every TCP port, so that settings can name the server before its
# first start.
SOCKET_PORT: Final = 5432
# sun_path holds 108 bytes on Linux and 104 on macOS, the terminating zero included.
SOCKET_PATH_LIMIT: Final = 103
# Crash recovery of 4 GB of WAL takes minutes on a slow disk.
TIMEOUT: Final = 300
UNSAFE: Final = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


def default_directory() -> Path:
    """Return where the servers of this account are kept, a directory per major version."""
    if configured := os.environ.get("DELAYED_QUEUE_PG_DATA"):
        return Path(configured).absolute()
    if is_root():
        return Path("/var/lib/delayed_queue/pg")
    import platformdirs  # of the group `embedded`: a server elsewhere does without

    return Path(platformdirs.user_data_dir("delayed_queue")) / "pg"


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents.

    Those of root are open to the server's account under any umask; their contents are private.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755 if is_root() else 0o700)


def database_url(*, user: str, password: str, host: str, port: int | str, name: str) -> str:
    """Return the URL of a database; a host that is a directory is its socket's."""
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    if host.startswith("/"):
        # As ?host=, because django-environ does not decode a %2F in the place of the host.
        return f"postgresql://{login}@:{port}/{quote(name)}?host={quote(host, safe='')}"
    return f"postgresql://{login}@{host}:{port}/{quote(name)}"


class EmbeddedPostgres:
    """A PostgreSQL server in a directory of its own; creating the object starts nothing.

    The server is a daemon: it outlives the process that started it and runs until `stop()`.
    `settings` are server parameters and win over ours. `durable=False` gives up the data in a
    crash of the machine for speed: for tests.
    """

    def __init__(
        self,
        data_directory: Path | str | None = None,
        settings: Mapping[str, str | int] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self.binaries = find_binaries()
        self.version = version_of(self.binaries)
        self._major = int(re.split(r"\D", self.version, maxsplit=1)[0])
        # No other major version can open a data directory.
        self.home = Path(data_directory or default_directory()).absolute() / str(self._major)
        self.data_directory = self.home / "data"
        self._settings = dict(settings or {})
        self._durable = durable
        self._port_file = self.home / "port"
        self.password_file = self.home / "password"
        self._log_file = self.home / "server.log"
        self._pid_file = self.data_directory / "postmaster.pid"

    @property
    def socket_directory(self) -> Path:
        """Where the socket of the server is; known before its first start."""
        directory = self.home / "socket"
        if len(os.fsencode(directory / ".s.PGSQL.65535")) <= SOCKET_PATH_LIMIT:
            return directory
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()
        return Path("/tmp") / f"delayed_queue-{digest[:16]}"  # noqa: S108 # refused unless private

    @property
    def socket_url(self) -> str:
        """The URL over the socket: needs no password, and is known before the first start."""
        host = str(self.socket_directory)
        return database_url(user=ROLE, password="", host=host, port=SOCKET_PORT, name=DATABASE)

    @property
    def url(self) -> str:
        """The URL over TCP, with the password; known once the server was started."""
        try:
            password, port = self.password_file.read_text(), self._port_file.read_text()
        except FileNotFoundError as error:
            raise LauncherError(f"The server in {self.home} was never started.") from error
        return database_url(
            user=ROLE, password=password, host="127.0.0.1", port=port, name=DATABASE
        )

    def start(self) -> str:
        """Start the server unless it runs, and return its URL once the database can be used.

        Any number of processes may do this at the same time: one starts it, the others wait.
        """
        self._make_home()
        with self._exclusive():
            self._initialise()
            self._wait_until(self._has_settled, "become ready")
            if self._ping() != "OK":
                self._launch()
            self._create_database()
            return self.url

    def stop(self) -> bool:
        """Stop the server and its connections; return True if it was running."""
        if not self.home.exists():
            return False
        with self._exclusive():
            self._wait_until(self._has_settled, "become ready")
            # pg_ctl signals any process with the pid in postmaster.pid. Only a server that
            # replies proves that the pid is its own.
            if self._ping() != "OK":
                return False
            self.run("pg_ctl", "stop", "-m", "fast", *self._pg_ctl_options())
            self._wait_until(lambda: not self._is_alive(), "end")
            return True

    @property
    def pid(self) -> int | None:
        """The process id of the server; None unless it replies."""
        if self._ping() not in {"OK", "REJECT"}:
            return None
        try:
            return int(self._pid_file.read_text().split()[0])
        except FileNotFoundError:  # it ended just now
            return None

    # Is it alive? A pid is no proof: a zombie or another process may have it. Two proofs exist: a
    # reply on the socket, and a lock that the postmaster inherits and that the kernel releases
    # after the last process of the server has ended.

    def _ping(self) -> str:
        """Return the server's state in words of libpq, such as OK or REJECT."""
        # Here, so that settings can import this module without libpq.
        from psycopg import pq

        return pq.Ping(pq.PGconn.ping(f"{self.socket_url}&connect_timeout=5".encode())).name

    def _claim_life(self) -> IO[bytes] | None:
        """Return the lock for a new server to inherit; None while a server holds it."""
        import fcntl  # missing on Windows, where settings must still load

        file = (self.home / "life").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def _is_alive(self) -> bool:
        claim = self._claim_life()
        if claim is not None:
            claim.close()
        return claim is None

    def _has_settled(self) -> bool:
        """Return True if it serves or has ended, not while it starts, recovers or stops."""
        return self._ping() == "OK" or not self._is_alive()

    def _wait_until(self, condition: Callable[[], bool], goal: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > deadline:
                raise LauncherError(f"The server in {self.home} did not {goal}.\n{self._log()}")
            time.sleep(0.02)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Be the only process that starts or stops this server."""
        import fcntl

        with (self.home / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _launch(self) -> None:
        claim = self._claim_life()
        if claim is None:
            raise LauncherError(f"Another server came up in {self.home}; try again.")
        with claim:
            self._configure()
            # The lock was free, so the pid in these files is not of a server here. PostgreSQL
            # would refuse to start because of it.
            for stale in (self._pid_file, *self.socket_directory.glob(".s.PGSQL.*")):
                stale.unlink(missing_ok=True)
            self._lay_alias()
            options = (*self._pg_ctl_options(), "-l", str(self._log_file))
            self.run("pg_ctl", "start", *options, inherited=[claim.fileno()])

    def _pg_ctl_options(self) -> tuple[str, ...]:
        return ("-D", str(self.data_directory), "-w", "-t", str(TIMEOUT), "-s")

    def _create_database(self) -> None:
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.socket_url, dbname="postgres", autocommit=True) as connection:
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(query, [DATABASE]).fetchone() is None:
                statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE))
                connection.execute(statement)

    def run(self, program: str, *arguments: str, inherited: Collection[int] = ()) -> None:
        command = [str(self._programs / program), *arguments]
        result = run_as(self._account, command, inherited=inherited)
        if result.returncode != 0:
            who = f" as {self._account.name}, who must reach {self.home}" if self._account else ""
            raise LauncherError(f"{program} failed{who}: {result.stderr.strip()}\n{self._log()}")

    def _log(self) -> str:
        """The end of the server's log."""
        if not self._log_file.exists():
            return ""
        return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-20:])

    @functools.cached_property
    def _account(self) -> Account | None:
        return server_account(self.data_directory)

    @functools.cached_property
    def _programs(self) -> Path:
        """The binaries, or our copy if the account cannot reach them, as under /root."""
        if self._account is None or can_run(self.binaries, self._account):
            return self.binaries
        return copy_binaries(self.binaries, self.home / "binaries" / self.version)

    def _initialise(self) -> None:
        """Create the data directory, whole or not at all."""
        if self.data_directory.exists():
            return
        unfinished = self.home / "data.new"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._make_private(unfinished)
        self._write_private(self.password_file, secrets.token_urlsafe(24))
        self.run("initdb", "-D", str(unfinished), *self._initdb_options())
        with (unfinished / "postgresql.conf").open("a") as file:
            file.write("\ninclude_if_exists = '../delayed_queue.conf'\n")
        unfinished.rename(self.data_directory)

    def _initdb_options(self) -> Iterator[str]:
        yield from (f"--username={ROLE}", f"--pwfile={self.password_file}")
        # The socket is in a directory of mode 0700, which only the server's account can enter.
        yield from ("--auth-local=trust", "--auth-host=scram-sha-256")
        # Pinned, or the LANG of the first start would define the order of text.
        yield from ("--encoding=UTF8", "--locale=C")
        if self._major >= 17:
            yield from ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        if not self._durable:
            yield "--no-sync"

    def _configure(self) -> None:
        port = int(self._settings.get("port") or _free_port(self._port_file))
        self._port_file.write_text(str(port))
        lines = [f"{name} = {_quoted(value)}\n" for name, value in self._parameters(port).items()]
        configuration = self.home / "delayed_queue.conf"
        configuration.write_text("".join(["# Written anew at every start.\n", *lines]))
        configuration.chmod(0o644)
        if self._log_file.exists():
            self._log_file.replace(self._log_file.with_suffix(".log.old"))
        self._write_private(self._log_file, "")
        self._make_private(self.socket_directory)

    def _parameters(self, port: int) -> dict[str, str | int]:
        return {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": '"{}"'.format(str(self.socket_directory).replace('"', '""')),
            "shared_buffers": f"{min(512, _memory_megabytes() // 4)}MB",
            # The default of 16 MB fills faster than the disk writes under four writers.
            "wal_buffers": f"{min(64, _memory_megabytes() // 32)}MB",
            "max_wal_size": "4GB",
            "max_connections": 200,
            "jit": "off",  # compiling takes longer than any query of a queue
            **({} if self._durable else UNSAFE),
            **self._settings,
            "port": port,
        }

    def _lay_alias(self) -> None:
        """Give the socket, whose name contains the port, a second name that never changes."""
        name = f".s.PGSQL.{self._port_file.read_text()}"
        alias = f".s.PGSQL.{SOCKET_PORT}"
        if name != alias:
            (self.socket_directory / alias).symlink_to(name)

    def _make_home(self) -> None:
        make_directory(self.home)

    def _make_private(self, directory: Path) -> None:
        """Make the directory for the server's account; refuse one of another account."""
        try:
            directory.mkdir(mode=0o700)
            self._give(directory)
        except FileExistsError:
            found = directory.lstat()
            owner = self._account.uid if self._account else os.geteuid()
            if found.st_mode != stat.S_IFDIR | 0o700 or found.st_uid != owner:
                raise LauncherError(f"{directory} belongs to another account.") from None

    def _write_private(self, file: Path, text: str) -> None:
        file.unlink(missing_ok=True)
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(text)
        self._give(file)

    def _give(self, path: Path) -> None:
        if self._account:
            os.chown(path, self._account.uid, self._account.gid)


def _free_port(remembered: Path) -> int:
    """Return the last port if it is free, otherwise another free one."""
    last = int(remembered.read_text()) if remembered.exists() else 0
    for port in (last, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise LauncherError("There is no free port on 127.0.0.1.")


def _memory_megabytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def _quoted(value: str | int) -> str:
    """Quote a value for a configuration file of the server."""
    return "'{}'".format(str(value).replace("\\", "\\\\").replace("'", "''"))
