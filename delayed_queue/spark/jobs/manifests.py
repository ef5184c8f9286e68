"""The manifest of an archive: where it stands, and who may take it further."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import uuid4

from delayed_queue.spark.jobs.database import Connection, fetch
from delayed_queue.spark.jobs.files import FileDigest
from delayed_queue.spark.jobs.tables import Table
from delayed_queue.spark.store.archiving import (
    ADVANCE_ARCHIVE,
    COUNT_PRUNED,
    HOLD_ARCHIVE,
    PLAN_ARCHIVE,
    UNFINISHED_ARCHIVE,
)

LEASE_MS: Final = 120_000


class ArchiveLost(RuntimeError):
    """Another process took the archive over; this one stops and changes nothing more."""


@dataclass(slots=True)
class Manifest:
    """One row of ``delayed_queue_archive``."""

    id: int
    source: str
    key: str
    age: str
    lower: str
    upper: str
    only: str
    cutoff: int
    expected: int
    destination: str
    state: str
    staging: str
    rows: int | None
    digest: str
    deleted: int
    holder: str
    held_for_ms: int

    @property
    def table(self) -> Table:
        return Table(self.source, self.key, self.age, json.loads(self.only))

    @property
    def path(self) -> str:
        """Return where the files end up."""
        return f"{self.destination}/{self.source}/archive={self.id:08d}"


def new_holder() -> str:
    """Return a name for this process that no other has, and that tells who it is."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def is_dead(holder: str) -> bool:
    """Return whether the holder was a process of this machine that is gone."""
    host, _, rest = holder.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()


class Manifests:
    """The manifests' statements, for one holder."""

    def __init__(self, connection: Connection, lease_ms: int = LEASE_MS) -> None:
        self.connection = connection
        self.holder = new_holder()
        self._lease_ms = lease_ms

    @property
    def token(self) -> str:
        return self.holder.rpartition(":")[2]

    def unfinished(self, source: str) -> Manifest | None:
        rows = fetch(self.connection, UNFINISHED_ARCHIVE, {"source": source, "now": None})
        return Manifest(*rows[0]) if rows else None

    def plan(
        self, table: Table, bounds: tuple[str, str], cutoff: int, expected: int, destination: str
    ) -> Manifest:
        """Write the decision down; another unfinished archive of the table refuses it."""
        params = {
            "source": table.source, "key": table.key, "age": table.age, "lower": bounds[0],
            "upper": bounds[1], "only": table.only_json, "cutoff": cutoff, "expected": expected,
            "destination": destination, "holder": self.holder, "lease": self._lease_ms,
            "now": None,
        }  # fmt: skip
        rows = fetch(self.connection, PLAN_ARCHIVE, params)
        found = self.unfinished(table.source) if rows else None
        if found is None:
            raise ArchiveLost(f"Another process is archiving {table.source} at this moment.")
        return found

    def hold(self, manifest: Manifest) -> bool:
        """Take the archive, or keep it; return False while another holder may be at work."""
        dead = manifest.holder if is_dead(manifest.holder) else self.holder
        params = {
            "id": manifest.id, "holder": self.holder, "dead": dead, "lease": self._lease_ms,
            "now": None,
        }  # fmt: skip
        if not fetch(self.connection, HOLD_ARCHIVE, params):
            return False
        manifest.holder = self.holder
        return True

    def advance(
        self,
        manifest: Manifest,
        to: str,
        *,
        staging: str | None = None,
        files: Sequence[FileDigest] | None = None,
        rows: int | None = None,
        digest: str | None = None,
        changed: int | None = None,
    ) -> None:
        """Write the next state down, or raise ArchiveLost."""
        listed = None if files is None else json.dumps([asdict(each) for each in files])
        params: dict[str, Any] = {
            "id": manifest.id, "holder": self.holder, "state": manifest.state, "to": to,
            "staging": staging, "rows": rows, "digest": digest, "files": listed,
            "changed": changed, "now": None,
        }  # fmt: skip
        if not fetch(self.connection, ADVANCE_ARCHIVE, params):
            raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")
        manifest.state = to
        manifest.staging = manifest.staging if staging is None else staging
        manifest.rows = manifest.rows if rows is None else rows
        manifest.digest = manifest.digest if digest is None else digest

    def pruned(self, manifest: Manifest, delete: Callable[[], int]) -> int:
        """Delete a bite and count it, in one transaction."""
        with self.connection.transaction():
            deleted = delete()
            params = {
                "id": manifest.id, "holder": self.holder, "deleted": deleted,
                "lease": self._lease_ms, "now": None,
            }  # fmt: skip
            if not fetch(self.connection, COUNT_PRUNED, params):
                raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")
        manifest.deleted += deleted
        return deleted
