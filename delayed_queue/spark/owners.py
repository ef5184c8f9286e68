"""Whose a checkpoint is, and the files that a stream writes: of one queue of one database."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.store.streaming import WHICH_DATABASE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delayed_queue.spark.drivers import Session

_EACH_ITS_OWN = "Nothing was leased. Give each queue of each database a checkpoint of its own"


@dataclass(frozen=True, slots=True)
class Owner:
    """A kind, the name of its database, and the number of the server that has it."""

    kind: str
    database: str
    server: str

    @property
    def digest(self) -> str:
        """The owner as a part of a file's name."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]

    @property
    def text(self) -> str:
        """The owner as a file has it."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return f"{self.kind!r} of the database {self.database!r} (server {self.server})"


def owner_of(kind: str, session: Session) -> Owner:
    """Return the owner of what is written of the kind over this connection."""
    database, server = session.fetch(WHICH_DATABASE, {})[0]
    return Owner(kind, database, server)


def owner_from(text: str) -> str:
    """Return in words what ``Owner.text`` says; a file may have been cut short."""
    try:
        return str(Owner(**json.loads(text)))
    except (TypeError, ValueError):
        return "another queue"


def check_offset(offset: Mapping[str, Any], owner: Owner) -> None:
    """Raise InvalidConfiguration if the offset was logged by a stream of another queue.

    Its lease holds messages of that queue, which nobody shall read, or acknowledge, as ours. A
    server's number is none of its business: after an upgrade a stream goes on.
    """
    kind, database = offset.get("kind"), offset.get("database", owner.database)
    if (kind, database) != (owner.kind, owner.database):
        raise InvalidConfiguration(
            f"The checkpoint is of the queue {kind!r} of the database {database!r}; a stream of "
            f"{owner.kind!r} of the database {owner.database!r} cannot go on with it. "
            f"{_EACH_ITS_OWN}."
        )


def refusal(path: str, theirs: str, ours: Owner, note: str) -> InvalidConfiguration:
    """Return what is raised of a directory that another owner has noted as its own."""
    return InvalidConfiguration(
        f"{path} belongs to {theirs}; it cannot be used for {ours}. {_EACH_ITS_OWN}; or, if this "
        f"is the same database, upgraded or restored, delete the file {note} there."
    )
